"""Status: from constructed state folders, with a lock that is held, one whose holder is dead, notes
that are torn; and from what a real trainer notes."""

import fcntl
import io
import json
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console

from blindspot.config.runfiles import PROGRESS
from blindspot.config.study import Study
from blindspot.plan import progress as progress_module
from blindspot.plan.planning import Plan
from blindspot.plan.progress import holder, progress
from blindspot.plan.status import duration, status
from measured import leave
from toys import ROOT

HOLD = (
    "import sys, time; from pathlib import Path; from blindspot.training.lock import exclusive\n"
    "with exclusive(Path(sys.argv[1])):\n"
    "    print('held', flush=True); time.sleep(60)\n"
)


@pytest.fixture
def study(tmp_path: Path) -> Study:
    places = {"work": str(tmp_path / "work"), "results": str(tmp_path / "results")}
    cells = {name: None for name in ("terminal-rms", "perloop-rms")}
    sizes = {"0.1m": None}
    demo = ROOT / "studies/demo.yaml"
    return Study.load(ROOT / "config.yaml", [demo], places | {"cells": cells, "sizes": sizes})


def state(study: Study, at: int) -> Path:
    folder = study.work / "runs" / study.runs[at].name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def note(study: Study, at: int, step: int, left: float = 100, ago: float = 0, resumes: int = 0):
    """What a trainer notes with each line that it shows (`training.runlog.note`)."""
    then = (datetime.now(UTC) - timedelta(seconds=ago)).isoformat(timespec="seconds")
    value = {"time": then, "step": step, "steps": 200, "resumes": resumes, "ce": 5.25,
             "norm": 1234.5, "tokens_per_s": 7593.0, "seconds_left": left}  # fmt: skip
    (state(study, at) / PROGRESS).write_text(json.dumps(value))


@pytest.fixture
def held(study: Study):
    """The state folder of run 0, locked by another process of this machine."""
    folder = state(study, 0)
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None and other.stdout.readline() == "held\n"
    yield other
    other.kill()
    other.wait()


def test_nothing_there_is_waiting(study: Study):
    found = progress(study)
    assert [p.state for p in found] == ["waiting"] * 6
    assert {p.steps for p in found} == {300}


def test_a_live_holder_is_running_and_a_dead_one_interrupted(study: Study, held):
    note(study, 0, 100, ago=10)
    (first, *rest) = progress(study)
    assert first.state == "running"
    assert (first.step, first.steps, first.ce, first.norm) == (100, 200, 5.25, 1234.5)
    assert first.tokens_per_s == 7593.0
    assert first.left == pytest.approx(90, abs=2)
    assert first.holder and first.holder.pid == held.pid
    assert first.holder.host == socket.gethostname()
    assert {p.state for p in rest} == {"waiting"}
    held.kill()
    held.wait()
    (first, *_) = progress(study)
    assert first.state == "interrupted" and first.step == 100
    assert first.holder and first.holder.alive is False


def test_looking_takes_no_lock(study: Study, monkeypatch):
    """A trainer that starts while someone looks must not be refused."""
    folder = state(study, 1)
    (folder / "lock").write_text(json.dumps({"host": socket.gethostname(), "pid": 1}))
    before = (folder / "lock").stat().st_mtime_ns

    def refuse(*_: object) -> None:
        raise AssertionError("a lock was taken")

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(fcntl, "lockf", refuse)
    progress(study)
    assert holder(folder) is not None
    assert (folder / "lock").stat().st_mtime_ns == before


def test_a_torn_note_is_passed_over(study: Study, held):
    for torn in (b'{"time": "2026', b"\xff\xfe step", b"[]", b'{"step": 3, "steps": null}'):
        (state(study, 0) / PROGRESS).write_bytes(torn)
        (first, *_) = progress(study)
        assert first.state == "running" and first.ce is None
    # The lock's record, too, may be half written.
    (state(study, 0) / "lock").write_text('{"host": "no')
    (first, *_) = progress(study)
    assert first.state == "running"


