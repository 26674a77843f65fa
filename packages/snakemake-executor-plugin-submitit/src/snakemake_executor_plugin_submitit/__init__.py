"""Snakemake jobs through submitit: arrays of Slurm, or processes on the GPUs of one machine.

Snakemake imports this at each start, of each job too; so submitit is imported only on use.
"""

import json
import re
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.settings import CommonSettings, ExecutorSettingsBase

from durable_jobs import ClusterError, RefusedError, partitions, usage
from durable_jobs.records import Record, forget, submission_lock, submitted
from snakemake_executor_plugin_submitit.translate import describe, local_options, sbatch_options

#: Before this controller looked at any file.
_STARTED = time.time()
#: How failures begin that say nothing of the nodes.
_NOT_THE_NODES = ("cancelled", "out of memory", "time limit", "timed-out", "requeued", "refused")


def _setting(default: Any, text: str) -> Any:
    kind = str if default is None else type(default)
    return field(default=default, metadata={"help": text, "required": False, "type": kind})


@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    cluster: str | None = _setting(None, "slurm or local; default: slurm where there is sbatch")
    folder: str = _setting("work/submitit", "Records and logs; every node must see it")
    max_requeues: int = _setting(50, "How often a job may be requeued")
    signal_delay: int = _setting(120, "Seconds between the signal and the end of a job's time")
    poll_seconds: int = _setting(30, "Seconds between questions to squeue, for all jobs together")
    env: str = _setting("HF_HUB_OFFLINE=1", "Environment of jobs: 'NAME=value NAME=value'")
    jobs_per_gpu: int = _setting(1, "Jobs that share a GPU, with cluster local")
    memory_factor: float = _setting(2.0, "What is out of memory is retried with so many times more")
    partition_config: str = _setting("", "YAML file of partitions and their limits; README.md")
    exclude_failed_nodes: str = _setting(
        "", "Nodes to keep away from, by commas; `auto`: those on which a job has failed, too"
    )
    reservation: str = _setting("", "Reservation that jobs run in")
    jobname_prefix: str = _setting("", "What the names of jobs begin with in the queue")
    no_requeue: bool = _setting(False, "Jobs that are stopped fail, instead of being requeued")
    delete_logfiles_older_than: int = _setting(0, "Days; 0 keeps records and logs for good")
    efficiency_report: str = _setting("", "CSV file that says at the end what jobs used")


common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    auto_deploy_default_storage_provider=False,
    init_seconds_before_status_checks=1,
)


@contextmanager
def _in_snakemakes_words() -> Iterator[None]:
    """Snakemake shows a WorkflowError as its message, anything else as a trace."""
    try:
        yield
    except ClusterError as error:
        raise WorkflowError(str(error)) from None


