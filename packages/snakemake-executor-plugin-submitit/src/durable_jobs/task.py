"""What runs on the node: one command, asked to stop ahead of its end, then requeued."""

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from submitit.core.job_environment import JobEnvironment
from submitit.core.submission import process_job
from submitit.helpers import Checkpointable, DelayedSubmission
from submitit.slurm.slurm import SlurmJobEnvironment

from durable_jobs import OUT_OF_MEMORY, Settings, usage
from durable_jobs.records import Record

#: The command that runs a job of the batch in the folder which follows.
TASK = [sys.executable, "-u", "-m", "durable_jobs.task"]
#: How often the job was started before; its program finds this in the environment too.
RESTARTS = "SUBMITIT_RESTARTS"
#: Seconds a cancelled job has to save its state.
CANCEL_GRACE = 7.0
#: bash reads this first. Schedulers signal every process of a job, and a shell or `tee` that dies
#: of SIGTERM breaks the pipe of a program which is saving its state.
BASH_ENV = """trap '' TERM USR2; [ -z "$OUTER_BASH_ENV" ] || . "$OUTER_BASH_ENV"\n"""
_SIGNALS = (signal.SIGTERM, signal.SIGUSR2)
_INHERITED = re.compile(
    r"(SLURM|SLURMD|SRUN|SBATCH|SUBMITIT)_(?!CONF$).*|(CUDA|ROCR)_VISIBLE_DEVICES"
    r"|GPU_DEVICE_ORDINAL|MASTER_(ADDR|PORT)|(LOCAL_)?(RANK|WORLD_SIZE)"
)


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without traces of a job that the controller may itself run in."""
    return {key: value for key, value in environ.items() if not _INHERITED.fullmatch(key)}


def _ignore() -> None:
    # Ignored signals stay ignored across exec; programs that can stop install their own handlers.
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    return process.returncode is not None


def oom_kills(process: Path = Path("/proc/self"), root: Path = Path("/sys/fs/cgroup")) -> int:
    """How many processes of this job the kernel has killed for want of memory, by its cgroup; Slurm
    knows it later. 0 where jobs have no cgroup."""
    with suppress(OSError):
        for line in (process / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers not in ("", "memory"):
                continue
            file = "memory/{}/memory.oom_control" if controllers else "{}/memory.events"
            with suppress(OSError):
                text = (root / file.format(path.lstrip("/"))).read_text()
                if found := re.search(r"^oom_kill (\d+)$", text, re.MULTILINE):
                    return int(found[1])
    return 0


@dataclass
class Task(Checkpointable):
    """A job's command, and how to stop it. It has no state: submitit requeues it as it is."""

    name: str
    command: str
    cancelled: Path
    #: Seconds that stopping may take.
    grace: float
    max_requeues: int
    env: dict[str, str]
    cwd: Path = field(default_factory=Path.cwd)
    #: Whether it looks at what it uses.
    metered: bool = False

    def __call__(self) -> None:
        restarts = int(os.environ.get("SLURM_RESTART_COUNT") or os.environ.get(RESTARTS) or 0)
        cpus, gpus = len(os.sched_getaffinity(0)), os.environ.get("CUDA_VISIBLE_DEVICES", "")
        nodes = os.environ.get("SLURM_JOB_NODELIST") or socket.gethostname()
        where = f"{nodes}, {time.strftime('%F %T')}, {cpus} CPUs, GPUs [{gpus}]"
        print(f"== attempt {restarts + 1} of {self.name}: {where}", flush=True)
        if restarts > self.max_requeues:
            raise RuntimeError(f"requeued {restarts} times, max_requeues is {self.max_requeues}")
        # submitit's handler would work inside the signal; here signals are noted, and looked at.
        requeue: Any = signal.getsignal(signal.SIGUSR2)
        signals: set[int] = set()
        for number in _SIGNALS:
            signal.signal(number, lambda number, _: signals.add(number))
        env = os.environ | {
            "OUTER_BASH_ENV": os.environ.get("BASH_ENV", ""),
            "BASH_ENV": str(self.cancelled.with_name("bash_env")),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            RESTARTS: str(restarts),
        }
        if "SLURM_JOB_ID" in os.environ:
            # What the ranks of a job's own srun need: where they meet, and their CPUs, which it
            # has not taken from sbatch since 22.05.
            env["MASTER_ADDR"] = socket.gethostname()
            env["MASTER_PORT"] = str(20000 + int(os.environ["SLURM_JOB_ID"]) % 40000)
            env["SRUN_CPUS_PER_TASK"] = os.environ.get("SLURM_CPUS_PER_TASK", "1")
        process = subprocess.Popen(
            ["/bin/sh", "-c", self.command],
            cwd=self.cwd,
            env=env | self.env,
            preexec_fn=_ignore,
            start_new_session=True,
        )
        meter, kills = usage.Meter(process.pid, env), oom_kills()
        try:
            while not (_ended(process, 1) or signals or self.cancelled.exists()):
                if self.metered:
                    meter.look()
            # SIGTERM alone: preempted, and then the scheduler requeues; or cancelled.
            cancelled = self.cancelled.exists() or not (
                signal.SIGUSR2 in signals or "SLURM_JOB_ID" in os.environ
            )
            if process.returncode is None:
                print("== stopping ahead of the end of this attempt", flush=True)
                os.killpg(process.pid, signal.SIGUSR2)
                _ended(process, CANCEL_GRACE if cancelled else self.grace)
        finally:
            with suppress(ProcessLookupError):  # the next attempt must not meet anything of it
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if self.metered:
                meter.save(self.cancelled.with_suffix(".usage.json"))
        if process.returncode == 0:
            return
        if not signals and not self.cancelled.exists():
            if oom_kills() > kills:
                raise RuntimeError(OUT_OF_MEMORY)
            raise RuntimeError(f"exit status {process.returncode}")
        _ignore()  # all is decided; and what requeues inherits this
        if cancelled:
            os._exit(128 + signal.SIGTERM)
        if signal.SIGUSR2 in signals:
            requeue(signal.SIGUSR2)
        time.sleep(900)  # an exit of our own would turn preemption into failure


