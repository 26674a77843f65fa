"""Figures from `results/` alone: another clone, no torch, no records, times that mean nothing."""

import os
import random
import re
import shutil
import subprocess
import sys
import time

import pytest

from studies import STUDY, copy, finished, lay_out, load, snakemake

#: What a laptop that only draws doesn't have (the extra `train`).
TRAINING = ("torch", "datasets", "tokenizers", "safetensors", "tensorboard", "submitit")
HEAVY = r"^Job \d+: (training|measuring|timing|tokenizing|fetching)"
HOOK = f"""
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {TRAINING!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}} (refused by a test)", name=name)

sys.meta_path.insert(0, Refuse())
"""


def bare(study, where):
    """A clone with results only, random times, nothing published; and the refusing environment."""
    lay_out(where)
    copy(study / "results", where / "results")
    dice = random.Random(1)
    for path in (p for p in where.rglob("*") if p.is_file()):
        when = dice.uniform(1.5e9, 1.7e9)
        os.utime(path, (when, when))
    results = where / "results/tiny"
    for name in ("collected", "tables", "figures"):
        shutil.rmtree(results / name)
    for path in results.glob("*.*"):
        path.unlink()
    (where / "hook").mkdir()
    (where / "hook/sitecustomize.py").write_text(HOOK)
    return results, {"PYTHONPATH": str(where / "hook")}


@pytest.mark.extra
def test_every_table_and_figure_is_redrawn_byte_for_byte_without_torch(tmp_path, tmp_path_factory):
    study = finished(tmp_path_factory)[0]
    results, env = bare(study, tmp_path)
    # The hook does what it says.
    torch = [sys.executable, "-c", "import torch"]
    probe = subprocess.run(torch, env=os.environ | env, capture_output=True, text=True)
    assert "refused by a test" in probe.stderr
    done = snakemake(tmp_path, "figures", "tables", "claims", "report", *STUDY, **env)
    assert "6 are published, nothing is trained or measured" in done.stdout
    assert not re.search(HEAVY, done.stdout, re.MULTILINE)
    original = study / "results/tiny"
    names = [
        p.relative_to(original)
        for p in sorted(original.rglob("*"))
        if p.is_file() and p.relative_to(original).parts[0] not in ("runs", "throughput")
    ]
    assert {p.suffix for p in names} >= {".pdf", ".png", ".csv", ".md", ".tex"}
    for name in names:
        if name.suffix == ".html" or name.name == "README.md":
            continue
        assert (results / name).read_bytes() == (original / name).read_bytes(), name
    assert (results / "report.html").stat().st_size > 100_000


def test_results_dated_ahead_are_collected_once(tmp_path, tmp_path_factory):
    """A server's clock is an hour ahead: by their times, what is collected would be older than what
    it was collected from, and Snakemake would delete it as failed."""
    study = finished(tmp_path_factory)[0]
    copy(study, tmp_path)
    results = tmp_path / "results/tiny"
    collected, table = (results / name for name in ("collected/study.json", "tables/norms.csv"))
    target, before = "results/tiny/tables/norms.csv", (collected.read_bytes(), table.read_bytes())
    shutil.rmtree(collected.parent)
    table.unlink()
    ahead = time.time() + 3600
    for folder in (results / "runs", results / "throughput"):
        for path in (p for p in folder.rglob("*") if p.is_file()):
            os.utime(path, (ahead, ahead))
    done = snakemake(tmp_path, target, *STUDY)
    ran = re.findall(r"^Job \d+: (.+)$", done.stdout, re.MULTILINE)
    assert ran == ["collecting the results", "table norms"]
    assert (collected.read_bytes(), table.read_bytes()) == before
    assert "Nothing to be done" in snakemake(tmp_path, target, *STUDY).stdout


def test_what_is_missing_is_listed_and_nothing_is_trained(tmp_path, tmp_path_factory):
    """S-09: one run and one measurement are not there."""
    results, env = bare(finished(tmp_path_factory)[0], tmp_path)
    lost, unmeasured = (load(tmp_path).runs[at].name for at in (0, 3))
    shutil.rmtree(results / "runs" / lost)
    shutil.rmtree(results / "runs" / unmeasured / "measure")
    plan = snakemake(tmp_path, "-n", "all", *STUDY, "--config", "runs=finished", **env).stdout
    assert f"Not there: {lost}, {unmeasured}" in plan
    assert not re.search(HEAVY, plan, re.MULTILINE)
    names = ("tables/main.md", "figures/norm-by-loop.png", "claims.md")
    said = snakemake(tmp_path, *(f"results/tiny/{name}" for name in names), *STUDY, **env).stdout
    assert "4 are published, nothing is trained or measured" in said
    assert f"Not there: {lost}, {unmeasured}" in said
    assert not re.search(HEAVY, said, re.MULTILINE)
    note = (results / "tables/main.md").read_text()
    assert "not trained" in note and "not measured" in note


def flip(path):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def edit(path):
    text = path.read_text()
    digit = re.search(r"\d(?=\D*$)", text)
    other = "7" if digit[0] != "7" else "3"
    path.write_text(text[: digit.start()] + other + text[digit.end() :])


@pytest.mark.parametrize("damage", [flip, edit])
def test_a_damaged_result_of_any_kind_is_named_and_never_collected(
    damage, tmp_path, tmp_path_factory, monkeypatch
):
    """Each file of a run, of a measurement and of the timing in turn: cut, then edited by hand."""
    from blindspot.collect.collect import collect
    from blindspot.errors import BlindspotError

    where = copy(finished(tmp_path_factory)[0], tmp_path / "clone", "config.yaml", "tiny.yaml")
    for split in ("train", "validation", "test"):
        shutil.copy2(finished(tmp_path_factory)[0] / f"{split}.txt", where)
    copy(finished(tmp_path_factory)[0], where, "results")
    study = load(where)
    monkeypatch.chdir(where)
    run = study.results / "runs" / study.runs[1].name
    # `all-<hash>.json` says that all measurements are there, which nothing is drawn from.
    files = [p for p in sorted(run.rglob("*")) if p.is_file() and not p.match("all-*.json")]
    files += [p for p in (study.results / "throughput").iterdir() if p.is_file()]
    kinds = {p.name for p in files if p.suffix == ".csv"}
    assert len(kinds) >= 16
    shutil.rmtree(study.results / "collected")
    for path in files:
        kept = path.read_bytes()
        damage(path)
        with pytest.raises(BlindspotError) as caught:
            collect(study, where / "out")
        assert path.name in str(caught.value), path
        assert not (where / "out").exists(), path
        path.write_bytes(kept)
    collect(study, where / "out")
