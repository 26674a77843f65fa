"""Forecast: FLOPs by hand, reasons from the nearest finished run, hours from records and
calibrations, and none of it with torch."""

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from blindspot import provenance
from blindspot.config.study import Run, Study
from blindspot.declared import MEASUREMENTS
from blindspot.errors import BlindspotError
from blindspot.plan import calibration
from blindspot.plan import estimate as estimate_module
from blindspot.plan.estimate import Estimator, kind_of
from blindspot.plan.forecast import Forecast
from blindspot.plan.planning import Plan
from blindspot.plan.workload import step_class, step_flops
from measured import leave
from toys import ROOT

DEMO = ROOT / "studies/demo.yaml"
PROCESSOR = provenance.processor()


def load(folder: Path, **override: object) -> Study:
    places = {"work": str(folder / "work"), "results": str(folder / "results")}
    cells = {name: None for name in ("terminal-rms", "perloop-rms", "perloop-raw")}
    small = {"d_model": 64, "layers": 1, "heads": 2, "batch": 4}
    wide = {"d_model": 96, "layers": 1, "heads": 3, "batch": 4, "seeds": [42]}
    chosen = {"cells": cells, "sizes": {"0.1m": small, "0.2m": wide}}
    chosen |= {"tokenizer": {"kind": "bpe", "vocab_size": 512}}
    chosen |= {"training": {"steps": 200, "learning_rate": 0.002, "validate_every": 75}}
    return Study.load(ROOT / "config.yaml", [DEMO], places | chosen | override)


def finish(study: Study, run: Run, seconds: float = 20.0, measured: bool = True, **more: object):
    """A record as a training leaves it; `more` goes into its provenance."""
    folder = study.results / "runs" / run.name
    folder.mkdir(parents=True)
    steps = more.pop("steps", run.spec.training.steps)
    origin = {"device": PROCESSOR, "threads": 1, "seconds": seconds, "resumes": 0,
              "process_seconds": seconds + 5.0} | more  # fmt: skip
    splits = {name: {"length": n} for name, n in
              (("train", 100_001), ("validation", 5_000), ("test", 5_000))}  # fmt: skip
    record = {"name": run.name, "hash": run.spec.hash, "spec": run.spec.identity(),
              "steps": steps, "data": {"splits": splits}, "provenance": origin}  # fmt: skip
    (folder / "run.json").write_text(json.dumps(record))
    if measured:
        measure(study, run)
    return folder


def measure(study: Study, run: Run, seconds: float = 8.0) -> None:
    leave(study, run.name, lambda name: {"seconds": seconds / len(MEASUREMENTS)})


def calibrate(study: Study, seconds: float, start: float = 6.0, device: str = PROCESSOR,
              load: float = 0.1, compiled: bool = False) -> None:  # fmt: skip
    folder = study.work / "calibration"
    folder.mkdir(parents=True, exist_ok=True)
    steps = {
        step_class(run.spec): {"seconds": seconds, "flops": step_flops(run.spec),
                               "validation_seconds_per_token": 1e-5}
        for run in study.runs
    }  # fmt: skip
    value = {"code": calibration.code(), "device": device, "threads": 1, "start": start,
             "load": load, "made": "2026-01-01T00:00:00+00:00", "steps": steps,
             "compiled": compiled, "compile_seconds": 31.0 * compiled}  # fmt: skip
    (folder / "x.json").write_text(json.dumps(value))


def rows_of(study: Study, cores: int = 2) -> dict[tuple[str, str], dict[str, str]]:
    forecast = Forecast(study, cores)
    text = forecast.csv(forecast.rows())
    return {(r["size"], r["cell"]): r for r in csv.DictReader(io.StringIO(text))}


def why(study: Study, cell: str, size: str = "0.1m") -> str:
    return rows_of(study)[size, cell]["why"]


def test_steps_of_a_random_k_are_a_class_of_their_own():
    study = Study.load(ROOT / "config.yaml", [ROOT / "studies/remedies.yaml"])
    by_class: dict[str, set[float]] = {}
    for run in study.runs:
        by_class.setdefault(step_class(run.spec), set()).add(step_flops(run.spec))
    assert all(len(flops) == 1 for flops in by_class.values())


