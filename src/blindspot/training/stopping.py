"""Signals that ask a run to stop: noted from the start, acted on between two steps.

Ctrl-C, SIGTERM, SIGHUP (the terminal was closed), and SIGUSR2 (Slurm, ahead of a limit or a
preemption). `install` comes before the heavy imports, which take seconds: a signal in that time
would otherwise end the process at once. Imports nothing but the standard library.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)

_seen = 0


def _note(number: int, _frame: FrameType | None) -> None:
    global _seen
    _seen = number


def install() -> None:
    """From now on these signals are only noted. For the main thread."""
    for number in STOPS:
        # Under nohup a closed terminal is meant to stop nothing.
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _note)


@contextmanager
def noted() -> Iterator[None]:
    """Within this block signals are only noted, as are those since `install`, if it was called."""
    global _seen
    old = {number: signal.getsignal(number) for number in STOPS}
    if _note in old.values():
        yield
        return
    _seen = 0
    install()
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
        _seen = 0


def requested() -> int:
    """The last such signal, or 0."""
    return _seen


def request(number: int) -> None:
    """Act as if that signal had come: another rank of this run got it."""
    global _seen
    _seen = number


def name(number: int) -> str:
    return signal.Signals(number).name
