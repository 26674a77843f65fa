"""One trainer a run: a lock that the operating system frees when its holder dies."""

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from blindspot.errors import BlindspotError, LockedError


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold `folder/lock`; `LockedError` names the holder when another live process has it.

    A `BlindspotError` says that the folder can't be written, or that its file system has no locks.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = open(folder / "lock", "a+", encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        raise BlindspotError(
            f"{folder}: can't be written ({error.strerror}); mend it, or set `work` in the config "
            f"to a folder that can"
        ) from None
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            raise LockedError(
                f"{folder}: another process trains this run already ({handle.read().strip()}); "
                f"wait for it, or stop it, and run the same command again"
            ) from None
        except OSError as error:
            raise BlindspotError(
                f"{folder}: its file system can't lock files ({error.strerror}), so two trainers "
                f"could meet there; mount it with locks, or set `work` to another file system"
            ) from None
        handle.seek(0)
        handle.truncate()
        holder = {"host": socket.gethostname(), "pid": os.getpid()}
        if job := os.environ.get("SLURM_JOB_ID"):
            holder["slurm_job"] = job
        json.dump(holder, handle)
        handle.flush()
        yield