def test_flops_by_hand(tmp_path: Path):
    """0.1m: d = 64, L = 1, K = 4, V = 512, T = 64, batch 4, 200 steps, 3 seeds.

    A block's matrices have 4 d^2 (attention) + 12 d^2 (feed-forward of three) weights; two FLOPs
    each. Causal attention: 2 products of d, T/2 keys on average. A head: 2 d V. Backward: twice.
    """
    d, V, T, K, tokens = 64, 512, 64, 4, 200 * 4 * 64
    block = 2 * 16 * d * d + 2 * 2 * d * (T / 2)
    per_loop = 3 * (K * block + K * 2 * d * V) * tokens
    terminal = 3 * (K * block + 2 * d * V) * tokens
    rows = rows_of(load(tmp_path))
    assert float(rows["0.1m", "perloop-rms"]["flops_per_run"]) == per_loop
    assert float(rows["0.1m", "perloop-rms"]["flops"]) == 3 * per_loop
    assert float(rows["0.1m", "terminal-rms"]["flops_per_run"]) == terminal
    assert rows["0.2m", "perloop-rms"]["runs"] == "1"


def test_the_papers_flops(tmp_path: Path):
    """paper.md: 1.076e9 FLOPs a token and about 1.68e9 tokens, known before any data is there."""
    study = Study.load(ROOT / "config.yaml", override={"work": str(tmp_path)})
    rows = rows_of(study)
    assert float(rows["44m", "perloop-rms"]["flops_per_run"]) == pytest.approx(
        1.0762e9 * 1.68e9, rel=2e-3
    )


def test_epochs_need_tokens_which_a_record_or_the_files_tell(tmp_path: Path):
    override = {"training": {"steps": None, "epochs": 2}}
    study = load(tmp_path, **override)
    estimator = Estimator(study, [])
    assert estimator.steps(study.runs[0].spec) is None
    assert rows_of(study)["0.1m", "perloop-rms"]["flops"] == ""
    study.tokens.mkdir(parents=True)
    splits = {"train": {"length": 10_001}}
    (study.tokens / "tokens.json").write_text(json.dumps({"splits": splits}))
    # floor((10,001 - 1 - 64) / 32) + 1 = 311 windows; 2 epochs in batches of 4.
    assert Estimator(study, []).steps(study.runs[0].spec) == 2 * 311 // 4


def test_counts_and_reasons(tmp_path: Path):
    study = load(tmp_path)
    by_cell = {(r.size, r.cell, r.seed): r for r in study.runs}
    assert why(study, "perloop-rms") == "new"
    for seed in (42, 101):
        finish(study, by_cell["0.1m", "perloop-rms", seed])
    row = rows_of(study)["0.1m", "perloop-rms"]
    assert [row[k] for k in ("runs", "cached", "to_train", "to_measure")] == ["3", "2", "1", "0"]
    assert row["why"] == "new seed"
    near = "0.1m/perloop-rms"
    assert why(study, "perloop-raw") == f'new (nearest {near}: model.readout "rms" -> "raw")'
    assert why(study, "terminal-rms") == (
        f'new (nearest {near}: objective.loss "per-loop" -> "terminal")'
    )
    changed = load(tmp_path, training={"learning_rate": 0.005, "steps": 100, "validate_every": 75})
    assert why(changed, "perloop-rms") == (
        "seed 42, 101: changed: training.steps 200 -> 100; training.learning_rate 0.002 -> 0.005; "
        f"seed 202: new (nearest {near}: training.steps 200 -> 100; "
        "training.learning_rate 0.002 -> 0.005)"
    )
    again = load(tmp_path, reuse=False)
    assert why(again, "perloop-rms") == "to be made anew (reuse: false)"
    renamed = {"cells": {"other": {"loss": "per-loop", "readout": "rms"}}}
    was = by_cell["0.1m", "perloop-rms", 42].name
    expected = f"seed 42: new here; finished as {study.results}/runs/{was}; seed 101: new here"
    assert why(load(tmp_path, **renamed), "other").startswith(expected)


def test_a_raised_revision_is_called_so(tmp_path: Path):
    study = load(tmp_path)
    for run in study.runs:
        spec = run.spec.model_copy(update={"revision": run.spec.revision - 1})
        finish(study, Run(run.size, run.cell, run.seed, spec))
    now = study.runs[0].spec.revision
    assert why(study, "perloop-rms") == f"training revision raised {now - 1} -> {now}"


