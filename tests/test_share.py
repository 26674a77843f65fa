"""What others read: a crate from which a stranger redraws every figure, and its validators."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pandas as pd
import pytest

import synthetic
from blindspot.collect.collect import collect
from blindspot.config.runfiles import RunFiles
from blindspot.config.study import Study
from blindspot.errors import BlindspotError
from blindspot.publish import catalogue
from blindspot.publish.figures import draw
from blindspot.share import archive
from studies import snakemake
from toys import ROOT


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A study with results and some figures."""
    folder = tmp_path_factory.mktemp("results")
    study = synthetic.make_study(
        folder, sizes=["44m"], cells=["perloop-rms", "perloop-raw"], seeds=[1, 2]
    )
    synthetic.write(study)
    for run in study.runs:  # what a measuring job writes last
        RunFiles(study).measured(run.name).write_text("{}")
    collect(study, study.results / "collected")
    return study


@pytest.fixture(scope="module")
def drawn(study):
    """The same with every figure of it that its crate shall redraw."""
    for name in catalogue.of(catalogue.FIGURES, study.config):
        draw(name, study.results / "collected", study.results / "figures")
    return study


def values(study):
    return study.config.model_dump(mode="json")


@pytest.fixture(scope="module")
def crate(drawn, tmp_path_factory):
    pytest.importorskip("rocrate")
    from blindspot.share.crate import write

    return write(drawn, values(drawn), ROOT, tmp_path_factory.mktemp("out") / "crate")


def digests(folder):
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


@pytest.mark.extra
def test_a_stranger_redraws_every_figure_byte_for_byte(drawn, crate, tmp_path):
    """With the crate's own code and files alone, in a folder that was moved."""
    where = shutil.copytree(crate, tmp_path / "moved")
    results = where / "results" / drawn.config.study
    before = digests(results / "figures")
    assert len(before) >= 20
    shutil.rmtree(results / "figures")
    shutil.rmtree(results / "collected")
    said = snakemake(where, "figures", PYTHONPATH=str(where / "src")).stdout
    assert "4 are published, nothing is trained or measured" in said
    assert digests(results / "figures") == before == digests(drawn.results / "figures")


@pytest.mark.extra
def test_the_crate_says_what_ran_with_which_code_on_what_giving_what(drawn, crate):
    graph = json.loads((crate / "ro-crate-metadata.json").read_text())["@graph"]
    entities = {entity["@id"]: entity for entity in graph}
    whole = entities["#study"]
    assert whole["instrument"] == {"@id": "workflow/Snakefile"}
    assert entities["./"]["mainEntity"] == {"@id": "workflow/Snakefile"}
    given = {part["@id"] for part in whole["result"]}
    place = f"results/{drawn.config.study}"
    assert {f"{place}/figures/norm-by-loop.pdf", f"{place}/collected/norms.csv"} <= given
    for run in drawn.runs:
        action = entities[f"#train-{run.name}"]
        assert action["result"] == [{"@id": f"{place}/runs/{run.name}/"}]
        assert action["object"] == [{"@id": "config.yaml"}]
        record = json.loads((crate / place / "runs" / run.name / "run.json").read_text())
        code = entities[action["instrument"]["@id"]]
        assert str(record["provenance"]["commit"]) in code["softwareVersion"]
        assert action["startTime"] == record["provenance"]["started"]
    for entity in graph:
        if entity["@type"] in ("File", "Dataset") and not entity["@id"].startswith("#"):
            assert (crate / entity["@id"]).exists(), entity


@pytest.mark.extra
def test_the_validator_of_ro_crates_finds_nothing(crate, tmp_path):
    """In an environment of its own, since it needs an older `rich` than ours: ROC_PYTHON."""
    python = os.environ.get("ROC_PYTHON")
    if python is None:
        pytest.skip("ROC_PYTHON is not set: a Python with roc-validator and rocrate")
    command = [python, ROOT / "tests/roc_validator.py"]
    done = subprocess.run([*command, crate], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    # It sees what is wrong.
    broken = shutil.copytree(crate, tmp_path / "broken")
    metadata = broken / "ro-crate-metadata.json"
    metadata.write_text(metadata.read_text().replace("ComputationalWorkflow", "Thing"))
    assert subprocess.run([*command, broken], capture_output=True).returncode == 1


@pytest.mark.extra
def test_a_zip_is_the_same_crate(drawn, crate, tmp_path):
    from blindspot.share.crate import write

    packed = write(drawn, values(drawn), ROOT, tmp_path / "crate.zip")
    with zipfile.ZipFile(packed) as file:
        names = {name for name in file.namelist() if not name.endswith("/")}
    here = {p.relative_to(crate).as_posix() for p in crate.rglob("*") if p.is_file()}
    assert names == here
    assert [p.name for p in tmp_path.iterdir()] == ["crate.zip"]
    with pytest.raises(BlindspotError, match=r"is there already"):
        write(drawn, values(drawn), ROOT, packed)


def test_a_study_without_figures_is_not_archived(tmp_path):
    empty = synthetic.make_study(tmp_path / "results")
    with pytest.raises(BlindspotError, match=r"no figures to archive"):
        archive.lay_out(empty, values(empty), ROOT, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_config_in_an_archive_needs_no_text_and_names_the_same_runs(tmp_path, monkeypatch):
    """A corpus and a tokenizer of one's own are pinned; nothing leads to where they were."""
    for split in ("train", "validation", "test"):
        (tmp_path / f"{split}.txt").write_text(f"some {split} words")
    corpus = {"kind": "local"} | {
        split: str(tmp_path / f"{split}.txt") for split in ("train", "validation", "test")
    }
    original = synthetic.make_study(tmp_path / "results", corpus=corpus)
    own = archive.own_config(original, values(original))
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    monkeypatch.chdir(tmp_path)
    assert [run.name for run in Study.of(own).runs] == [run.name for run in original.runs]
    assert str(tmp_path) not in json.dumps(own)


@pytest.mark.extra
def test_croissant_is_valid_and_its_records_are_the_csvs(study, tmp_path):
    """By its own validator: another process, which reads the file and then every record."""
    mlc = pytest.importorskip("mlcroissant")
    from blindspot.share.croissant import write

    collected = shutil.copytree(study.results / "collected", tmp_path / "collected")
    path = write(collected, "https://example.org/study")
    tool = Path(sys.executable).with_name("mlcroissant")
    done = subprocess.run([tool, "validate", "--jsonld", path], capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert done.returncode == 0 and "Done" in said, said[-3000:]
    assert "warning" not in said.lower(), said[-3000:]
    data = mlc.Dataset(path)
    norms = pd.read_csv(collected / "norms.csv")
    rows = list(data.records("norms"))
    assert len(rows) == len(norms)
    assert [row["norms/l2_mean"] for row in rows] == pytest.approx(norms["l2_mean"].tolist())
    assert [row["norms/k"] for row in rows] == norms["k"].tolist()
    described = {record.id for record in data.metadata.record_sets}
    assert described == {p.stem for p in collected.glob("*.csv")}
    # A file that changed since is not taken for the one that was described.
    (collected / "norms.csv").write_text((collected / "norms.csv").read_text() + "\n")
    with pytest.raises(Exception, match=r"Download\(norms.csv\)"):
        list(mlc.Dataset(path).records("norms"))
