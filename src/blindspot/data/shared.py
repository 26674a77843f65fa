"""Folders that studies share: made by one process; who wants the same meanwhile waits for it."""

import sys
from collections.abc import Callable
from pathlib import Path

from blindspot import locks
from blindspot.errors import BlindspotError


def make(folder: Path, check: Callable[[], object], build: Callable[[], None]) -> None:
    """Call `build`, which makes the folder, unless `check` finds that all is there.

    `check` raises BlindspotError for what is not there, damaged, or not what is wanted. The lock
    lies beside the folder.
    """

    def waiting(who: str) -> None:
        print(f"{folder} is being made by {who}; waiting for it", file=sys.stderr, flush=True)

    with locks.take(folder.with_name(f"{folder.name}.lock"), waiting):
        try:
            check()
        except BlindspotError:
            build()
        else:
            print(f"{folder} is there already", file=sys.stderr)