def test_measurement_only_and_impossible(tmp_path: Path):
    study = load(tmp_path)
    for run in study.runs:
        finish(study, run)
    settings = study.config.measurement.identity() | {"norm_tokens": 4096}
    other = load(tmp_path, measurement=settings)
    for run in other.runs:
        if run.cell != "perloop-raw":
            state = other.work / "runs" / run.name
            state.mkdir(parents=True)
            (state / "weights.safetensors").write_bytes(b"")
    rows = rows_of(other)
    row = rows["0.1m", "perloop-rms"]
    assert [row[k] for k in ("cached", "to_train", "to_measure", "impossible")] == list("0030")
    assert row["why"] == "norms, collapse: norm_tokens 8192 -> 4096"
    assert float(row["flops"]) == 0 and float(row["train_hours"]) == 0
    row = rows["0.1m", "perloop-raw"]
    assert [row[k] for k in ("to_train", "to_measure", "impossible")] == list("003")
    assert row["why"].endswith("its weights are gone") and float(row["measure_hours"]) == 0
    assert rows_of(study)["0.1m", "perloop-rms"]["why"] == ""


def test_an_interrupted_run_costs_what_is_left(tmp_path: Path):
    study = load(tmp_path)
    state = study.work / "runs" / study.runs[0].name
    state.mkdir(parents=True)
    (state / "step-00000150.safetensors").write_bytes(b"")
    plan = Plan(study)
    assert [p.left for p in plan.runs[:2]] == [0.25, 1.0]
    assert "goes on at 75%" in plan.why(plan.runs[:1])


def test_hours_from_records_of_the_same_shape(tmp_path: Path):
    """20 s a training, 5 s around it, 8 s of measuring: of a run not seen, 25 + 13 and Snakemake's
    share."""
    study = load(tmp_path)
    first = study.runs[0]
    finish(study, first)
    finish(study, study.runs[1], device="another processor", seconds=500.0)
    estimator = Estimator(study, Plan(study).records)
    assert estimator.step(first.spec) == pytest.approx(20 / 200)
    around = 5.0 + estimate_module.JOB
    assert estimator.train(study.runs[2].spec) == pytest.approx(20 + around)
    assert estimator.measure(study.runs[2].spec, MEASUREMENTS) == pytest.approx(8 + around)
    # On two devices each works half as long, and both start.
    assert estimator.train(study.runs[2].spec, gpus=2) == pytest.approx(20 + 2 * around)
    row = rows_of(study)["0.1m", "terminal-rms"]
    assert float(row["train_hours"]) == pytest.approx((20 + around) / 3600)
    # Of another objective: scaled by FLOPs, and said so.
    loop = next(r for r in study.runs if r.cell == "perloop-rms")
    ratio = step_flops(loop.spec) / step_flops(first.spec)
    assert estimator.step(loop.spec) == pytest.approx(20 / 200 * ratio)
    assert any("scaled by FLOPs" in base for base in estimator.bases)


def test_a_calibration_of_this_processor_comes_first(tmp_path: Path):
    study = load(tmp_path)
    first = study.runs[0]
    finish(study, first)
    calibrate(study, seconds=0.05)
    estimator = Estimator(study, Plan(study).records)
    # 32 windows of 64 tokens are validated every 75 steps.
    per_step = 0.05 + 32 * 64 / 75 * 1e-5
    assert estimator.step(first.spec) == pytest.approx(per_step)
    assert estimator.train(first.spec) == pytest.approx(200 * per_step + 6 + estimate_module.JOB)
    # Measuring took 8 s where a step took 0.1 s.
    assert estimator.measure(first.spec, MEASUREMENTS) == pytest.approx(
        8 * per_step / 0.1 + 6 + estimate_module.JOB
    )
    assert next(iter(estimator.bases)).startswith(f"calibration on {PROCESSOR}, 1 thread")
    calibrate(study, seconds=0.05, load=3.0)
    busy = Estimator(study, [])
    busy.step(first.spec)
    assert "on a busy machine" in next(iter(busy.bases))
    calibrate(study, seconds=0.05, device="another")
    assert Estimator(study, []).calibration is None


def test_compiling_is_no_part_of_a_step_and_is_added_to_each_start(tmp_path: Path):
    study = load(tmp_path, execution={"compile": True})
    spec = study.runs[0].spec
    for run, seconds in zip(study.runs[:3], (40.0, 50.0, 70.0), strict=True):
        finish(study, run, compile_seconds=seconds, process_seconds=25.0 + seconds)
    records = Plan(study).records
    eager = load(tmp_path, execution={"compile": False})
    with_, without = Estimator(study, records), Estimator(eager, records)
    assert with_.step(spec) == without.step(spec)
    assert with_.start == without.start
    assert with_.train(spec) == pytest.approx(without.train(spec) + 50.0)
    assert with_.train(spec, 0.5, gpus=2) == pytest.approx(without.train(spec, 0.5, 2) + 100.0)
    # A calibration of the other way does not count; without records its own compile time does.
    calibrate(study, seconds=0.05, compiled=True)
    assert Estimator(eager, []).calibration is None
    assert Estimator(study, []).compile_seconds == 31.0


