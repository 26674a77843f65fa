"""Who works on a study: locks that the operating system frees when their holder dies.

Snakemake's own lock outlives a killed process, and it covers every file that a plan mentions, so
two studies could not share tokens. Here a controller (the Snakemake that a person started) holds
its study, and, until they are there, the tokens that it makes for others too.
"""

import fcntl
import json
import os
import shlex
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from blindspot import provenance
from blindspot.errors import LockedError

#: Names the locks that a restarted controller still holds.
KEPT = "BLINDSPOT_KEPT_LOCKS"


def _kept() -> dict[Path, int]:
    kept = {Path(lock): file for lock, file in json.loads(os.environ.pop(KEPT, "{}")).items()}
    for file in kept.values():
        # Jobs must not inherit it, or a job that outlives its controller would hold the study.
        os.set_inheritable(file, False)
    return kept


#: Open files of held locks: they last as long as the process.
_HELD = _kept()


def holder(lock: Path) -> str | None:
    """Who holds a lock, in words; None where nobody does."""
    try:
        file = os.open(lock, os.O_RDWR)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return _described(os.pread(file, 4096, 0))
    finally:
        os.close(file)
    return None


def claim(lock: Path) -> None:
    """Hold `lock` until this process ends; `LockedError` says who has it already."""
    if lock in _HELD:
        return
    lock.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        said = _described(os.pread(file, 4096, 0))
        os.close(file)
        raise LockedError(said) from None
    record = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": provenance.now(),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }
    os.ftruncate(file, 0)
    os.pwrite(file, json.dumps(record).encode(), 0)
    _HELD[lock] = file


def claim_or_await(lock: Path, made: Path, say: Callable[[str], None], every: float = 1.0) -> bool:
    """Hold `lock` to make the file `made`, or wait until its holder has made it.

    Returns whether it was made meanwhile. `say` is told once who is waited for.
    """
    told = False
    while not made.exists():
        try:
            claim(lock)
        except LockedError as error:
            if not told:
                say(str(error))
            told = True
            time.sleep(every)
        else:
            # Its last holder may have finished between the two looks.
            return made.exists()
    return True


def restart(moved: bool) -> NoReturn:
    """Start this process's command over; its locks stay held meanwhile. With `moved` it has left
    the folder that it was typed in, which the shell's PWD still names."""
    for file in _HELD.values():
        os.set_inheritable(file, True)
    os.environ[KEPT] = json.dumps({str(lock): file for lock, file in _HELD.items()})
    os.chdir(os.environ["PWD"] if moved else ".")
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _described(text: bytes) -> str:
    try:
        r = json.loads(text)
        return f"process {r['pid']} on {r['host']}, since {r['since']}: {r['command']}"
    except (ValueError, KeyError, TypeError):
        return "a process that just starts"
