"""What the executor asks a queue for, and what it makes of the answers; no cluster needed."""

import asyncio
import logging
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

from durable_jobs import ClusterError, records, slurm
from durable_jobs.task import clean_environment
from snakemake_executor_plugin_submitit import Executor, ExecutorSettings
from snakemake_executor_plugin_submitit.translate import sbatch_options


@pytest.mark.parametrize(
    ("imported", "unknown"),
    [
        ("durable_jobs.local, durable_jobs.slurm", {"blindspot", "snakemake"}),
        # Snakemake imports the plugin at each start, of each job too.
        ("snakemake_executor_plugin_submitit", {"blindspot", "submitit"}),
    ],
)
def test_who_knows_whom(imported: str, unknown: set[str]) -> None:
    """Jobs know nothing of Snakemake, the plugin nothing of this study, the plugin's import
    nothing of submitit."""
    script = f"import {imported}, sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    modules = set(done.stdout.split())
    assert "durable_jobs" in modules, done.stderr
    # Of Snakemake there are interfaces and plugins, too.
    assert not [m for m in modules if any(m.startswith(name) for name in unknown)]


def test_clean_environment() -> None:
    kept = {"SLURM_CONF": "c", "PATH": "p", "SLURMY": "1", "HF_HOME": "h"}
    gone = dict.fromkeys(("SLURM_CPU_BIND", "SLURM_CPUS_PER_TASK", "SLURM_ARRAY_JOB_ID"), "1")
    gone |= dict.fromkeys(("SLURM_MEM_PER_NODE", "SBATCH_PARTITION", "RANK", "MASTER_PORT"), "1")
    gone |= {"CUDA_VISIBLE_DEVICES": "3", "SUBMITIT_RESTARTS": "2", "SLURM_CONF_SERVER": "x"}
    assert clean_environment(kept | gone) == kept


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({}, {}),
        ({"gpu": 2}, {"gpus_per_node": 2}),
        ({"gpu": 2, "gpu_model": "a100"}, {"gpus_per_node": "a100:2"}),
        ({"gpu": 2, "slurm_gres": "gpu:a100"}, {"gres": "gpu:a100:2"}),
        ({"gpu": 2, "gres": "gpu:8"}, {"gres": "gpu:8"}),
        ({"gpu": 0, "slurm_gres": "gpu:a100", "gpu_model": "a100"}, {}),
        ({"gpu": 8, "nodes": 2}, {"nodes": 2, "ntasks_per_node": 4, "gpus_per_node": 4}),
        ({"gpu": 0, "nodes": 2}, {"nodes": 2, "ntasks_per_node": 1}),
        ({"runtime": 90, "mem_mb": 1500}, {"time": 90, "mem": "1500M"}),
        ({"slurm_partition": "p", "slurm_account": "a"}, {"partition": "p", "account": "a"}),
        ({"slurm_qos": "q", "slurm_constraint": "c"}, {"qos": "q", "constraint": "c"}),
        ({"qos": "q", "constraint": "c"}, {"qos": "q", "constraint": "c"}),
        ({"slurm_reservation": "r"}, {"reservation": "r"}),
    ],
)
def test_sbatch_options(resources: dict[str, object], expected: dict[str, object]) -> None:
    """The official plugin's resource names; a job without GPUs never asks for any."""
    given = sbatch_options(3, resources)
    assert given == expected | {"cpus_per_task": 3, "extra": ""}


def test_nodes_to_keep_away_from() -> None:
    assert sbatch_options(1, {}, ["n1", "n[3-4]"])["exclude"] == "n1,n[3-4]"