def test_records_of_older_revisions_still_tell_times():
    old = {"revision": 1, "tokenizer": {"kind": "bpe", "vocab_size": 512}}
    assert estimate_module.agree(old, old | {"revision": 2, "later": True})
    assert not estimate_module.agree(old, old | {"tokenizer": {"kind": "bpe", "vocab_size": 8}})
    assert not estimate_module.agree(None, old) and not estimate_module.agree({}, old)


def test_a_calibration_of_other_code_does_not_count(tmp_path: Path, monkeypatch):
    study = load(tmp_path)
    calibrate(study, seconds=0.05)
    assert Estimator(study, []).calibration is not None
    monkeypatch.setattr(calibration, "code", lambda: "other")
    assert Estimator(study, []).calibration is None


def test_wall_price_and_total(tmp_path: Path, monkeypatch):
    """Six jobs of 10 s on 2 cores: the work shared, half a job of raggedness, publishing."""
    study = load(tmp_path, sizes={"0.1m": None}, forecast={"rate": 36.0, "currency": "EUR"})
    monkeypatch.setattr(Estimator, "train", lambda self, spec, left=1.0, gpus=1: 7.0 * left)
    monkeypatch.setattr(Estimator, "measure", lambda self, spec, names: 3.0)
    monkeypatch.setattr(Estimator, "throughput", lambda self, size: 4.0)
    monkeypatch.setattr(Forecast, "_published", lambda self: 0.0)
    study.tokens.mkdir(parents=True)
    (study.tokens / "tokens.json").write_text("{}")
    forecast = Forecast(study, cores=2)
    rows = forecast.rows()
    assert forecast.wall(rows, 2) == pytest.approx(90 / 2 + 5 / 2 + 4)
    assert forecast.wall(rows, 1) == pytest.approx(90 + 4)
    assert forecast.wall(rows, 100) == pytest.approx(10 + 4)  # no less than one run's chain
    assert float(rows_of(study)["0.1m", "perloop-rms"]["cost"]) == pytest.approx(36 * 30 / 3600)
    # Two devices a run spend as much together, and a run's own chain is shorter.
    shared = load(tmp_path, sizes={"0.1m": {"d_model": 64, "layers": 1, "heads": 2, "batch": 4,
                                            "gpus": 2}})  # fmt: skip
    assert Forecast(shared, 2).wall(Forecast(shared, 2).rows(), 100) == pytest.approx(7 / 2 + 3 + 4)
    total = forecast.total(rows)
    assert "9 trainings, 9 measurements, 1 timings" in total
    assert "0.94 EUR" in total and "on 2 cores" in total


def test_the_study_that_decides_is_hours_on_two_cores(tmp_path: Path):
    """77 trainings of 1,000 steps: their FLOPs are those of at most six hours of two cores."""
    there = {"work": str(tmp_path), "results": str(tmp_path / "r")}
    study = Study.load(ROOT / "config.yaml", [ROOT / "studies/small.yaml"], there)
    forecast = Forecast(study, 2)
    assert len(study.runs) == 13 * 5 + 4 * 3
    flops = sum(row.flops or 0 for row in forecast.rows())
    # Two slow cores do some 2.5e10 FLOP/s each.
    assert 0.5 < flops / 2 / 2.5e10 / 3600 < 6


def paper(folder: Path, **override: object) -> Study:
    places = {"work": str(folder), "results": str(folder / "r"), "device": "cuda"}
    return Study.load(ROOT / "config.yaml", override=places | override)


def test_without_records_hours_follow_from_flops_peak_and_an_assumed_share(tmp_path: Path):
    """989 TFLOP/s of an H200. Per-loop cells train with 1.0762e9 and 3.143e9 FLOPs a token,
    terminal ones with 0.8919e9 and 2.867e9; 1.68e9 tokens, three seeds."""
    study = paper(tmp_path, forecast={"share": 0.4})
    terminal = sum(r.spec.objective.loss == "terminal" for r in study.runs if r.size == "44m") / 3
    a_token = 3 * ((7 - terminal) * (1.0762e9 + 3.143e9) + terminal * (0.8919e9 + 2.867e9))
    forecast = Forecast(study, 2)
    rows = forecast.rows()
    trained = sum(row.train or 0 for row in rows) / 3600
    by_hand = a_token * 1.68e9 / (0.4 * 989e12) / 3600
    assert trained == pytest.approx(by_hand, rel=5e-3)
    # The issue reckons all cells as per-loop ones.
    assert (forecast.seconds(rows) or 0) / 3600 == pytest.approx(104, rel=0.05)
    total = forecast.total(rows)
    assert "GPU-hours at an assumed 40% of an H200's peak (" in total
    beside = [float(x) for x in re.findall(r"([\d.]+) at (?:20|50)%", total)]
    assert beside == pytest.approx([by_hand * 0.4 / 0.2, by_hand * 0.4 / 0.5], rel=0.02)
    notes = " ".join(forecast.notes(rows))
    assert "Hours rest on an assumed 40% of the peak of an H200, 989 TFLOP/s in bf16" in notes
    assert "blindspot calibrate" in notes
    assert "Assumes 210,000,000 training tokens" in notes
    console = Console(width=400, file=io.StringIO())
    console.print(forecast.render(rows))
    assert "with blindspot[train]: `blindspot calibrate`" in console.file.getvalue()
    assert max(map(len, total.splitlines())) < 200 and "?" not in total + notes


