"""Parts of the GPU benchmark, each alone; tests/test_gpu_benchmark.py runs the whole."""

import csv
import math
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from torch.autograd import DeviceType

import reference_model
from blindspot.config.spec import Measurement
from blindspot.config.study import Study
from blindspot.data.tokens import Tokens
from blindspot.lm.model import LoopedLM
from blindspot.measure.subject import Subject
from toys import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

from gpu import cells, report, speed
from gpu.bench import Bench, OutOfTime, Reference, Sheet, engine
from gpu.plan import CELLS, FULL, TINY, TRAININGS


def rows(folder, name):
    with open(folder / f"{name}.csv", newline="") as file:
        return list(csv.DictReader(file))


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
    data = Tokens.open(tokens[0])
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


def test_a_training_that_time_runs_out_on_is_kept_as_unfinished(tokens, tmp_path):
    data = Tokens.open(tokens[0])
    bench = Bench("cells", TINY, torch.device("cpu"), tmp_path, time.monotonic() + 2)
    trainings = cells.Trainings(bench, data, known={})
    trainings.schedule = cells.Schedule(runs=1, steps=1_000_000)
    trainings._one(TRAININGS[0], tmp_path)
    (made,) = rows(tmp_path, "runs")
    assert made["finished"] == "0"
    assert 0 < int(made["steps"]) < 1_000_000
    assert {row["steps"] for row in rows(tmp_path, "norms")} == {made["steps"]}
    assert rows(tmp_path, "trajectory")[-1]["run"] == TRAININGS[0].name


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


def test_what_ran_out_of_time_is_written_down(tmp_path):
    bench = Bench("test", TINY, torch.device("cpu"), tmp_path, time.monotonic() + 60)
    assert not bench.fits("long one", 65.0)
    with bench.case("breaks"):
        raise RuntimeError("no\nmore")
    with pytest.raises(OutOfTime), bench.case("compiles too long"):
        bench.deadline = 0.0
        raise SystemError("what a library makes of its being interrupted")
    with pytest.raises(OutOfTime), bench.case("comes too late"):
        raise AssertionError
    notes = [row["outcome"] for row in rows(tmp_path, "notes-test")]
    assert notes[0].startswith("left out: needs about 65 s")
    assert notes[1] == "failed: RuntimeError: no"
    assert notes[2] == notes[3] == "stopped: the section's time was over"
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


def test_a_profile_counts_kernels_once():
    """An operation of the host has its kernels' time as its own, and a named range has all."""
    cpu, cuda = DeviceType.CPU, DeviceType.CUDA
    events = [
        SimpleNamespace(key=k, count=n, device_type=d, is_user_annotation=u)
        for k, n, d, u in [
            ("aten::mm", 4, cpu, False),
            ("## Call graph ##", 1, cuda, True),
            ("triton_fused", 3, cuda, False),
            ("sm90_gemm", 4, cuda, False),
        ]
    ]
    for event, gpu, own in zip(events, (70, 100, 30, 70), (5, 0, 0, 0), strict=True):
        event.self_device_time_total, event.self_cpu_time_total = gpu, own
    assert speed.spent(events, "cuda") == [(70, "sm90_gemm", 4), (30, "triton_fused", 3)]
    assert speed.spent(events, "cpu") == [(5, "aten::mm", 4)]