def new_batch(root: Path) -> Path:
    """A folder for jobs that are submitted together; its name travels as their comment."""
    folder = root / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"
    folder.mkdir()
    (folder / "bash_env").write_text(BASH_ENV)
    return folder


def write(record: Record, command: str, minutes: int | None, settings: Settings) -> None:
    """Write down a job, and what is to run for it, in the folder of its batch."""
    requeues = 0 if settings.no_requeue else settings.max_requeues
    task = Task(
        name=settings.jobname_prefix + record.name,
        command=command,
        cancelled=record.cancelled,
        grace=0.8 * settings.signal_delay,
        max_requeues=requeues,
        metered=bool(settings.efficiency_report),
        env=dict(pair.split("=", 1) for pair in settings.env.split()),
    )
    call = DelayedSubmission(task)
    call.set_timeout(minutes or 10**6, requeues)
    call.dump(record.folder / f"{record.index}.pkl")
    record.save()


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
    index = environment.job_id.rpartition("_")[2]
    if not paths.submitted_pickle.exists():
        shutil.copy(folder / f"{index}.pkl", folder / f".{index}.{os.getpid()}")
        (folder / f".{index}.{os.getpid()}").replace(paths.submitted_pickle)
    if environment.name() == "slurm":
        SlurmJobEnvironment._requeue = _requeue  # type: ignore[method-assign]
        # An array has one name for all its jobs.
        call = DelayedSubmission.load(folder / f"{index}.pkl")
        name = getattr(call.function, "name", "task")
        command = ["scontrol", "update", f"JobId={environment.job_id}", f"JobName={name}"]
        subprocess.run(command, check=False, capture_output=True)
    process_job(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
