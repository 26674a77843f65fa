"""Another repository uses the workflow as a module, as the Snakemake workflow catalog proposes."""

import subprocess

import pytest
import yaml

from blindspot.config.module import from_module
from blindspot.errors import BlindspotError
from studies import CORPUS, TINY, checkout, lay_out, snakemake

WORKFLOW = """
configfile: "config/config.yaml"

module blindspot:
    snakefile:
        "{snakefile}"
    config:
        config

use rule * from blindspot as loops_*

onstart:
    blindspot.onstart()

onsuccess:
    blindspot.onsuccess()

onerror:
    blindspot.onerror()
"""
ONE = TINY | {"corpus": CORPUS, "cells": {"perloop-rms": None}, "grid": {"seeds": [1]}}


def other(where, snakefile, **changes):
    """A folder with nothing but a text, a study's config and a workflow that uses ours."""
    lay_out(where / "laid out")
    where = where / "other"
    (where / "workflow").mkdir(parents=True)
    (where / "config").mkdir()
    for split in ("train", "validation", "test"):
        (where.parent / "laid out" / f"{split}.txt").rename(where / f"{split}.txt")
    (where / "workflow/Snakefile").write_text(WORKFLOW.format(snakefile=snakefile))
    (where / "config/config.yaml").write_text(yaml.safe_dump(ONE | changes, sort_keys=False))
    return where


def released(where):
    """A repository with a tag, of what is under version control here."""
    checkout(where)
    name = ("-c", "user.name=t", "-c", "user.email=t@localhost")
    for words in (("init", "-q"), ("add", "-A"), (*name, "commit", "-qm", "all"), ("tag", "v1")):
        subprocess.run(["git", *words], cwd=where, check=True)
    return where


@pytest.mark.extra
def test_a_study_is_trained_and_reported_from_another_folder_by_a_tag_of_the_repository(tmp_path):
    snakefile = f"git+file://{released(tmp_path / 'ours')}/workflow/Snakefile@v1"
    where = other(tmp_path, snakefile)
    said = snakemake(where).stdout
    # The hooks were called, with this study.
    assert "Study tiny, 1 runs: 1 to train and measure" in said
    assert "Study tiny: done. Results are in results/tiny/" in said
    run = next((where / "results/tiny/runs/nano/perloop-rms").iterdir())
    assert run.name.startswith("seed1-") and (run / "run.json").exists()
    assert (where / "results/tiny/report.html").stat().st_size > 100_000
    assert "loops_tables loops_figures" in (where / "results/tiny/README.md").read_text()
    # Nothing is left to do; publishing never trains, under the user's names of rules too.
    assert "Nothing to be done" in snakemake(where, "-n").stdout
    (run / "run.json").unlink()
    assert "0 are published" in snakemake(where, "-n", "loops_tables").stdout


def test_a_local_copy_serves_too_and_the_command_line_is_laid_over_the_config(tmp_path):
    where = other(tmp_path, checkout(tmp_path / "ours") / "workflow/Snakefile")
    said = snakemake(where, "-n", "--config", "study=mine", 'grid={"seeds": [1, 2, 3]}').stdout
    assert "Study mine, 3 runs: 3 to train and measure" in said
    assert "loops_train" in said


def test_a_key_that_yaml_1_1_took_for_something_else_is_refused():
    assert from_module({"cells": {"a": None}}, {}) == {"cells": {"a": None}}
    with pytest.raises(BlindspotError, match=r"config\.cells: key False is not text"):
        from_module({"cells": yaml.safe_load("no: {loss: terminal}")}, {})
