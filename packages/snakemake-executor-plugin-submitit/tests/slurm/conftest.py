"""Tests against a real Slurm. They run only when this folder is asked for: pytest tests/slurm."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cluster import Cluster, until
from fixtures import *  # noqa: F403
from study import Study


@pytest.fixture
def study(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., Study]]:
    """Makes studies, each in a folder of its own; ends what a failed test has left."""
    studies: list[Study] = []

    def make(name: str = "study", **toy: object) -> Study:
        studies.append(Study(tmp_path / name, cluster.env, "slurm", **toy))
        return studies[-1]

    yield make
    for each in studies:
        each.end()
        for submitted in each.folder.glob("work/submitit/2*/*.pkl"):
            submitted.with_name(f"{submitted.stem}.cancel").touch()
    cluster.ask("scancel", "-u", "root", check=False)
    until("empty queue", 60, lambda: not cluster.ask("squeue", "-h", check=False).strip())
