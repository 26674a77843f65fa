"""One trainer per run."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from blindspot import locks
from blindspot.errors import LockedError


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold `folder/lock`; `LockedError` names the holder if another live process has it.

    A `BlindspotError` says that the folder can't be written, or that its file system has no locks.
    """
    try:
        lock = locks.take(folder / "lock")
    except LockedError as error:
        raise LockedError(
            f"{folder}: another process trains this run already ({error}); "
            f"wait for it, or stop it, and run the same command again"
        ) from None
    with lock:
        yield
