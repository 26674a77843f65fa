"""What tests against a real Slurm have in common."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster

__all__ = ["cluster", "pytest_ignore_collect"]

# Shells start what runs in the background deaf to Ctrl-C, and controllers would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """For a conftest.py: its tests run only when their folder is asked for."""
    asked = any("slurm" in Path(argument).parts for argument in config.args)
    return None if asked else True


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    if os.getuid() or not shutil.which("slurmctld"):
        pytest.skip(
            f"needs root and Slurm: python {Path(__file__).with_name('cluster.py')} install"
        )
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    cluster = Cluster(int(worker.removeprefix("gw")))
    cluster.up()
    yield cluster
    cluster.down()
