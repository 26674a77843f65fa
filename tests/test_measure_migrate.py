"""Measurements of before, when a run had one folder for all: taken up, without weights."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

import synthetic
from blindspot.collect.collect import collect
from blindspot.config.runfiles import RunFiles
from blindspot.errors import BlindspotError
from blindspot.files import sha256_file, write_record
from blindspot.measure.migrate import SHARED_REVISION, migrate
from measured import as_before

ONE = {"sizes": ["44m"], "cells": ["perloop-rms"], "seeds": [42], "steps": 400}


@pytest.fixture
def study(tmp_path: Path):
    made = synthetic.make_study(tmp_path, **ONE)
    synthetic.write(made)
    return made


def shared(study):
    """Digest of each CSV of a measurement that is as old as the folder for all, by name."""
    found = {}
    for record in study.results.glob("runs/*/*/*/measure/*/measure.json"):
        if json.loads(record.read_text())["revision"] == SHARED_REVISION:
            found |= {path.name: sha256_file(path) for path in record.parent.glob("*.csv")}
    return found


def test_each_measurement_gets_its_folder_with_the_same_numbers(study, tmp_path: Path):
    run, files = study.runs[0].name, RunFiles(study)
    collect(study, tmp_path / "before")
    numbers, newer = shared(study), files.measurements(run)
    old = as_before(files.finished(run).parent)
    assert {p.name for p in old.glob("*.csv")} == set(numbers) and not files.is_measured(run)
    assert migrate(study) == 1
    assert files.is_measured(run) and not old.exists() and not list(newer.glob(".*"))
    assert shared(study) == numbers
    collect(study, tmp_path / "after")
    for path in (tmp_path / "before").glob("*.csv"):
        if path.name != "provenance.csv":
            assert path.read_bytes() == (tmp_path / "after" / path.name).read_bytes(), path.name
    assert migrate(study) == 0


def test_settings_that_a_measurement_does_not_read_do_not_matter(study):
    run, files = study.runs[0].name, RunFiles(study)
    as_before(files.finished(run).parent)
    other = synthetic.make_study(Path(study.config.results), measurement={"min_context": 64}, **ONE)
    assert migrate(other) == 1
    assert RunFiles(other).unmeasured(run) == ["exits", "windows"]
    assert not RunFiles(other).is_measured(run)
    # Back to the settings of before, nothing is lost.
    assert files.unmeasured(run) == []


def test_what_is_not_of_that_form_stays_and_is_no_measurement(study):
    run, files = study.runs[0].name, RunFiles(study)
    old = as_before(files.finished(run).parent)
    record = old / "measure.json"
    value = json.loads(record.read_text())
    for damage in (
        lambda: write_record(record, value | {"revision": SHARED_REVISION - 1}),
        lambda: record.write_text(json.dumps(value | {"run": "another"})),  # its seal is broken
        lambda: record.write_text("{"),
    ):
        damage()
        assert migrate(study) == 0
        assert record.exists() and "exits" in files.unmeasured(run)


def test_a_lost_csv_keeps_the_rest_and_an_altered_one_is_still_refused(study, tmp_path: Path):
    run, files = study.runs[0].name, RunFiles(study)
    kept = tmp_path / "kept"
    old = as_before(files.finished(run).parent)
    shutil.copytree(old, kept)
    (old / "clamp.csv").unlink()
    assert migrate(study) == 0 and old.exists()
    assert "clamp" in files.unmeasured(run) and "exits" not in files.unmeasured(run)
    shutil.copy(kept / "clamp.csv", old)
    frame = pd.read_csv(old / "clamp.csv")
    frame["norm"] *= 0.97
    frame.to_csv(old / "clamp.csv", index=False)
    assert migrate(study) == 1
    with pytest.raises(BlindspotError, match=r"clamp\.csv.*SHA-256"):
        collect(study, tmp_path / "c")
