"""Locks that the operating system frees when their holder dies, even by `kill -9`.

A lock is a file, which stays and says who has it. `filelock` takes and frees it; here are the words
for people, and a look at who holds a lock that does not take it.
"""

import errno
import fcntl
import json
import os
import shlex
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from filelock import AcquireReturnProxy, FileLock, Timeout

from blindspot import provenance
from blindspot.errors import BlindspotError, LockedError

#: What a file system answers that has no locks (Lustre without -o flock, some FUSE mounts).
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL)
#: Seconds to try: a look by `holder` may be in the way for a moment.
PATIENCE = 0.2
STARTING = "a process that just starts"


def take(path: Path, waiting: Callable[[str], None] | None = None) -> AcquireReturnProxy[FileLock]:
    """Hold the lock `path` until what is returned is left as a context, or this process ends.

    Where another process holds it, `LockedError` says who; or `waiting` is told, once, and this
    waits. Raises `BlindspotError` where the file can't be written, or its file system has no locks.
    """
    lock = FileLock(path, preserve_lock_file=True, thread_local=False, on_acquired=_sign)
    told = False
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return lock.acquire(timeout=PATIENCE)
        except Timeout:
            who = holder(path) or STARTING
        except OSError as error:
            if error.errno in NO_LOCKS:
                raise BlindspotError(
                    f"{path.parent}: its file system can't lock files ({error.strerror}), so two "
                    f"processes could meet there; mount it with locks, or set `work` to another "
                    f"file system"
                ) from None
            # Another user's file can be read, though not written.
            known = holder(path)
            if known is None:
                raise BlindspotError(_cannot_write(path, error)) from None
            who = known
        if waiting is None:
            raise LockedError(who)
        if not told:
            waiting(who)
        told = True


def holder(path: Path) -> str | None:
    """Who holds the lock `path`, in words; None where nobody does, or it can't be read."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _described(os.pread(file, 4096, 0))
    except OSError:
        return None
    finally:
        os.close(file)
    return None


def _sign(file: int) -> None:
    """Write down who holds the lock."""
    record = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": provenance.now(),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }
    if job := os.environ.get("SLURM_JOB_ID"):
        record["slurm_job"] = job
    os.ftruncate(file, 0)
    os.pwrite(file, json.dumps(record).encode(), 0)


def _described(text: bytes) -> str:
    try:
        r = json.loads(text)
        job = f" (Slurm job {r['slurm_job']})" if "slurm_job" in r else ""
        return f"process {r['pid']} on {r['host']}{job}, since {r['since']}: {r['command']}"
    except (ValueError, KeyError, TypeError):
        return STARTING


def _cannot_write(path: Path, error: OSError) -> str:
    """Why a lock could not be written, whose it is, and what to do."""
    there = path if path.exists() else path.parent
    try:
        owner = f"; it belongs to {there.owner()}"
    except (OSError, KeyError):
        owner = ""
    return (
        f"{there}: can't be written ({error.strerror}{owner}); mend it, or set `work` in the "
        f"config to a folder that can"
    )
