"""Tests against a real Slurm. They run only when this folder is asked for: pytest tests/slurm."""

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cluster import Cluster, until
from study import Study

# Shells start what runs in the background deaf to Ctrl-C, and controllers would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    asked = any("slurm" in Path(argument).parts for argument in config.args)
    return None if asked else True


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    if os.getuid() or not shutil.which("slurmctld"):
        pytest.skip("needs root and Slurm: python tests/slurm/cluster.py install")
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    cluster = Cluster(int(worker.removeprefix("gw")))
    cluster.up()
    yield cluster
    cluster.down()


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