class Executor(RemoteExecutor):
    """Submits, finds again what an earlier controller submitted, notices ends, cancels."""

    def __post_init__(self) -> None:
        self.settings = self.workflow.executor_settings
        self.root = Path(self.settings.folder).absolute()
        if wrong := re.search(r"[%\\\n]", str(self.root)):
            raise WorkflowError(
                f"{self.root}: Slurm would misread {wrong[0]!r}; use another folder"
            )
        (self.root / "jobs").mkdir(parents=True, exist_ok=True)
        kind = self.settings.cluster or ("slurm" if shutil.which("sbatch") else "local")
        try:
            from durable_jobs import local, slurm, task
        except ImportError as error:
            raise WorkflowError(f"{error}; install it with: pip install submitit") from None
        clusters: dict[str, Any] = {
            "slurm": (slurm.Slurm, sbatch_options),
            "local": (local.Local, local_options),
        }
        if kind not in clusters:
            raise WorkflowError(f"submitit-cluster is {kind!r}; it can be slurm or local")
        self.task = task
        cluster, self.options = clusters[kind]
        latency = self.workflow.execution_settings.latency_wait
        with _in_snakemakes_words():
            self.cluster = cluster(self.settings, self.logger, latency)
        self.live: dict[Path, Record] = {}
        #: How often each job was out of memory; nodes on which jobs failed; jobs that have ended.
        self.short: Counter[Path] = Counter()
        self.avoided = [n for n in self.settings.exclude_failed_nodes.split(",") if n.strip()]
        self.ended: list[tuple[Any, Record]] = []
        with _in_snakemakes_words():
            wanted = self.settings.partition_config
            self.partitions = partitions.read(Path(wanted)) if wanted else {}
        self.next_seconds_between_status_checks = 1
        with _in_snakemakes_words(), submission_lock(self.root):
            wanted = {describe(self.root, job).link for job in self.dag.needrun_jobs()}
            if days := self.settings.delete_logfiles_older_than:
                forget(self.root, days)
            strangers = [job for link, job in submitted(self.root).items() if link not in wanted]
            if strangers:
                self.cluster.look()
            for job in strangers:
                if job.failure() is None and self.cluster.state(job)[0]:
                    self.logger.warning(
                        f"{job.name} is no part of this run, but runs: {job.job_id}"
                    )

    def run_job(self, job: Any) -> None:
        self.run_jobs([job])

    def run_jobs(self, jobs: Sequence[Any]) -> None:
        for job in jobs:
            self.run_job_pre(job)
        fresh = defaultdict(list)
        with _in_snakemakes_words(), submission_lock(self.root) as held:
            known = submitted(self.root)
            wanted = [(job, describe(self.root, job)) for job in jobs]
            if any(new.link in known for _, new in wanted):
                self.cluster.look()
            for job, new in wanted:
                if new.link in known and self._running(known[new.link]):
                    self._track(job, known[new.link], "found again")
                else:
                    given = self._asked(job, new)
                    fresh[json.dumps(given, sort_keys=True)].append((job, new))
            for asked, group in fresh.items():
                for start in range(0, len(group), size := self.cluster.array_size):
                    self._submit(json.loads(asked), group[start : start + size], held)

    def _asked(self, job: Any, new: Record) -> dict[str, Any]:
        """What a job is given, by its resources, the settings, and what became of it before."""
        resources = dict(job.resources.items())
        if (times := self.short[new.link]) and resources.get("mem_mb"):
            more = round(resources["mem_mb"] * self.settings.memory_factor**times)
            self.logger.info(f"{new.name} was out of memory; now with mem_mb={more}")
            resources["mem_mb"] = more
        if self.settings.reservation:
            resources.setdefault("slurm_reservation", self.settings.reservation)
        if self.partitions and not resources.get("slurm_partition"):
            resources["slurm_partition"] = partitions.choose(
                self.partitions, job.threads, resources
            )
        return self.options(job.threads, resources, [n for n in self.avoided if n != "auto"])

    def _running(self, job: Record) -> bool:
        """Whether to wait for a job that was submitted earlier."""
        failure = job.failure()
        if failure is not None:
            # Snakemake may have looked at the outputs before the job made them.
            return not failure and job.result.stat().st_mtime > _STARTED
        while (state := self.cluster.state(job)[0]) and job.cancelled.exists():
            self.logger.info(f"{job.name} ({job.job_id}) was cancelled; waiting for its end")
            self.cluster.cancel([job])
            time.sleep(5)
            self.cluster.look()
        return bool(state)

    def _submit(
        self, given: dict[str, Any], group: Sequence[tuple[Any, Record]], held: int
    ) -> None:
        folder = self.task.new_batch(self.root)
        for index, (job, new) in enumerate(group):
            new.folder, new.index = folder, index
            command, minutes = self.format_job_exec(job), job.resources.get("runtime")
            self.task.write(new, command, minutes, self.settings)
            self.live[new.link] = new
        try:
            self.cluster.submit([new for _, new in group], given, held)
        except RefusedError as refusal:
            for job, new in group:
                self._end(SubmittedJobInfo(job), new, f"refused: {refusal}")
        else:
            for job, new in group:
                self._track(job, new, "submitted")

    def _track(self, job: Any, record: Record, how: str) -> None:
        self.live[record.link] = record
        self.logger.info(f"{record.name} {how} as {record.job_id}, log: {record.log}")
        info = SubmittedJobInfo(job, external_jobid=record.job_id, aux={"record": record})
        self.report_job_submission(info)

    def _end(self, info: SubmittedJobInfo, record: Record, failure: str) -> None:
        self.ended.append((info.job, record))
        if failure.startswith("out of memory"):
            self.short[record.link] += 1
        blamed = failure and not failure.startswith(_NOT_THE_NODES)
        if blamed and "auto" in self.avoided and (nodes := record.nodes):
            self.logger.info(f"{record.name} failed on {nodes}; no more jobs go there")
            self.avoided.append(nodes)
        self.live.pop(record.link).link.unlink(missing_ok=True)
        if failure:
            logs = [str(record.log)] if record.log.exists() else []
            self.report_job_error(info, msg=f"{record.name}: {failure}. ", aux_logs=logs)
        else:
            self.report_job_success(info)

    async def check_active_jobs(
        self, active_jobs: list[SubmittedJobInfo]
    ) -> AsyncGenerator[SubmittedJobInfo, None]:
        if not active_jobs:
            return  # this thread may run before the constructor has ended
        news = self.cluster.poll()
        for folder in {info.aux["record"].folder for info in active_jobs}:
            with suppress(OSError):  # an NFS client looks anew at a folder that it has changed
                folder.chmod(folder.stat().st_mode)
        for info in active_jobs:
            job, failure = info.aux["record"], info.aux["record"].failure()
            if failure is None and news:
                state, reason, sure = self.cluster.state(job)
                job.ended = None if state else job.ended or time.monotonic()
                late = job.ended and time.monotonic() - job.ended >= self.cluster.patience
                if late or (sure and not state):
                    seen = job.log.exists()
                    failure = (
                        reason if seen or sure else f"{reason}; can its node see {job.folder}?"
                    )
            if failure is None:
                yield info
            else:
                self._end(info, job, failure)

    def shutdown(self) -> None:
        super().shutdown()
        if self.settings.efficiency_report and self.ended:
            path = Path(self.settings.efficiency_report)
            jobs = [
                usage.Job(
                    record.name, dict(job.resources.items()), job.threads, usage.read(record.usage)
                )
                for job, record in self.ended
            ]
            for line in [*usage.report(jobs, path), f"Job by job: {path}"]:
                self.logger.info(line)

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        # Not those given: they are none while the other thread looks at them.
        jobs = list(self.live.values())
        for job in jobs:
            with suppress(OSError):
                job.cancelled.touch()
        if any(job.job_id.startswith("_") for job in jobs):
            try:
                self.cluster.look()  # for submissions that were cut short
                jobs = [job for job in jobs if self.cluster.state(job)[0]]
            except ClusterError as silent:
                self.logger.warning(f"{silent}; what was under way then is cancelled by its mark")
                jobs = [job for job in jobs if not job.job_id.startswith("_")]
        self.cluster.cancel(jobs)
