"""Slurm: jobs of equal resources become one array, and one squeue tells of all of them."""

import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

import submitit

from durable_jobs import OUT_OF_MEMORY, ClusterError, RefusedError, Settings
from durable_jobs.records import Record
from durable_jobs.task import TASK, clean_environment

#: Seconds between attempts to get an answer that must come.
DELAYS = (2, 4, 8, 16, 32, 60, 60, 60)
_BUSY = "timed out|unable to contact|temporarily|connection|zero bytes|standby|communication|again"
#: Why a job can never start.
_NEVER = re.compile(
    r"PartitionTimeLimit|PartitionNodeLimit|BadConstraints|Invalid\w+|\w+PerJob\w*"
    r"|launch failed requeued held|JobHoldMaxRequeue"
)
#: Final states; with words, if no result can follow.
_ENDED = {
    "CANCELLED": "cancelled, not by this workflow",
    "OUT_OF_MEMORY": OUT_OF_MEMORY,
    "TIMEOUT": "time limit: it was not stopped and requeued in time",
    **dict.fromkeys(("BOOT_FAIL", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "PREEMPTED"), ""),
}


def ask(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command of Slurm, out of reach of the terminal's Ctrl-C."""
    options |= {"capture_output": True, "check": False, "start_new_session": True}
    return subprocess.run(command, text=True, **options)


#: Slurm's own MaxArraySize where its configuration names none.
ARRAY_SIZE = 1000


def _array_size(logger: Any) -> int:
    """How many jobs an array may have, as Slurm says; if it does not, that is said."""
    try:
        done = ask(["scontrol", "show", "config"])
    except OSError as error:
        said = f"{error.strerror}"
    else:
        if found := re.search(r"MaxArraySize\s*=\s*(\d+)", done.stdout):
            return max(1, int(found[1]))
        said = done.stderr.strip() or f"exit code {done.returncode}, no MaxArraySize"
    logger.warning(
        f"scontrol show config did not say how many jobs an array may have ({said}); taken to be "
        f"{ARRAY_SIZE}. If Slurm takes fewer, submissions fail: ask for MaxArraySize of the cluster"
    )
    return ARRAY_SIZE


class Slurm:
    """Submits, knows what the queue said last, cancels."""

    def __init__(self, settings: Settings, logger: Any, latency: float) -> None:
        for tool in ("sbatch", "srun"):  # submitit asks for both
            if not shutil.which(tool):
                raise ClusterError(f"there is no {tool} here: start on a login node of the cluster")
        self.array_size = _array_size(logger)
        #: A result may come so many seconds after the queue has said that its job ended.
        self.patience = max(settings.poll_seconds + 5, latency)
        self.settings, self.logger, self.asked = settings, logger, float("-inf")
        self.queue: dict[str, tuple[str, str, str]] = {}

    def submit(self, jobs: Sequence[Record], given: Mapping[str, Any], held: int) -> None:
        """Submit an array, again if Slurm is busy. RefusedError has the reason if it is not taken.

        `given` are options of sbatch, and `extra`, which is put on its command line as it is."""
        folder, name = jobs[0].folder, jobs[0].name
        options = {"time": None, **given}
        extra = shlex.split(options.pop("extra"))
        flags = {"no-requeue" if self.settings.no_requeue else "requeue": True}
        if "reservation" in options:
            flags["reservation"] = options.pop("reservation")
        delay = min(self.settings.signal_delay, 30 * int(options["time"] or 10**6))
        executor = submitit.SlurmExecutor(folder)
        executor.update_parameters(
            job_name=self.settings.jobname_prefix
            + (name if len(jobs) == 1 else name.partition("-")[0]),
            comment=folder.name,
            array_parallelism=len(jobs),
            stderr_to_stdout=True,
            wckey=None,
            # No step around it: the signal comes to this process alone, and the job's own
            # `srun` has all of its nodes.
            use_srun=False,
            additional_parameters={**flags, "signal": f"B:USR2@{delay}"},
            setup=["trap '' USR2 TERM"],  # until Python can handle them, they must not end the job
            **options,
        )
        executor.parameters["map_count"] = len(jobs)
        script = folder / "sbatch.sh"
        command = f"exec {shlex.join([*TASK, str(folder)])}"
        script.write_text(executor._make_submission_file_text(command, ""))
        sbatch, env = ["sbatch", "--parsable", *extra, str(script)], clean_environment(os.environ)
        for seconds in (*DELAYS, None):
            done = ask(sbatch, env=env, pass_fds=[held])
            if not done.returncode:
                return jobs[0].set_job_id(done.stdout.strip().partition(";")[0])
            reason = re.sub(r"(?s).*(error|submission failed): ", "", done.stderr.strip())
            if seconds is None or not re.search(_BUSY, done.stderr, re.IGNORECASE):
                raise RefusedError(reason)
            self.logger.warning(f"Slurm is busy, asking again in {seconds} s: {reason}")
            time.sleep(seconds)
            self.look()
            if self.state(jobs[0])[0]:  # it had come, only the answer was lost
                return None

    def poll(self) -> bool:
        """Whether there is news; asks for all jobs together, and not too often."""
        return time.monotonic() - self.asked >= self.settings.poll_seconds and self._ask()

    def look(self) -> None:
        """Know the queue as it is now. Without an answer nothing may be submitted."""
        for seconds in DELAYS:
            if self._ask():
                return
            self.logger.warning(f"squeue does not answer, asking again in {seconds} s")
            time.sleep(seconds)
        raise ClusterError("squeue does not answer; start again when Slurm does")

    def _ask(self) -> bool:
        self.asked = time.monotonic()
        command = ["squeue", "--me", "--array", "--noheader", "--states=all"]
        try:
            done = ask([*command, "--format=%i|%T|%r|%k"], timeout=60)
        except subprocess.TimeoutExpired:
            return False
        rows = [row for line in done.stdout.splitlines() if len(row := line.split("|", 3)) == 4]
        if not done.returncode:
            self.queue = {job: (state, reason, comment) for job, state, reason, comment in rows}
        return not done.returncode

    def state(self, job: Record) -> tuple[str, str, bool]:
        """State of a job, "" if it has ended by what the queue said last; the reason; and whether
        it is sure that no result will follow."""
        if job.job_id.startswith("_"):
            # Submitted, perhaps, by a controller that did not live to write down the answer.
            for job_id, (_, _, comment) in self.queue.items():
                if comment == job.folder.name:
                    job.set_job_id(job_id.partition("_")[0])
        state, reason, _ = self.queue.get(job.job_id, ("", "", ""))
        if state in _ENDED:
            return "", _ENDED[state] or f"{state}, without a result", bool(_ENDED[state])
        if state == "PENDING" and _NEVER.fullmatch(reason):
            self.cancel([job])
            return "", f"can never start: {reason}", True
        return state, "lost: not in the queue any more, without a result", False

    def cancel(self, jobs: Sequence[Record]) -> None:
        known = [job.job_id for job in jobs]
        for start in range(0, len(known), 500):
            ask(["scancel", *known[start : start + 500]])
