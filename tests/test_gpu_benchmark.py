"""benchmarks/gpu.sh at toy size on the CPU, where torch, numpy and wheels are all there is."""

import argparse
import csv
import hashlib
import json
import math
import os
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch

from toys import ROOT
from training import toy_tokens

sys.path.insert(0, str(ROOT / "benchmarks"))

from gpu import __main__ as command
from gpu import speed
from gpu.plan import CELLS, TINY, TRAININGS

#: All that blindspot's installs bring, but for numpy, torch and what torch needs itself.
MISSING = [
    "annotated_types",
    "datasets",
    "jinja2",
    "matplotlib",
    "mwparserfromhell",
    "pandas",
    "pydantic",
    "pydantic_core",
    "rich",
    "safetensors",
    "scipy",
    "seaborn",
    "snakemake",
    "submitit",
    "tensorboard",
    "tokenizers",
    "typer",
    "typing_inspection",
    "yaml",
]
#: What docs/gpu.md has people carry to the GPU machine.
CARRIED = [
    "annotated_types",
    "filelock",
    "pydantic",
    "pydantic_core",
    "pyyaml",
    "safetensors",
    "typing_inspection",
]
BARE = f"""
import sys
from importlib.machinery import PathFinder

class Rest(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        found = super().find_spec(name, path, target)
        installed = found and str(found.origin).startswith(sys.prefix)
        return None if installed and name.partition(".")[0] in {MISSING} else found

sys.meta_path = [Rest if finder is PathFinder else finder for finder in sys.meta_path]
"""


def wheel(name, folder):
    """A wheel of an installed distribution, as it came from the index."""
    found = distribution(name)
    tag = next(x[5:] for x in found.read_text("WHEEL").splitlines() if x.startswith("Tag: "))
    with ZipFile(folder / f"{name}-{found.version}-{tag}.whl", "w") as file:
        for path in found.files:
            if not {"..", "__pycache__"} & set(path.parts):
                file.write(path.locate(), path)


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """The environment of a machine that has Python, torch and numpy alone, and some wheels."""
    folder, wheels = tmp_path_factory.mktemp("bare"), tmp_path_factory.mktemp("wheels")
    (folder / "sitecustomize.py").write_text(BARE)
    for name in CARRIED:
        wheel(name, wheels)
    return os.environ | {
        "PYTHONPATH": str(folder),
        "PYTHON": sys.executable,
        "WHEELS": str(wheels),
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    return toy_tokens(tmp_path_factory.mktemp("data"))[0]


@pytest.fixture(scope="module")
def done(bare, tokens, tmp_path_factory):
    """One whole run; its folder, what it printed, and the commit when it began."""
    out = tmp_path_factory.mktemp("run") / "out"
    script = [ROOT / "benchmarks/gpu.sh", "--tiny", "--minutes", "10"]
    before = head()
    result = subprocess.run(
        [*script, "--out", out, "--tokens", tokens],
        env=bare,
        cwd=out.parent,
        capture_output=True,
        text=True,
    )
    logs = "".join(path.read_text() for path in out.glob("log-*.txt"))
    assert result.returncode == 0, result.stdout + result.stderr + logs
    return out, result.stdout, before


def head():
    """The commit of this checkout; None where git knows none."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or None


def rows(folder, name):
    with open(folder / f"{name}.csv", newline="") as file:
        return list(csv.DictReader(file))


def given(out, **changes):
    values = {"out": out, "tokens": None, "minutes": 1.0, "tiny": True}
    return argparse.Namespace(**(values | changes))


def test_every_section_ends_and_nothing_is_left_out(done):
    out, printed, before = done
    record = json.loads((out / "gpu.json").read_text())
    assert {n: s["outcome"] for n, s in record["sections"].items()} == dict.fromkeys(
        ("check", "speed", "frontier", "cells"), "done"
    )
    for name in record["sections"]:
        assert {row["outcome"] for row in rows(out, f"notes-{name}")} == {"done"}, name
    assert record["provenance"]["commit"] in (before, head()), "somebody may commit meanwhile"
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
    profile = [r for r in rows(done[0], "profile") if r["size"] == "44m"]
    assert profile[0]["kernel"] == "(all)"
    parts = [float(r["ms_per_step"]) for r in profile]
    assert parts[1:] == sorted(parts[1:], reverse=True)
    assert sum(parts[1:]) <= parts[0] * 1.001
    full = 2 * 64**3 / float(square["seconds"]) / 1e12
    assert float(square["tflops"]) == pytest.approx(full, rel=1e-4)


def test_the_frontier_has_every_depth_of_both_sizes(done):
    seen = {(row["architecture"], int(row["k"])) for row in rows(done[0], "frontier")}
    names = {f"{size}-{readout}" for size in TINY.sizes for readout in ("rms", "raw")}
    assert seen == {(name, k) for name in names for k in range(1, TINY.loops + 1)}


def test_trainings_have_equal_steps_and_show_what_readouts_do(done):
    trained = rows(done[0], "runs")
    tokens = TINY.sizes["44m"]["batch"] * TINY.context
    for row in trained:
        # The first step, which may compile, counts for neither time nor tokens.
        assert int(row["tokens"]) == TINY.most_steps * tokens
        seen = float(row["tokens_per_s"]) * float(row["seconds"])
        assert seen == pytest.approx((TINY.most_steps - 1) * tokens, rel=1e-3)
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
        mine = [r for r in logged if r["run"] == training.name and r["split"] == "train"]
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


def test_without_wheels_it_says_where_to_get_them(bare, tmp_path):
    script = [ROOT / "benchmarks/gpu.sh", "--tiny", "--out", tmp_path / "out"]
    result = subprocess.run(
        script, env=bare | {"WHEELS": str(tmp_path)}, capture_output=True, text=True
    )
    assert result.returncode == 2
    assert f"{tmp_path} has no wheels" in result.stderr
    assert "docs/gpu.md" in result.stderr
    assert not (tmp_path / "out").exists()


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


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so_at_once(bare, tmp_path):
    script = [ROOT / "benchmarks/gpu.sh", "--out", tmp_path / "out"]
    result = subprocess.run(script, env=bare, capture_output=True, text=True)
    assert result.returncode == 2
    assert "no GPU that torch can use; --tiny" in result.stderr
    assert not (tmp_path / "out").exists()