def test_an_interrupted_run_says_how_often_and_why(study: Study):
    note(study, 1, 75, resumes=2)
    (state(study, 1) / "lock").write_text(json.dumps({"host": socket.gethostname(), "pid": 1}))
    path = study.work / "logs/train" / f"{study.runs[1].name}.log"
    path.parent.mkdir(parents=True)
    path.write_text(f"x\nerror: {study.runs[1].name}: stopped by SIGUSR2 at step 80\nrest\n")
    found = progress(study)[1]
    assert (found.state, found.resumes, found.step) == ("interrupted", 2, 75)
    assert found.error == "stopped by SIGUSR2 at step 80"


def test_failed_finished_and_trained(study: Study):
    failed, done, trained = study.runs[0], study.runs[1], study.runs[2]
    folder = study.results / "runs" / failed.name
    folder.mkdir(parents=True)
    error = f"{failed.name}: at step 15 the loss is nan"
    (folder / "failed.json").write_text(json.dumps({"error": error}))
    folder = study.results / "runs" / done.name
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"steps": 200}))
    (state(study, 2) / "weights.safetensors").write_bytes(b"")
    note(study, 2, 200, left=0)
    found = progress(study)
    assert [p.state for p in found[:3]] == ["failed", "finished", "trained"]
    assert found[0].error == "at step 15 the loss is nan"
    assert not found[1].measured and found[1].steps == 200
    leave(study, done.name)
    assert progress(study)[1].measured
    shown = Console(width=160, record=True, file=io.StringIO())
    shown.print(status(study))
    text = shown.export_text()
    assert "6 runs: 1 trained, 1 failed, 3 waiting, 1 finished; 1 measured" in text
    assert "at step 15 the loss is nan" in text and trained.cell in text


@pytest.mark.parametrize(
    ("age", "slurm", "jobs", "expected"),
    [
        (60, None, None, "running"),
        (7200, None, None, "interrupted"),
        (7200, "77", {"77"}, "running"),
        (60, "77", {"78"}, "interrupted"),
        (60, "77", None, "running"),
    ],
)
def test_a_holder_elsewhere_is_asked_of_slurm_or_judged_by_its_note(
    study: Study, monkeypatch, age, slurm, jobs, expected
):
    record = {"host": "node7", "pid": 4711} | ({"slurm_job": slurm} if slurm else {})
    (state(study, 0) / "lock").write_text(json.dumps(record))
    note(study, 0, 50, ago=age)
    monkeypatch.setattr(progress_module, "_slurm_jobs", lambda: jobs)
    (first, *_) = progress(study)
    assert first.state == expected
    assert first.holder and "node7" in str(first.holder)


def test_slurm_is_asked_once_and_may_fail(tmp_path: Path, monkeypatch):
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\nprintf '77\\n78\\n'\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SHELL", "/bin/sh")
    assert progress_module._slurm_jobs() == {"77", "78"}
    squeue.write_text("#!/bin/sh\nexit 1\n")
    assert progress_module._slurm_jobs() is None
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert progress_module._slurm_jobs() is None


def test_a_plan_of_many_runs_asks_slurm_once(study: Study, monkeypatch):
    asked = []
    monkeypatch.setattr(progress_module, "_slurm_jobs", lambda: asked.append(1) or {"77"})
    for number in range(3):
        record = {"host": "node7", "pid": 4711, "slurm_job": "77"}
        (state(study, number) / "lock").write_text(json.dumps(record))
    assert [planned.action for planned in Plan(study).runs] == ["train"] * len(study.runs)
    assert asked == [1]


def test_durations():
    assert [duration(s) for s in (4.4, 185, 7800, 273600)] == [
        "4 s", "3 min 05 s", "2 h 10 min", "3 d 4 h"
    ]  # fmt: skip


def test_the_command_line_reads_the_config_as_snakemake_does(study: Study, tmp_path: Path):
    study_file = tmp_path / "mine.yaml"
    study_file.write_text(f"study: mine\nwork: {study.work}\nresults: {tmp_path / 'results'}\n")
    started = time.monotonic()
    verb = [sys.executable, "-c", "from blindspot.cli import main; main()", "status"]
    done = subprocess.run(
        [*verb, "--configfile", "studies/demo.yaml", "--configfile", str(study_file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - started < 20
    assert "Study mine: 24 runs: 24 waiting" in done.stdout
    missing = subprocess.run(verb, cwd=tmp_path, capture_output=True, text=True)
    assert missing.returncode == 2 and "config.yaml: no such config file" in missing.stderr
