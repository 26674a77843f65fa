"""Several GPUs for one run: what the config takes, and what the training rule asks and runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from blindspot.config.study import Study
from blindspot.errors import BlindspotError
from toys import ROOT


def load(**size: int) -> Study:
    values = yaml.safe_load((ROOT / "config.yaml").read_text())
    values["sizes"]["44m"] |= size
    return Study.of(values)


def test_no_part_of_identity() -> None:
    """Neither a run's name nor what published files depend on moves with the number of devices."""
    plain, wide = load(), load(gpus=4, nodes=2)
    assert [run.name for run in plain.runs] == [run.name for run in wide.runs]
    assert plain.config.identity() == wide.config.identity()
    assert "gpus" not in json.dumps(plain.config.identity()["sizes"])


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ({"gpus": 5}, "gpus 5 cannot share batch"),
        ({"gpus": 4, "nodes": 3}, "gpus 4 cannot be on nodes 3 equally"),
    ],
)
def test_refused(size: dict[str, int], message: str) -> None:
    with pytest.raises(BlindspotError, match=message):
        load(**size)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nodes", "start"),
    [(1, "blindspot train --gpus 4"), (2, "srun --wait=60 blindspot train --ranks slurm")],
)
def test_rule(tmp_path: Path, nodes: int, start: str) -> None:
    """One node: the trainer starts its ranks; more: srun does."""
    (tmp_path / "wide.yaml").write_text(
        yaml.safe_dump(
            {"device": "cuda", "sizes": {"44m": size(nodes)}, "cells": {"perloop-rms": None}}
        )
    )
    command = [
        sys.executable,
        "-m",
        "snakemake",
        "-s",
        str(ROOT / "workflow/Snakefile"),
        "runs",
        "-n",
        "-p",
    ]
    done = subprocess.run(
        [*command, "--configfile", "wide.yaml", "--cores", "1"],
        cwd=tmp_path,
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path / ".cache")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [
        line.partition("Shell command: ")[2] for line in (done.stdout + done.stderr).splitlines()
    ]
    (shell, *_) = (line for line in lines if " train " in line)
    assert shell.startswith(f"{start} --spec")


def size(nodes: int) -> dict[str, int]:
    values = yaml.safe_load((ROOT / "config.yaml").read_text())
    return values["sizes"]["44m"] | {"gpus": 4, "nodes": nodes}
