"""One trainer a run: a lock that the operating system frees when its holder dies."""

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from blindspot.errors import LockedError


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold `folder/lock`; `LockedError` names the holder when another live process has it."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "a+", encoding="utf-8") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            handle.seek(0)
            raise LockedError(
                f"{folder}: another process trains this run already ({handle.read().strip()}); "
                f"wait for it, or stop it, and run the same command again"
            ) from None
        handle.seek(0)
        handle.truncate()
        holder = {"host": socket.gethostname(), "pid": os.getpid()}
        if job := os.environ.get("SLURM_JOB_ID"):
            holder["slurm_job"] = job
        json.dump(holder, handle)
        handle.flush()
        yield
