"""Trainings in processes of their own that are really killed: at random moments by their parent, or
by themselves at the n-th pass of a certain place (inside a save, between files, while logging)."""

import multiprocessing
import os
import signal
import sys
import time
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from blindspot import files, tensorfile
from blindspot.errors import BlindspotError
from blindspot.training import checkpoint, outcome, runlog, stopping
from blindspot.training import train as training
from blindspot.training.engine import Engine
from blindspot.training.job import Job
from blindspot.training.train import train

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGUSR2)


class Plan(NamedTuple):
    """When an attempt is interrupted, and how."""

    number: int
    #: "" for a moment in time, else a name of `PLACES`.
    place: str = ""
    #: Seconds from the start, or passes of the place; a fraction is how far into it.
    at: float = 0.0


#: Where an attempt can be struck: module or class, and function.
PLACES: dict[str, tuple[Any, str]] = {
    "step": (Engine, "step"),
    "harvest": (Engine, "harvest"),
    "log": (training.Trainer, "_log"),
    "say": (runlog, "open"),
    "validate": (training.Trainer, "_validate"),
    "save": (training.Trainer, "_save"),
    "write": (tensorfile, "save_file"),
    "sync": (files.os, "fsync"),
    "rename": (files.os, "replace"),
    "prune": (checkpoint, "prune"),
    "publish": (outcome, "write_text"),
    "finish": (outcome, "write_record"),
}


def _strike_at(plan: Plan) -> None:
    """Send this process the plan's signal just before or after the n-th call of its place."""
    owner, name = PLACES[plan.place]
    original = open if name == "open" else getattr(owner, name)
    calls, wanted, after = [0], max(1, int(plan.at)), plan.at % 1 > 0.5

    def struck(*arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] == wanted and not after:
            os.kill(os.getpid(), plan.number)
        result = original(*arguments, **named)
        if calls[0] == wanted and after:
            os.kill(os.getpid(), plan.number)
        return result

    setattr(owner, name, struck)


def _attempt(job: Job, plan: Plan | None) -> None:
    stopping.install()  # as the command line does, before all else
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    if plan is not None and plan.place:
        _strike_at(plan)
    try:
        train(job)
    except BlindspotError as error:
        sys.exit(error.exit_code)


def server() -> ForkServerContext:
    """A context whose processes start with everything imported."""
    # Before Python 3.12 its server finds only what the environment's path leads to.
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, [path])])
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["killing"])
    return context


def attempt(context: ForkServerContext, job: Job, plan: Plan | None = None) -> int:
    """Run one attempt; its exit code, negative where a signal ended it."""
    process = context.Process(target=_attempt, args=(job, plan), daemon=True)
    process.start()
    if plan is not None and not plan.place:
        while process.is_alive() and not caught(process.pid, signal.SIGUSR2):
            time.sleep(0.001)
        time.sleep(plan.at)
        if process.is_alive():
            os.kill(process.pid, plan.number)
    process.join(60)
    if process.is_alive():
        process.kill()
        raise AssertionError(f"an attempt hangs: {plan}")
    assert process.exitcode is not None
    return process.exitcode


def caught(pid: int, number: int) -> bool:
    """Whether a process handles this signal by now."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            masks = dict(line.split(":", 1) for line in file)
    except (FileNotFoundError, ProcessLookupError):
        return False
    return bool(int(masks.get("SigCgt", "0"), 16) >> (number - 1) & 1)


def random_plan(rng: np.random.Generator, longest: float) -> Plan:
    """Half the interruptions come at a moment within `longest` seconds, half at a place."""
    number = int(rng.choice(SIGNALS))
    if rng.random() < 0.5:
        return Plan(number, "", rng.uniform(0, longest))
    place = str(rng.choice(list(PLACES)))
    most = 8 if place in ("step", "harvest", "sync", "rename", "say") else 3
    return Plan(number, place, rng.uniform(1, most))
