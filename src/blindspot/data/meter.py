"""How far a long read has come: a bar on a terminal, a line now and then in a log."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

#: Seconds between lines in a log.
EVERY = 10.0


class Meter:
    """Bytes of one task after the other."""

    def __init__(self, bar: "Progress") -> None:
        self._bar = bar
        self._name, self._done, self._total = "", 0, 0
        self._started = self._said = time.monotonic()

    def start(self, name: str, total: int) -> None:
        """Begin a task of `total` bytes."""
        self._name, self._done, self._total = name, 0, total
        self._started = self._said = time.monotonic()
        self._task = self._bar.add_task(name, total=total)

    def add(self, count: int) -> None:
        self._done += count
        self._bar.update(self._task, advance=count)
        now = time.monotonic()
        if self._bar.disable and now - self._said > EVERY:
            self._said = now
            speed = self._done / (now - self._started) / 1e6
            print(
                f"{self._name}: {self._done / 1e6:,.0f} of {self._total / 1e6:,.0f} MB, "
                f"{speed:.1f} MB/s",
                file=sys.stderr,
                flush=True,
            )


@contextmanager
def meter() -> Iterator[Meter]:
    """A `Meter` that writes to standard error."""
    # Here, because token files are read where rich may be missing.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.progress import TransferSpeedColumn as SpeedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), SpeedColumn())
    with Progress(
        *columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal
    ) as bar:
        yield Meter(bar)
