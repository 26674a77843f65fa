"""Where results come from: every record says it, tables show it, revisions are never mixed."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

import synthetic
from blindspot import provenance
from blindspot.collect.collect import collect
from blindspot.config.revisions import THROUGHPUT_REVISION
from blindspot.config.study import Study
from blindspot.errors import BlindspotError
from blindspot.files import write_record
from blindspot.publish import tables

SMALL = {"sizes": ["44m"], "cells": ["terminal-rms", "perloop-rms"], "seeds": [42, 101]}


def study_in(folder: Path) -> Study:
    return synthetic.make_study(folder, steps=400, **SMALL)


@pytest.fixture
def results(tmp_path: Path) -> Study:
    study = study_in(tmp_path / "results")
    synthetic.write(study)
    return study


def change(path: Path, edit: Callable[[dict], None]) -> None:
    value = json.loads(path.read_text())
    edit(value)
    write_record(path, value)


def test_a_record_says_command_versions_requeues_and_the_life_of_its_process(monkeypatch):
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    found = provenance.collect()
    git = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True
    )
    assert found["commit"] == git.stdout.strip()
    assert found["versions"]["python"] == sys.version.split()[0]
    assert found["versions"]["numpy"] == __import__("numpy").__version__
    assert found["requeues"] == 2
    code = (
        "import time; from blindspot.provenance import process_seconds as p; a = p();"
        "time.sleep(0.5); print(a, p())"
    )
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    whole = time.monotonic() - started
    first, last = map(float, done.stdout.split())
    assert last - first == pytest.approx(0.5, abs=0.2)
    assert 0.5 < last <= whole + 0.05


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A repository of one's own that has the module under version control; its package."""
    package = tmp_path / "clone" / "src" / "blindspot"
    package.mkdir(parents=True)
    shutil.copy(provenance.__file__, package)
    (tmp_path / "clone" / "notes.txt").write_text("notes")
    git(tmp_path / "clone", "init", "--quiet")
    git(tmp_path / "clone", "add", "--all")
    git(package, "commit", "--quiet", "--message", "first")
    return package


def test_a_commit_is_that_of_the_code_and_new_modules_are_changes(code: Path, monkeypatch):
    clean = {"commit": git(code, "rev-parse", "HEAD"), "dirty": False}
    assert provenance._commit(code) == clean
    (code.parents[1] / "results.csv").write_text("new, and no code")
    assert provenance._commit(code) == clean
    # Variables of another repository say nothing of this one.
    monkeypatch.setenv("GIT_DIR", str(code.parents[2] / "nowhere"))
    monkeypatch.setenv("GIT_WORK_TREE", str(code.parents[2]))
    assert provenance._commit(code) == clean
    monkeypatch.delenv("GIT_DIR")
    monkeypatch.delenv("GIT_WORK_TREE")
    (code.parent / "other_package").mkdir()
    (code.parent / "other_package" / "new.py").write_text("")
    assert provenance._commit(code) == clean | {"dirty": True}
    shutil.rmtree(code.parent / "other_package")
    (code.parents[1] / "notes.txt").write_text("changed")
    assert provenance._commit(code) == clean | {"dirty": True}


def test_a_repository_around_the_code_is_not_the_codes(code: Path):
    """An archive that was unpacked in a repository of something else; with and without commits."""
    inside = code.parents[1] / "unpacked" / "src" / "blindspot"
    inside.mkdir(parents=True)
    shutil.copy(provenance.__file__, inside)
    nothing = {"commit": None, "dirty": None}
    assert provenance._commit(inside) == nothing
    (code.parents[1] / ".gitignore").write_text("unpacked/\n")
    assert provenance._commit(inside) == nothing
    lone = code.parents[2] / "lone"
    lone.mkdir()
    assert provenance._commit(lone) == nothing
    git(lone, "init", "--quiet")
    assert provenance._commit(lone) == nothing


def test_asking_for_the_commit_takes_no_lock(code: Path):
    """Whoever commits at the same time would fail; so the index stays as it is, even stale."""
    index = code.parents[1] / ".git" / "index"
    before = index.read_bytes()
    path = code / "provenance.py"
    os.utime(path, (10**9, 10**9))  # the index has another time for it, which git would mend
    (index.parent / "index.lock").touch()
    assert provenance._commit(code)["dirty"] is False
    (index.parent / "index.lock").unlink()
    assert provenance._commit(code)["dirty"] is False
    assert index.read_bytes() == before


def test_the_command_is_whole_but_for_what_the_record_holds():
    argv = [
        "/somewhere/bin/blindspot",
        "train",
        "--spec",
        '{"a": 1}',
        "--name",
        "x",
        "--threads",
        "2",
    ]
    assert provenance.command(argv) == "blindspot train --spec SPEC --name x --threads 2"
    assert provenance.command(["blindspot", "measure", "--settings", "{}", "--spec"]) == (
        "blindspot measure --settings SETTINGS --spec"
    )


