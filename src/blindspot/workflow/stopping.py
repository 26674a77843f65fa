"""A signal that stops the controller stops its jobs too.

On SIGTERM Snakemake starts nothing more and waits for the jobs of this machine, however long they
take; of `kill -INT` they know nothing either. A trainer that is told saves its state and ends.
"""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import psutil

#: What stands around a job: it ends by itself when the job does, and its end would break the job's
#: pipe while that still saves its state.
AROUND = {"sh", "bash", "tee"}


def pass_on() -> None:
    """From now on SIGTERM and SIGINT go to all jobs of this process, then where they went before.

    For the main thread. Jobs that are sent off are in sessions of their own, and not meant.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _passing(signal.getsignal(number)))


def _passing(before: object) -> Callable[[int, FrameType | None], None]:
    def handle(number: int, frame: FrameType | None) -> None:
        session = os.getsid(0)
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error, OSError):
                if process.name() not in AROUND and os.getsid(process.pid) == session:
                    process.send_signal(number)
        if callable(before):
            before(number, frame)

    return handle