QUEUE = """\
7_0|RUNNING|None|batch-a
7_1|PENDING|PartitionTimeLimit|batch-a
7_2|PENDING|Priority|batch-a
8_0|CANCELLED|None|batch-b
8_1|COMPLETED|None|batch|with|pipes
9|RUNNING|None|somebody's
"""


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> slurm.Slurm:
    """Slurm's side, with a queue that answers from QUEUE."""
    asked: list[str] = []

    def ask(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(command[0])
        return subprocess.CompletedProcess(command, 0, QUEUE, "")

    monkeypatch.setattr(slurm, "ask", ask)
    monkeypatch.setattr(slurm.shutil, "which", lambda _: "sbatch")
    found = slurm.Slurm(ExecutorSettings(), logging.getLogger("queue"), 120)
    found.asked_for = asked  # type: ignore[attr-defined]
    assert found.poll()
    return found


def test_queue(queue: slurm.Slurm, tmp_path: Path) -> None:
    """States by id, ids by comment, and one question for all in half a minute."""

    def job(batch: str, index: int, job_id: str = "") -> records.Record:
        made = records.Record(tmp_path / "name.hash", tmp_path / batch, index)
        made.folder.mkdir(exist_ok=True)
        if job_id:
            made.set_job_id(job_id)
        return made

    assert queue.state(job("batch-a", 0))[0] == "RUNNING"
    assert (tmp_path / "batch-a/job_id").read_text() == "7", "found by its comment, and noted"
    assert queue.state(job("batch-a", 2))[0] == "PENDING"
    assert queue.state(job("batch-b", 0)) == ("", "cancelled, not by this workflow", True)
    assert queue.state(job("c", 1, "8")) == ("", "COMPLETED, without a result", False)
    state, reason, sure = queue.state(job("d", 0, "6"))
    assert (state, sure) == ("", False)
    assert reason.startswith("lost: not in the queue any more")
    assert queue.state(job("e", 0)) == (state, reason, sure)
    assert queue.state(job("batch-a", 1)) == ("", "can never start: PartitionTimeLimit", True)
    assert queue.patience == 120
    assert not queue.poll()
    assert queue.asked_for == ["scontrol", "squeue", "scancel"]


@pytest.mark.parametrize(
    ("answer", "size", "said"),
    [
        ((0, "Configuration\nMaxArraySize            = 5001\n", ""), 5001, ""),
        ((0, "MaxArraySize=0", ""), 1, ""),
        ((1, "", "Unable to contact slurm controller"), 1000, "Unable to contact slurm controller"),
        ((0, "nothing of it", ""), 1000, "exit code 0, no MaxArraySize"),
        (FileNotFoundError(2, "No such file or directory"), 1000, "No such file or directory"),
    ],
)
def test_the_size_of_an_array_is_slurms_or_it_is_said(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    answer: tuple[int, str, str] | OSError,
    size: int,
    said: str,
) -> None:
    def ask(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        if isinstance(answer, OSError):
            raise answer
        return subprocess.CompletedProcess(command, *answer)

    monkeypatch.setattr(slurm, "ask", ask)
    monkeypatch.setattr(slurm.shutil, "which", lambda _: "sbatch")
    found = slurm.Slurm(ExecutorSettings(), logging.getLogger("queue"), 120)
    assert found.array_size == size
    assert bool(said) == bool(caplog.messages)
    assert said in caplog.text


def test_a_cluster_without_its_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """submitit needs both; said at the start, not with the first job."""
    for missing in ("sbatch", "srun"):
        monkeypatch.setattr(slurm.shutil, "which", lambda tool, gone=missing: tool != gone)
        with pytest.raises(ClusterError, match=f"there is no {missing} here"):
            slurm.Slurm(ExecutorSettings(), None, 120)


@pytest.mark.parametrize("silent", [False, True])
def test_cancelling_while_the_queue_is_silent(silent: bool, tmp_path: Path) -> None:
    """What has an id is cancelled even so; all jobs get their mark."""

    class Queue:
        asked: list[str]

        def look(self) -> None:
            if silent:
                raise ClusterError("squeue does not answer")

        def state(self, job: records.Record) -> tuple[str, str, bool]:
            return ("" if job.link.stem == "gone" else "RUNNING"), "", False

        def cancel(self, jobs: list[records.Record]) -> None:
            self.asked = [job.link.stem for job in jobs]

    jobs = [records.Record(tmp_path / f"{n}.hash", tmp_path / n) for n in ("a", "gone", "new")]
    for job in jobs:
        job.folder.mkdir()
    for job in jobs[:2]:
        job.set_job_id("5")
    executor = object.__new__(Executor)
    executor.cluster, executor.live = Queue(), {job.link: job for job in jobs}
    executor.logger = SimpleNamespace(warning=lambda _: None)
    executor.cancel_jobs([])
    assert executor.cluster.asked == (["a", "gone"] if silent else ["a", "new"])
    assert all(job.cancelled.exists() for job in jobs)


class Scripted:
    """A scheduler that says what a test lets it say."""

    patience = 60.0

    def __init__(self, *says: tuple[str, bool] | None) -> None:
        self.says = list(says)

    def poll(self) -> bool:
        self.now = self.says.pop(0)
        return self.now is not None

    def state(self, job: records.Record) -> tuple[str, str, bool]:
        assert self.now is not None
        return self.now[0], "reason", self.now[1]


PREEMPTED = [("RUNNING", False), ("", False), ("PENDING", False), ("RUNNING", False)]


@pytest.mark.parametrize(
    ("says", "expected"),
    [
        ([*PREEMPTED, *PREEMPTED], None),  # requeued by Slurm: neither failed nor submitted again
        ([None] * 8, None),  # a queue that does not answer decides nothing
        ([("", False), None, None, None, None], None),
        ([("", False)] * 3, "reason; can its node see"),
        ([("", False), ("", False), None, ("", False)], "reason; can its node see"),
        ([("RUNNING", False), ("", True)], "reason. "),
    ],
)
def test_verdicts(
    says: list[tuple[str, bool] | None],
    expected: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job without result has failed when the queue has said so twice, long enough apart."""
    clock = iter(range(1000, 9999, 40))
    monkeypatch.setattr("snakemake_executor_plugin_submitit.time.monotonic", lambda: next(clock))
    job = records.Record(tmp_path / "name.hash", tmp_path, 0)
    job.set_job_id("5")
    executor = object.__new__(Executor)
    executor.cluster, executor.live = Scripted(*says), {job.link: job}
    executor.ended, executor.avoided = [], []
    failures: list[str] = []
    executor.report_job_error = lambda _, msg, aux_logs: failures.append(msg)
    executor.report_job_success = lambda _: failures.append("")

    async def check(infos: list[SubmittedJobInfo]) -> list[SubmittedJobInfo]:
        return [info async for info in executor.check_active_jobs(infos)]

    infos = [SubmittedJobInfo(None, "5_0", {"record": job})]
    while infos and executor.cluster.says:
        infos = asyncio.run(check(infos))
    if expected is None:
        assert infos and not failures
        # The result comes late, half of it first.
        whole = pickle.dumps(("success", None))
        executor.cluster.says = [None, None]
        job.result.write_bytes(whole[:-3])
        infos = asyncio.run(check(infos))
        assert infos
        job.result.write_bytes(whole)
        assert not asyncio.run(check(infos))
        assert failures == [""]
    else:
        assert not infos
        assert failures[0].startswith(f"name: {expected}")