def test_a_timing_has_a_record_that_pins_it(tmp_path: Path):
    from blindspot.measure.throughput import write
    from toys import toy_model

    value = {
        "architectures": {"rms": toy_model().model_dump(mode="json")},
        "settings": {"batch": 2, "warmup": 1, "repeats": 2},
        "precision": "float32",
    }
    write(value, tmp_path / "nano-0.csv", "cpu", 1)
    record = json.loads((tmp_path / "nano-0.json").read_text())
    digest = hashlib.sha256((tmp_path / "nano-0.csv").read_bytes()).hexdigest()
    assert record["files"] == {"nano-0.csv": digest}
    assert record["spec"] == value and record["revision"] == THROUGHPUT_REVISION
    origin = record["provenance"]
    assert origin["threads"] == 1 and origin["device"] == provenance.processor()
    assert origin["started"] <= origin["finished"]
    assert set(pd.read_csv(tmp_path / "nano-0.csv")["device"]) == {origin["device"]}


@pytest.mark.parametrize("harm", ["cut", "edited", "unrecorded", "old"])
def test_a_damaged_timing_is_refused_by_name(results: Study, tmp_path: Path, harm: str):
    (csv,) = (results.results / "throughput").glob("*.csv")
    beside = csv.with_suffix(".json")
    collect(results, tmp_path / "whole")
    named, message = csv, "SHA-256"
    if harm == "cut":
        message = "times architecture rms at k"
        csv.write_text("".join(csv.read_text().splitlines(keepends=True)[:-1]))
    elif harm == "edited":
        frame = pd.read_csv(csv)
        frame["tokens_per_s_q75"] *= 1.01
        frame.to_csv(csv, index=False)
    elif harm == "unrecorded":
        beside.unlink()
        message = "no record beside it"
    else:
        change(beside, lambda value: value.update(revision=THROUGHPUT_REVISION + 1))
        named, message = beside, "throughput revision"
    with pytest.raises(BlindspotError, match=message) as error:
        collect(results, tmp_path / "c")
    assert str(named) in str(error.value)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("stage", ["training", "measurement", "data"])
def test_results_of_two_revisions_are_never_mixed(results: Study, tmp_path: Path, stage: str):
    """A folder that was put under today's name by hand: names hold the revision's hash."""
    name = "measure.json" if stage == "measurement" else "run.json"
    (path, *_) = results.results.glob(f"runs/44m/perloop-rms/seed101-*/**/{name}")

    def older(value: dict) -> None:
        if stage == "data":
            value["spec"]["data"]["revision"] = 99
        else:
            value["revision"] = 99

    change(path, older)
    with pytest.raises(BlindspotError, match=f"of {stage}.* revision 99.*not comparable") as error:
        collect(results, tmp_path / "c")
    assert str(path) in str(error.value)


def test_a_measurement_with_other_settings_is_refused(results: Study, tmp_path: Path):
    (path,) = results.results.glob("runs/44m/perloop-rms/seed101-*/measure/exits-*/measure.json")
    change(path, lambda value: value.update(settings={"min_context": 1}))
    with pytest.raises(BlindspotError, match="says settings"):
        collect(results, tmp_path / "c")


def test_one_origin_is_one_row_a_stage(results: Study, tmp_path: Path):
    collect(results, tmp_path / "c")
    tables.write("provenance", tmp_path / "c", tmp_path / "t")
    whole = pd.read_csv(tmp_path / "t/provenance.csv")
    assert whole.groupby("stage", sort=False).size().to_dict() == {
        "training": 4, "measurement": 4, "throughput": 1
    }  # fmt: skip
    assert set(whole["commit"]) == {"0123abc"} and set(whole["torch"]) == {"2.13.0"}
    shown = (tmp_path / "t/provenance.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in shown[2:5]]
    assert [row[:4] for row in rows] == [
        ["training", "4", "all", "0123abc"],
        ["measurement", "4", "all", "0123abc"],
        ["throughput", "1", "all", "0123abc"],
    ]
    assert "Not all alike" not in shown[-1] and " results were made with" not in shown[-1]


def test_a_mix_is_shown_not_refused(results: Study, tmp_path: Path):
    def elsewhere(value: dict) -> None:
        value["provenance"] |= {"device": "Tesla V100", "dirty": True, "resumes": 3, "requeues": 1}
        value["provenance"]["versions"] = {"torch": "2.11.0"}

    (path,) = results.results.glob("runs/44m/perloop-rms/seed101-*/run.json")
    change(path, elsewhere)
    collect(results, tmp_path / "c")
    tables.write("provenance", tmp_path / "c", tmp_path / "t")
    text = (tmp_path / "t/provenance.md").read_text()
    note = text.splitlines()[-1]
    assert "training mixes 2 versions of torch; training mixes 2 devices" in note
    assert "1 of 9 results were made with uncommitted changes" in note
    (row,) = [line for line in text.splitlines() if "V100" in line]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:4] == ["training", "1", "perloop-rms at 44m (101)", "0123abc (changed)"]
    assert cells[-2:] == ["3", "1"]


def test_no_result_is_left_without_an_origin(results: Study, tmp_path: Path):
    collect(results, tmp_path / "c")
    origins = pd.read_csv(tmp_path / "c/provenance.csv")
    runs = pd.read_csv(tmp_path / "c/runs.csv")
    for stage in ("training", "measurement"):
        assert set(origins.loc[origins["stage"] == stage, "run"]) == set(runs["run"])
    shutil.rmtree(tmp_path / "c")
    collect(results, tmp_path / "c")
    assert origins.equals(pd.read_csv(tmp_path / "c/provenance.csv"))