def test_the_gpu_that_is_asked_for_decides(tmp_path: Path):
    study = paper(tmp_path, forecast={"device": "a100", "share": 0.5})
    spec = study.runs[0].spec
    step = Estimator(study, []).step(spec)
    assert step == pytest.approx(step_flops(spec) / (0.5 * 312e12))
    slow = paper(tmp_path, forecast={"device": "a100", "share": 0.5},
                 training={"precision": "float32"})  # fmt: skip
    spec = slow.runs[0].spec
    assert Estimator(slow, []).step(spec) == pytest.approx(step_flops(spec) / (0.5 * 19.5e12))
    # Times of another GPU say nothing of it, unless none was asked for.
    finish(study, study.runs[0], device="NVIDIA H100 PCIe", steps=100)
    assert not Estimator(study, Plan(study).records).timed
    assert Estimator(paper(tmp_path), Plan(study).records).timed
    with pytest.raises(BlindspotError, match=r"forecast.device.*'h2oo'.*H200"):
        paper(tmp_path, forecast={"device": "h2oo"})


def test_a_core_has_an_assumed_rate_too(tmp_path: Path):
    study = load(tmp_path)
    forecast = Forecast(study, 2)
    total = forecast.total(forecast.rows())
    spec = study.runs[0].spec
    assert forecast.estimator.step(spec) == pytest.approx(step_flops(spec) / 18e9)
    assert "core-hours;" in total and "?" not in total
    assert "an assumed 18 GFLOP/s of a core" in forecast.notes(forecast.rows())[0]


def test_what_needs_tokens_is_told_later(tmp_path: Path):
    study = load(tmp_path, training={"steps": None, "epochs": 2})
    forecast = Forecast(study, 2)
    rows = forecast.rows()
    assert "told once the token files are there" in forecast.total(rows)
    assert rows[0].seconds is None


def test_nothing_to_do(tmp_path: Path):
    study = load(tmp_path)
    for run in study.runs:
        finish(study, run)
    for size in study.config.sizes:
        path = study.results / "throughput" / f"{size}-{study.throughput_hash(size)}.csv"
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    forecast = Forecast(study, 2)
    said = forecast.total(forecast.rows())
    assert said.endswith("nothing to train or to measure, 12 runs are there")


def test_device_kinds():
    for name in ("NVIDIA H200", "Tesla V100-SXM2-16GB", "AMD Instinct MI250X", "Quadro RTX 8000"):
        assert kind_of(name) == "cuda"
    for name in ("AMD EPYC", "Intel(R) Xeon(R) Platinum 8480+", "Apple M2", "x86_64"):
        assert kind_of(name) == "cpu"


def test_the_verb_needs_no_torch(tmp_path: Path):
    """Nor pandas; and it works from what is there."""
    places = {"work": str(tmp_path / "work"), "results": str(tmp_path / "results")}
    study = Study.load(ROOT / "config.yaml", [DEMO], places)
    finish(study, study.runs[0])
    blocker = "import sys\nfor name in ('torch', 'pandas', 'tokenizers', 'datasets'):\n"
    (tmp_path / "sitecustomize.py").write_text(f"{blocker}    sys.modules[name] = None\n")
    verb = [sys.executable, "-c", "from blindspot.cli import main; main()", "forecast"]
    done = subprocess.run(
        [*verb, "--configfile", str(DEMO), "--override", json.dumps(places), "--cores", "2"],
        cwd=ROOT,
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "recorded runs of the same shape" in done.stdout
    written = list(csv.DictReader((study.results / "forecast.csv").open()))
    assert len(written) == 8 and written[0]["cached"] == "1"
