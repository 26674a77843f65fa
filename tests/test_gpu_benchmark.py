"""benchmarks/gpu.sh at toy size on the CPU, where torch and numpy are all there is."""

import argparse
import csv
import hashlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import reference_model
from blindspot.execution import Execution
from blindspot.measure.subject import Subject
from blindspot.model import LoopedLM
from blindspot.spec import Measurement, Throughput
from blindspot.study import Study
from blindspot.tokens import Tokens
from toys import ROOT
from training import toy_tokens

sys.path.insert(0, str(ROOT / "benchmarks"))

from gpu import __main__ as command
from gpu import cells, report, speed
from gpu.bench import Bench, Reference, Sheet, engine
from gpu.plan import CELLS, FULL, TINY, TRAININGS, peak

#: All that blindspot's installs bring, but for numpy and torch.
MISSING = [
    "pydantic",
    "datasets",
    "jinja2",
    "matplotlib",
    "mwparserfromhell",
    "pandas",
    "rich",
    "safetensors",
    "scipy",
    "seaborn",
    "snakemake",
    "submitit",
    "tensorboard",
    "tokenizers",
    "typer",
    "yaml",
]
BARE = f"""
import sys
from importlib.machinery import PathFinder

class Rest(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        missing = name.partition(".")[0] in {MISSING}
        return None if missing else super().find_spec(name, path, target)

sys.meta_path = [Rest if finder is PathFinder else finder for finder in sys.meta_path]
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """The environment of a machine that has Python, torch and numpy alone."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "sitecustomize.py").write_text(BARE)
    return os.environ | {
        "PYTHONPATH": str(folder),
        "PYTHON": sys.executable,
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    return toy_tokens(tmp_path_factory.mktemp("data"))[0]


@pytest.fixture(scope="module")
def done(bare, tokens, tmp_path_factory):
    """One whole run; its folder and what it printed."""
    out = tmp_path_factory.mktemp("run") / "out"
    script = [ROOT / "benchmarks/gpu.sh", "--tiny", "--minutes", "4"]
    result = subprocess.run(
        [*script, "--out", out, "--tokens", tokens],
        env=bare,
        cwd=out.parent,
        capture_output=True,
        text=True,
    )
    logs = "".join(path.read_text() for path in out.glob("log-*.txt"))
    assert result.returncode == 0, result.stdout + result.stderr + logs
    return out, result.stdout


def rows(folder, name):
    with open(folder / f"{name}.csv", newline="") as file:
        return list(csv.DictReader(file))


def given(out, **changes):
    values = {"out": out, "tokens": None, "minutes": 1.0, "tiny": True}
    return argparse.Namespace(**(values | changes))


def test_every_section_ends_and_nothing_is_left_out(done):
    out, printed = done
    record = json.loads((out / "gpu.json").read_text())
    assert {n: s["outcome"] for n, s in record["sections"].items()} == dict.fromkeys(
        ("check", "speed", "frontier", "cells"), "done"
    )
    for name in record["sections"]:
        assert {row["outcome"] for row in rows(out, f"notes-{name}")} == {"done"}, name
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    assert record["provenance"]["commit"] == (head.stdout.strip() or None)
    assert record["provenance"]["versions"]["torch"].startswith(torch.__version__.split("+")[0])
    digest = hashlib.sha256((Path(tokens_of(record)) / "tokens.json").read_bytes()).hexdigest()
    assert record["tokens_json_sha256"] == digest
    assert printed.rstrip().endswith((out / "summary.md").read_text().rstrip())


def tokens_of(record):
    return record["arguments"][record["arguments"].index("--tokens") + 1]


def test_the_step_is_that_of_the_reference_and_repeats(done):
    found = rows(done[0], "correctness")
    assert {row["cell"] for row in found} == set(CELLS)
    checked = [row for row in found if row["path"] != "reference-bf16"]
    assert {row["path"] for row in checked} == {"eager-float32", "eager-bf16", "compiled-bf16"}
    assert all(row["ok"] == "1" for row in checked)
    exact = [row for row in checked if row["path"] == "eager-float32"]
    assert all(float(row["worst_error"]) < 1e-4 for row in exact)
    # bf16 keeps eight bits: an error like float32's would mean that nothing was in bf16.
    assert all(float(row["gradient_error"]) > 1e-4 for row in checked if row not in exact)
    assert next(row["equal"] for row in rows(done[0], "repeat")) == "1"
    # torch's fused attention has no dropout on the CPU.
    taken = {(r["size"], r["dropout"]): r["implementation"] for r in rows(done[0], "attention")}
    for size in TINY.sizes:
        assert taken[size, "0"] == "FLASH_ATTENTION"
        assert taken[size, "0.1"] == "MATH"


def test_rates_are_flops_counted_by_hand_over_time(done):
    found = {(r["size"], r["cell"], r["path"]): r for r in rows(done[0], "speed")}
    paths = {"reference-float32", "reference-bf16", "eager", "recompute", "compiled"}
    assert set(found) == {(s, c, p) for s, c in speed.CONFIGURATIONS for p in paths}
    square = next(r for r in rows(done[0], "matmul") if r["name"] == "square")
    for (size, cell, path), row in found.items():
        d, layers = TINY.sizes[size]["d_model"], TINY.sizes[size]["layers"]
        # 16 d^2 multiply-adds a layer; causal attention sees half of T keys, scores and values.
        layer = 2 * 16 * d * d + 2 * 2 * d * TINY.context / 2
        heads = 1 if cell == "terminal-rms" else TINY.loops
        token = 3 * (TINY.loops * layers * layer + heads * 2 * d * TINY.vocab)
        batch = TINY.sizes[size]["batch"] * TINY.context
        seconds = float(row["step_s"])
        assert float(row["tokens_per_s"]) == pytest.approx(batch / seconds, rel=1e-4)
        assert float(row["tflops"]) == pytest.approx(batch * token / seconds / 1e12, rel=1e-4)
        share = float(row["tflops"]) / float(square["tflops"])
        assert float(row["mfu_measured"]) == pytest.approx(share, rel=1e-3)
        assert row["mfu_sheet"] == "", "no peak is guessed for an unknown device"
        assert (row["compile_s"] != "") == (path == "compiled")
        assert float(row["low"]) <= seconds <= float(row["high"])
    full = 2 * 64**3 / float(square["seconds"]) / 1e12
    assert float(square["tflops"]) == pytest.approx(full, rel=1e-4)


def test_the_frontier_has_every_depth_of_both_sizes(done):
    seen = {(row["architecture"], int(row["k"])) for row in rows(done[0], "frontier")}
    names = {f"{size}-{readout}" for size in TINY.sizes for readout in ("rms", "raw")}
    assert seen == {(name, k) for name in names for k in range(1, TINY.loops + 1)}


def test_trainings_have_equal_steps_and_show_what_readouts_do(done):
    trained = rows(done[0], "runs")
    assert [row["run"] for row in trained] == [t.name for t in TRAININGS]
    assert {(row["steps"], row["finished"]) for row in trained} == {(str(TINY.most_steps), "1")}
    radial, ppl, norms, logged = (
        rows(done[0], name) for name in ("gradients", "perplexity", "norms", "trajectory")
    )
    for training in TRAININGS:
        own = [r for r in ppl if r["run"] == training.name]
        assert [int(r["k"]) for r in own] == [1, 2]
        assert all(
            math.exp(float(r["ce"])) == pytest.approx(float(r["ppl"]), rel=1e-3) for r in own
        )
        assert [int(r["k"]) for r in norms if r["run"] == training.name] == [0, 1, 2]
        mine = [r for r in logged if r["run"] == training.name]
        assert {int(r["step"]) for r in mine} == set(range(1, TINY.most_steps + 1))
        for row in radial:
            kind = (row["run"], row["source"], row["path"], row["dtype"])
            if kind == (training.name, "ce", "immediate", "float64"):
                seen = float(row["cos_abs_mean"])
                # The visibility lemma; a small state shows the norm's eps.
                assert seen > 0.05 if training.cell == "perloop-raw" else seen < 1e-3
    # H_0 of the small initialization has variance 2 x 0.02^2 a dimension, of the default one 2.
    start = {r["run"]: float(r["norm_mean"]) for r in logged if (r["step"], r["k"]) == ("1", "0")}
    ratio = start["perloop-rms"] / start["perloop-rms-std0.02"]
    assert ratio == pytest.approx(50, rel=0.1)


def test_settings_read_without_pydantic_are_those_read_with_it(bare):
    code = (
        "import json, sys; sys.path[:0] = sys.argv[1:]\n"
        "import gpu\n"
        "from gpu.plan import CELLS, FULL, TINY\n"
        "from blindspot.execution import Execution\n"
        "from blindspot.spec import Measurement, RunSpec, Throughput, canonical\n"
        "runs = [p.run(s, c, init_std=i) for p in (FULL, TINY) for s in p.sizes\n"
        "        for c in CELLS for i in (None, 0.02)]\n"
        "assert RunSpec.parse(runs[0].canonical()) == runs[0] != runs[1]\n"
        "assert runs[1].model.model_copy(update={'init_std': None}) == runs[0].model\n"
        "others = [Measurement(), Throughput(), Execution()]\n"
        "print(json.dumps([canonical(x.identity()) for x in runs + others]))\n"
        "try: RunSpec.model_validate(runs[0].identity() | {'sed': 1})\n"
        "except ValueError as error: assert 'sed' in str(error)\n"
        "else: raise AssertionError\n"
        "try: FULL.model('44m', 'perloop-rms', heads=7)\n"
        "except ValueError as error: assert 'heads 7' in str(error)\n"
        "else: raise AssertionError\n"
    )
    paths = [ROOT / "src", ROOT / "benchmarks"]
    result = subprocess.run(
        [sys.executable, "-c", code, *paths], env=bare, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    runs = [
        plan.run(size, cell, init_std=std)
        for plan in (FULL, TINY)
        for size in plan.sizes
        for cell in CELLS
        for std in (None, 0.02)
    ]
    real = [*runs, Measurement(), Throughput(), Execution()]
    for text, value in zip(json.loads(result.stdout), real, strict=True):
        assert json.loads(text) == value.identity()


def test_the_full_plan_is_the_papers_study():
    config = yaml.safe_load((ROOT / "config.yaml").read_text())
    study = Study.of(config)
    runs = {(run.size, run.cell): run.spec for run in study.runs if run.seed == 42}
    for size in FULL.sizes:
        for cell in CELLS:
            ours, theirs = FULL.run(size, cell), runs[size, cell]
            assert ours.model == theirs.model
            assert ours.objective == theirs.objective
            assert (ours.batch, ours.windows) == (theirs.batch, theirs.windows)
            same = ("learning_rate", "betas", "weight_decay", "clip", "precision")
            for name in same:
                assert getattr(ours.training, name) == getattr(theirs.training, name)


def test_a_schedule_fits_its_time():
    # FLOPs a token by hand: 44M per-loop 1.0762e9, terminal 0.8919e9.
    costs = cells.Costs(step=0.1, compile=30.0)
    runs, steps = cells.schedule(1000.0, costs, FULL, measuring=5.0)
    assert runs == len(TRAININGS)
    longest = (920 - 6 * 5 - 4 * 30) / (0.1 * (5 + 0.8919 / 1.0762))
    assert steps == pytest.approx(longest, abs=1)
    # Three runs of two cells, since a fourth would leave each too few steps.
    assert cells.schedule(150.0, costs, FULL, 5.0).runs == 3
    assert cells.schedule(40.0, costs, FULL, 5.0) == (0, 0)
    assert cells.schedule(1e9, costs, FULL, 5.0).steps == FULL.most_steps
    eager = cells.Costs(step=0.15, compile=0.0)
    assert not cells.compiles(200.0, {"compiled": costs, "eager": eager}, FULL)
    assert cells.compiles(2000.0, {"compiled": costs, "eager": eager}, FULL)
    assert not cells.compiles(2000.0, {"eager": eager}, FULL)


def test_perplexity_by_depth_is_that_of_the_plain_reference(tokens):
    data = Tokens.open(tokens)
    spec = TINY.run("44m", "perloop-raw")
    torch.manual_seed(0)
    model = LoopedLM(spec.model).eval()
    subject = Subject(model, spec, Measurement(), data)
    stream = np.asarray(data.split("validation")[:41], dtype=np.int64)
    parameters = {n: p.double() for n, p in model.named_parameters()}
    found = cells.perplexity(subject, 40)
    # By hand: windows of 16 ids every 8; after the first, only the newest 8 targets count.
    nll = {k: 0.0 for k in (1, 2)}
    for start in range(0, 25, 8):
        ids = torch.from_numpy(stream[start : start + 17])[None]
        states = reference_model.states(parameters, ids[:, :-1], spec.model)
        for k in nll:
            each = reference_model.token_nll(parameters, states[k], k, ids[:, 1:], spec.model)
            nll[k] += each[0, 0 if start == 0 else 8 :].sum().item()
    for k, n, ce, ppl in found:
        assert n == 40
        assert ce == pytest.approx(nll[k] / 40, rel=1e-5)
        assert ppl == pytest.approx(math.exp(nll[k] / 40), rel=1e-4)


def test_an_engine_started_again_is_as_if_new():
    other = TINY.run("44m", "perloop-rms", init_std=0.02)
    used = engine(TINY.run("44m", "perloop-rms"), torch.device("cpu"))
    bench = Bench("test", TINY, torch.device("cpu"), Path("unused"), math.inf)
    for step in range(3):
        used.step(bench.ids(other), step)
    cells.restart(used, other)
    fresh = engine(other, torch.device("cpu"))
    for step in range(2):
        for each in (used, fresh):
            each.step(bench.ids(other, step), step)
    for a, b in zip(used.parameters, fresh.parameters, strict=True):
        assert torch.equal(a, b)


def test_the_references_first_step_is_the_engines():
    spec = TINY.run("129m", "perloop-rms-penalty", dropout={"rate": 0.0})
    exact = spec.model_copy(
        update={"training": spec.training.model_copy(update={"precision": "float32"})}
    )
    bench = Bench("test", TINY, torch.device("cpu"), Path("unused"), math.inf)
    plain, made = Reference(exact, bench.device, "float32"), engine(exact, bench.device)
    for step in range(3):
        plain.step(bench.ids(spec))
        made.step(bench.ids(spec), step)
    for name, parameter in made.model.named_parameters():
        torch.testing.assert_close(parameter, plain.parameters[name], rtol=1e-3, atol=1e-4)


def test_a_section_that_fails_or_hangs_stops_no_other(tokens, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "SHARES", {"cells": 1, "frontier": 1})
    paths = (ROOT / "src", ROOT / "benchmarks", ROOT / "tests")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, paths)))
    broken = tmp_path / "tokens"
    broken.mkdir()
    (broken / "tokens.json").write_text((tokens / "tokens.json").read_text())
    monkeypatch.setattr(sys, "argv", ["gpu.sh"])
    assert command.whole(given(tmp_path / "out", tokens=broken)) == 1
    record = json.loads((tmp_path / "out/gpu.json").read_text())
    assert record["sections"]["cells"]["outcome"].startswith("failed: exit code")
    assert record["sections"]["frontier"]["outcome"] == "done"
    assert "failed: exit code" in capsys.readouterr().out
    hung = command.child(given(tmp_path / "out"), "check", seconds=0.3, grace=0.0)
    assert hung["outcome"].startswith("killed")


