"""One machine without a scheduler: each job gets free GPUs of its own, the others wait."""

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from submitit.local.local import LOCAL_REQUEUE_RETURN_CODE

from durable_jobs import RefusedError, Settings
from durable_jobs.records import Record, lock
from durable_jobs.task import RESTARTS, TASK, clean_environment


def visible_gpus(environ: Mapping[str, str]) -> list[str]:
    """GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them: as CUDA reads it, a
    negative number ends the list, so -1 hides them all."""
    if "CUDA_VISIBLE_DEVICES" in environ:
        named = [gpu.strip() for gpu in environ["CUDA_VISIBLE_DEVICES"].split(",")]
        shown = takewhile(lambda gpu: not gpu.startswith("-"), named)
        return [gpu for gpu in shown if gpu]
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return [str(number) for number in range(listed.stdout.count("GPU "))]


class Local:
    """Starts a runner for each job, and knows which of them live."""

    array_size = 1
    patience = 2.0

    def __init__(self, settings: Settings, logger: Any, latency: float) -> None:
        self.settings, self.gpus = settings, visible_gpus(os.environ)

    def submit(self, jobs: Sequence[Record], given: Mapping[str, Any], held: int) -> None:
        """Start a process for each, with `given`: `count` GPUs of its own, and `seconds`."""
        if (count := given["count"]) > len(self.gpus):
            raise RefusedError(f"gpu={count}, but this machine shows {len(self.gpus)} GPUs")
        order = {
            **given,
            "delay": min(self.settings.signal_delay, given["seconds"] // 2),
            "max_requeues": 0 if self.settings.no_requeue else self.settings.max_requeues,
            "gpus": self.gpus,
            "share": self.settings.jobs_per_gpu,
        }
        for job in jobs:
            job.set_job_id("local")
            # The runner inherits the lock, and holds it whatever becomes of this controller.
            with lock(job.folder / "alive") as alive, job.log.open("a") as log:
                subprocess.Popen(
                    [sys.executable, "-m", __name__, str(job.folder), json.dumps(order)],
                    env=clean_environment(os.environ),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=[alive.fileno()],
                )

    def poll(self) -> bool:
        """What is known of local jobs is never old."""
        return True

    def look(self) -> None:
        """Nothing to ask: locks are looked at where they matter."""

    def state(self, job: Record) -> tuple[str, str, bool]:
        free = lock(job.folder / "alive")
        if free:
            free.close()
        return "" if free else "RUNNING", "killed, or out of time without having stopped", False

    def cancel(self, jobs: Sequence[Record]) -> None:
        """Nothing to do: a job looks for its mark itself."""


def take(gpus: Sequence[str], count: int, share: int, cancelled: Path) -> dict[str, Any]:
    """Wait for free GPUs, for as long as the job is wanted; the open files are the claims."""
    # By machine and user, so that studies side by side share no GPU either.
    slots = Path(tempfile.gettempdir(), f"durable-jobs-{os.getuid()}")
    slots.mkdir(exist_ok=True)
    turn = None
    while count and not cancelled.exists():
        # One job at a time, so that who wants many GPUs isn't overtaken by those who want few.
        turn = turn or lock(slots / f"turn-{','.join(gpus)}")
        taken: dict[str, Any] = {}
        for slot, gpu in itertools.product(range(share), gpus if turn else []):
            wanted = len(taken) < count and gpu not in taken
            if wanted and (free := lock(slots / f"gpu-{gpu}.{slot}")):
                taken[gpu] = free
        if len(taken) == count:
            return taken
        for free in taken.values():
            free.close()
        time.sleep(0.5)
    return {}


def run(
    folder: Path,
    seconds: float,
    delay: float,
    max_requeues: int,
    gpus: Sequence[str] = (),
    count: int = 0,
    share: int = 1,
) -> None:
    """Start a job, signal it `delay` ahead of its time's end, start it again if it asks for it."""
    own = take(gpus, count, share, folder / "0.cancel")
    env = {"SUBMITIT_EXECUTOR": "local", "SUBMITIT_LOCAL_JOB_ID": "local_0"}
    env["CUDA_VISIBLE_DEVICES"] = ",".join(own)
    for restart in range(max_requeues + 2):  # the job itself refuses an attempt too many
        if (folder / "0.cancel").exists():
            return
        env[RESTARTS] = str(restart)
        task = subprocess.Popen([*TASK, str(folder)], env=os.environ | env)
        for wait, number in ((seconds - delay, signal.SIGUSR2), (delay, signal.SIGKILL)):
            try:
                task.wait(wait)
                break
            except subprocess.TimeoutExpired:
                task.send_signal(number)
        if task.wait() != LOCAL_REQUEUE_RETURN_CODE:
            return


if __name__ == "__main__":
    run(Path(sys.argv[1]), **json.loads(sys.argv[2]))
