"""Snakemake's own tests of executor plugins, on Slurm."""

import pytest
from cluster import Cluster
from snakemake.common.tests import TestWorkflowsLocalStorageBase

from snakemake_executor_plugin_submitit import ExecutorSettings


class TestSuite(TestWorkflowsLocalStorageBase):
    __test__ = True

    @pytest.fixture(autouse=True)
    def environment(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SLURM_CONF", cluster.env["SLURM_CONF"])

    def get_executor(self) -> str:
        return "submitit"

    def get_executor_settings(self) -> ExecutorSettings:
        return ExecutorSettings(cluster="slurm", poll_seconds=3)
