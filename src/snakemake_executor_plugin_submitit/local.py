"""One machine without a scheduler: each job gets free GPUs of its own, the others wait."""

import itertools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from submitit.local.local import LOCAL_REQUEUE_RETURN_CODE

from snakemake_executor_plugin_submitit.records import Record, lock
from snakemake_executor_plugin_submitit.slurm import clean_environment
from snakemake_executor_plugin_submitit.task import RESTARTS, TASK


def visible_gpus(environ: Mapping[str, str]) -> list[str]:
    """GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    if "CUDA_VISIBLE_DEVICES" in environ:
        return [gpu for gpu in environ["CUDA_VISIBLE_DEVICES"].split(",") if gpu.strip()]
    try:
        shown = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return [str(number) for number in range(shown.stdout.count("GPU "))]


class Local:
    """Starts jobs when there is room, and knows who lives."""

    array_size = 1
    patience = 2.0

    def __init__(self, settings: Any, logger: Any, latency: float) -> None:
        self.settings, self.gpus = settings, visible_gpus(os.environ)
        # By machine and user, so that studies side by side share no GPU either.
        self.slots = Path(tempfile.gettempdir(), f"snakemake-submitit-{os.getuid()}")
        self.slots.mkdir(exist_ok=True)
        self.waiting: dict[Path, Any] = {}

    def parameters(self, threads: int, resources: Mapping[str, Any]) -> dict[str, Any]:
        return {"gpu": resources.get("gpu") or 0, "minutes": resources.get("runtime") or 10**6}

    def submit(self, jobs: Sequence[Record], given: Mapping[str, Any], held: int) -> None:
        if given["gpu"] > len(self.gpus):
            raise RuntimeError(f"gpu={given['gpu']}, but this machine shows {len(self.gpus)} GPUs")
        for job in jobs:
            job.set_job_id("local")
            self.waiting[job.folder] = job, given  # until the other thread polls

    def poll(self) -> bool:
        """Start what waits and finds its GPUs free. What is known of local jobs is never old."""
        served = True
        for job, given in list(self.waiting.values()):
            gpus: dict[str, Any] = {}
            for slot, gpu in itertools.product(range(self.settings.jobs_per_gpu), self.gpus):
                wanted = served and len(gpus) < given["gpu"] and gpu not in gpus
                if wanted and (free := lock(self.slots / f"gpu-{gpu}.{slot}")):
                    gpus[gpu] = free
            if len(gpus) < given["gpu"]:
                served = False  # who wants many GPUs isn't overtaken by those who want few
            elif self.waiting.pop(job.folder, None):
                self._start(job, 60 * given["minutes"], gpus)
            for free in gpus.values():
                free.close()
        return True

    def _start(self, job: Record, seconds: int, gpus: Mapping[str, Any]) -> None:
        delay = min(self.settings.signal_delay, seconds // 2)
        arguments = [str(job.folder), str(seconds), str(delay), str(self.settings.max_requeues)]
        # The runner inherits the locks and holds them as long as it lives, whatever becomes of
        # this controller.
        with lock(job.folder / "alive") as alive, job.log.open("a") as log:
            subprocess.Popen(
                [sys.executable, "-m", __name__, *arguments],
                env=clean_environment(os.environ) | {"CUDA_VISIBLE_DEVICES": ",".join(gpus)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=[handle.fileno() for handle in (alive, *gpus.values())],
            )

    def look(self) -> None:
        """Nothing to ask: locks are looked at where they matter."""

    def state(self, job: Record) -> tuple[str, str, bool]:
        state = "PENDING" if job.folder in self.waiting else "RUNNING"
        if state == "RUNNING" and (free := lock(job.folder / "alive")):
            free.close()
            state = ""
        return state, "killed, or out of time without having stopped", False

    def cancel(self, jobs: Sequence[Record]) -> None:
        for job in jobs:  # one that runs looks for its mark itself
            self.waiting.pop(job.folder, None)


def run(folder: Path, seconds: float, delay: float, max_requeues: int) -> None:
    """Start a job, signal it `delay` ahead of its time's end, start it again if it asks for it."""
    env = {"SUBMITIT_EXECUTOR": "local", "SUBMITIT_LOCAL_JOB_ID": "local_0"}
    for restart in range(max_requeues + 2):  # the job itself refuses an attempt too many
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
    run(Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
