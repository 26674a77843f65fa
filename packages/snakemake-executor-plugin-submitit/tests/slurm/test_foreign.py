"""The wheel in an empty environment, with a stranger's workflow, on Slurm."""

import sys
from pathlib import Path

from cluster import Cluster

sys.path.insert(0, str(Path(__file__).parents[1]))

import foreign


def test_a_strangers_workflow(cluster: Cluster, tmp_path: Path) -> None:
    programs = foreign.environment(tmp_path)
    said = foreign.run(tmp_path / "study", programs, "slurm", cluster.env)
    assert "write-1 submitted as " in said
    listed = cluster.ask("sacct", "-XnP", "-o", "jobname,state").splitlines()
    assert {f"count-{n}|COMPLETED" for n in (1, 2, 3)} <= set(listed)
