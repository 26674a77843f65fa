"""What runs on the node: one Snakemake job, asked to stop ahead of its end, then requeued."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from submitit.core.job_environment import JobEnvironment
from submitit.core.submission import process_job
from submitit.helpers import Checkpointable, DelayedSubmission
from submitit.slurm.slurm import SlurmJobEnvironment

#: The command that runs a job of the batch in the folder which follows.
TASK = [sys.executable, "-u", "-m", "snakemake_executor_plugin_submitit.task"]
#: How often the job was started before; its program finds this in the environment too.
RESTARTS = "SUBMITIT_RESTARTS"
#: Seconds a cancelled job has to save its state.
CANCEL_GRACE = 7.0
#: bash reads this first. Schedulers signal every process of a job, and a shell or `tee` that dies
#: of SIGTERM breaks the pipe of a program which is saving its state.
BASH_ENV = """trap '' TERM USR2; [ -z "$OUTER_BASH_ENV" ] || . "$OUTER_BASH_ENV"\n"""
_SIGNALS = (signal.SIGTERM, signal.SIGUSR2)


class _Finished(BaseException):
    """The command ended well while it was being stopped."""


def _before_exec() -> None:
    # Ignored signals stay ignored across exec; programs that can stop install their own handlers.
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


@dataclass
class Task(Checkpointable):
    """A job's command, and how to stop it. submitit calls it, and `checkpoint` on SIGUSR2."""

    name: str
    command: str
    cancelled: Path
    #: Seconds that stopping may take.
    grace: float
    max_requeues: int
    env: dict[str, str]
    cwd: Path = field(default_factory=Path.cwd)
    pid: int = field(default=0, init=False)
    code: int | None = field(default=None, init=False)

    def __call__(self) -> None:
        restarts = int(os.environ.get("SLURM_RESTART_COUNT") or os.environ.get(RESTARTS) or 0)
        cpus, gpus = len(os.sched_getaffinity(0)), os.environ.get("CUDA_VISIBLE_DEVICES", "")
        where = f"{socket.gethostname()}, {time.strftime('%F %T')}, {cpus} CPUs, GPUs [{gpus}]"
        print(f"== attempt {restarts + 1} of {self.name}: {where}", flush=True)
        if restarts > self.max_requeues:
            raise RuntimeError(f"requeued {restarts} times, max_requeues is {self.max_requeues}")
        env = os.environ | {
            "OUTER_BASH_ENV": os.environ.get("BASH_ENV", ""),
            "BASH_ENV": str(self.cancelled.with_name("bash_env")),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            RESTARTS: str(restarts),
        }
        signal.signal(signal.SIGTERM, self.leave)
        # A signal between the fork and the note of the pid would find nothing to stop.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        # The object is kept: were it collected, it would reap a command that has ended by then, and
        # its status would be lost.
        process = subprocess.Popen(
            ["/bin/sh", "-c", self.command],
            cwd=self.cwd,
            env=env | self.env,
            preexec_fn=_before_exec,
            start_new_session=True,
        )
        self.pid = process.pid
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            while not self.ended(1):
                if self.cancelled.exists():
                    self.leave()
        except _Finished:
            return
        finally:
            self.stop(0)
        if self.code:
            raise RuntimeError(f"exit status {self.code}")

    def ended(self, seconds: float) -> bool:
        """Whether the command ends in that time. No Popen.wait: this also runs in a signal handler,
        and the lock in there is not reentrant."""
        end = time.monotonic() + seconds
        while self.code is None and time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
            else:
                time.sleep(0.1)
        return self.code is not None

    def stop(self, seconds: float) -> None:
        """Ask the command to save its state and stop, insist after so many seconds, and leave
        nothing of it: the next attempt must not meet it."""
        with suppress(ProcessLookupError):
            if self.pid and seconds and self.code is None:
                os.killpg(self.pid, signal.SIGUSR2)
                self.ended(seconds)
            if self.pid:
                os.killpg(self.pid, signal.SIGKILL)
                self.ended(60)
        if seconds and self.code == 0:
            raise _Finished

    def leave(self, *_: Any) -> None:
        """After SIGTERM: cancelled, or preempted, and then the scheduler requeues."""
        cancelled = self.cancelled.exists() or "SLURM_JOB_ID" not in os.environ
        self.stop(CANCEL_GRACE if cancelled else self.grace)
        if not cancelled:
            time.sleep(900)  # an exit of our own would turn preemption into failure
        os._exit(128 + signal.SIGTERM)

    def checkpoint(self) -> DelayedSubmission:
        """Stop the command; submitit then requeues the job, or says that it may not."""
        for number in _SIGNALS:  # all is decided; and what requeues inherits this
            signal.signal(number, signal.SIG_IGN)
        print("== stopping ahead of the end of this attempt", flush=True)
        self.stop(self.grace)
        return DelayedSubmission(replace(self))


def _requeue(self: SlurmJobEnvironment, countdown: int) -> None:
    """submitit makes an error result of a refusal. But Slurm refuses to requeue a preempted job
    because it does so itself; with an error result that job would count as failed."""
    if subprocess.run(["scontrol", "requeue", self.job_id], check=False).returncode:
        time.sleep(900)


def main(folder: Path) -> None:
    """Run the job of a batch that this process was started for, unless it has a result."""
    os.environ["SUBMITIT_FOLDER"] = str(folder)
    environment = JobEnvironment()
    paths = environment.paths
    if paths.result_pickle.exists():
        return
    # An attempt that was killed while submitit rewrote its pickle leaves half of one, or none.
    for path in folder.glob(f"{environment.job_id}_*.save_tmp"):
        path.unlink()
    if not paths.submitted_pickle.exists():
        index = environment.job_id.rpartition("_")[2]
        shutil.copy(folder / f"{index}.pkl", folder / f".{index}.{os.getpid()}")
        (folder / f".{index}.{os.getpid()}").replace(paths.submitted_pickle)
    if environment.name() == "slurm":
        SlurmJobEnvironment._requeue = _requeue  # type: ignore[method-assign]
        # An array has one name for all its jobs.
        name = getattr(DelayedSubmission.load(paths.submitted_pickle).function, "name", "task")
        command = ["scontrol", "update", f"JobId={environment.job_id}", f"JobName={name}"]
        subprocess.run(command, check=False, capture_output=True)
    process_job(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