def test_what_ran_out_of_time_is_written_down(tmp_path):
    bench = Bench("test", TINY, torch.device("cpu"), tmp_path, deadline=0.0)
    assert not bench.fits("long one", 5.0)
    with bench.case("breaks"):
        raise RuntimeError("no\nmore")
    notes = [row["outcome"] for row in rows(tmp_path, "notes-test")]
    assert notes[0].startswith("left out: needs about 5 s")
    assert notes[1] == "failed: RuntimeError: no"
    text, right = report.summary(
        tmp_path,
        {
            "gpus": [],
            "processor": "x",
            "provenance": {"versions": {}, "commit": None, "dirty": None},
            "started": "now",
            "seconds": 1,
            "sections": {"test": {"outcome": "failed"}},
        },
    )
    assert "breaks: failed: RuntimeError: no" in text
    assert right


def test_a_wrong_gradient_is_said_and_a_row_is_replaced(tmp_path):
    sheet = Sheet(tmp_path / "correctness.csv", ("cell", "path", "ok"))
    sheet.add(["a", "eager", 1], ["b", "eager", 1], key=2)
    sheet.add(["b", "eager", 0], key=2)
    assert [row["ok"] for row in rows(tmp_path, "correctness")] == ["1", "0"]
    record = {"gpus": [], "processor": "x", "sections": {}, "started": "", "seconds": 0}
    record |= {"provenance": {"versions": {}, "commit": None, "dirty": None}}
    text, right = report.summary(tmp_path, record)
    assert "WRONG: b eager 0" in text
    assert not right


def test_peaks_are_of_known_gpus_alone():
    assert peak("NVIDIA H200") == 989e12
    assert peak("NVIDIA H100 PCIe") is None
    assert peak("AMD EPYC") is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so_at_once(bare, tmp_path):
    script = [ROOT / "benchmarks/gpu.sh", "--out", tmp_path / "out"]
    result = subprocess.run(script, env=bare, capture_output=True, text=True)
    assert result.returncode == 2
    assert "no GPU that torch can use; --tiny" in result.stderr
    assert not (tmp_path / "out").exists()
