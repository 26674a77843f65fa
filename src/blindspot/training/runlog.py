"""What a training run reports as it runs: lines at the terminal, a log file, TensorBoard events.

None of it is a result, and none of it may end a run: on a full disk or a broken pipe it stays
silent.
"""

import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from blindspot import provenance
from blindspot.config.runfiles import PROGRESS

#: Seconds between progress lines on the terminal; the run's log has them all.
SHOW_EVERY = 5.0


#: The run's own log, which outlives every attempt.
LOG = "train.log"


def say(name: str, state: Path, text: str, show: bool = True) -> None:
    """Write a line to the terminal and to the run's own log."""
    if show:
        with suppress(OSError, ValueError):  # a pipe that nobody reads, a stream that is closed
            print(f"{name}: {text}", file=sys.stderr, flush=True)
    with suppress(OSError), open(state / LOG, "a", encoding="utf-8") as log:
        log.write(f"{provenance.now()} {text}\n")


def note(state: Path, **values: float) -> None:
    """Save the run's progress for `blindspot status`; NaN and infinite values are left out.

    Written completely or not at all, but not synced: after a power cut an older one is good enough.
    """
    known = {name: value for name, value in values.items() if math.isfinite(value)}
    text = json.dumps({"time": provenance.now()} | known)
    temporary = state / f".{PROGRESS}.new"
    with suppress(OSError):
        temporary.write_text(text, encoding="utf-8")
        temporary.rename(state / PROGRESS)


class Board:
    """TensorBoard events of a run, if TensorBoard is installed."""

    def __init__(self, writer: Any = None) -> None:
        self._writer = writer

    def add(self, step: int, table: Tensor, grad_norm: float) -> None:
        """A row of the log: `table` (K + 1, 5) of `trajectory.observe`."""
        if self._writer is None:
            return
        try:
            for k, values in enumerate(table.tolist()):
                if k:
                    self._writer.add_scalar(f"ce/{k}", values[0], step)
                self._writer.add_scalar(f"norm/{k}", values[1], step)
            self._writer.add_scalar("grad_norm", grad_norm, step)
        except OSError:
            self._writer = None


@contextmanager
def tensorboard(folder: Path, step: int) -> Iterator[Board]:
    """Events in `folder` from `step` on; later ones are dropped, as they are trained again."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        yield Board()
        return
    try:
        writer = SummaryWriter(str(folder), purge_step=step + 1)
    except OSError:
        yield Board()
        return
    try:
        yield Board(writer)
    finally:
        with suppress(OSError):
            writer.close()
