"""`blindspot calibrate`: a few real optimizer steps of each shape and objective of a study.

The steps are the trainer's own (engine.py), on random tokens and fresh weights: the time of dense
products does not depend on values. Kept in `work/calibration/`, one file a device.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from blindspot import provenance
from blindspot.config.execution import Execution
from blindspot.config.spec import RunSpec
from blindspot.config.study import Study
from blindspot.files import write_json
from blindspot.lm.device import autocast, resolve
from blindspot.lm.objective import cross_entropy
from blindspot.plan.calibration import code
from blindspot.plan.workload import classes, step_flops
from blindspot.training import train
from blindspot.training.engine import Engine

#: Seconds that a shape's steps are timed for, and steps at most.
BUDGET, MOST = 1.0, 30
#: FLOPs of a step above which a CPU times one of fewer sequences.
CPU_STEP = 2e10


def calibrate(study: Study, threads: int, processes: int) -> Path:
    """Time every class of steps of a study; returns the file.

    On a CPU, `processes` of one class each run at once, as trainings do; on a GPU one after the
    other.
    """
    chosen, execution = resolve(study.config.device), study.config.execution
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    todo = list(classes(run.spec for run in study.runs).items())
    if chosen.type == "cuda":
        parts = [timed(dict(todo), chosen, threads, execution)]
    else:
        shares = [dict(todo[i::processes]) for i in range(processes)]
        parts = _side_by_side(shares, threads, execution)
    name = provenance.device_name(chosen)
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    path = study.work / "calibration" / f"{slug}-{threads}.json"
    steps: dict[str, Any] = {}
    for part in parts:
        steps |= part["steps"]
    write_json(
        path,
        {
            "code": code(),
            "device": name,
            "threads": threads,
            "start": round(max(part["start"] for part in parts), 2),
            "load": round(load, 2),
            "made": provenance.now(),
            "steps": steps,
            "compiled": any(part["compiled"] for part in parts),
            "compile_seconds": round(max(part["compile_seconds"] for part in parts), 2),
        },
    )
    return path


def _side_by_side(
    shares: Sequence[Mapping[str, RunSpec]], threads: int, execution: Execution
) -> list[dict[str, Any]]:
    """`timed` on the CPU, each share in a process of its own, at the same time."""
    workers, how = [], execution.model_dump_json()
    for share in shares:
        if not share:
            continue
        worker = subprocess.Popen(
            [sys.executable, "-m", "blindspot.plan.calibrate", str(threads), how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert worker.stdin is not None
        worker.stdin.write(json.dumps({key: spec.identity() for key, spec in share.items()}))
        worker.stdin.close()
        workers.append(worker)
    found = []
    for worker in workers:
        assert worker.stdout is not None
        with worker.stdout as out:
            text = out.read()
        if worker.wait():
            raise RuntimeError(f"a calibration ended with status {worker.returncode}")
        found.append(json.loads(text))
    return found


def timed(
    specs: Mapping[str, RunSpec], device: torch.device, threads: int, execution: Execution
) -> dict[str, Any]:
    """`start`, the seconds before a process trains, `steps`: class to its times, `compiled`, and
    `compile_seconds`: the most that compiling a step took."""
    torch.set_num_threads(threads)
    _ = train  # what a trainer imports counts
    ready = provenance.process_seconds() or 0.0
    found: dict[str, Any] = {}
    first, compiling = 0.0, 0.0
    for number, (key, spec) in enumerate(specs.items()):
        engine, ids = _engine(spec, device, execution)
        if engine.compiled:
            torch.compiler.reset()  # graphs of other classes count for one limit
        compiling = max(compiling, engine.compile(ids))
        found[key], lead = _class(engine, ids, spec)
        if number == 0:
            first = lead
        print(f"calibrated {number + 1} of {len(specs)} shapes", file=sys.stderr, flush=True)
    known = {"compiled": engine.compiled, "compile_seconds": compiling}
    return {"start": ready + first, "steps": found} | known


def _engine(spec: RunSpec, device: torch.device, execution: Execution) -> tuple[Engine, Tensor]:
    """The trainer's engine for a class, and ids of a step; on a CPU perhaps of fewer sequences."""
    share = 1.0
    if device.type == "cpu":
        share = min(1.0, CPU_STEP / step_flops(spec))
    batch = max(1, int(spec.batch * share))
    small = spec.model_copy(update={"batch": batch})
    # A schedule wants to know how long the run is; here it makes no difference.
    engine = Engine(small, device, execution, steps=10**6)
    engine.model.train()
    shape = (batch, spec.windows.length + 1)
    return engine, torch.randint(spec.model.vocab_size, shape, device=device)


def _class(engine: Engine, ids: Tensor, spec: RunSpec) -> tuple[dict[str, float], float]:
    """Times of a class, and how many seconds its first steps took beyond those of later ones."""
    batch = len(ids)

    def step(number: int, look: bool = False) -> float:
        started = time.perf_counter()
        engine.step(ids, number, look)
        engine.harvest()  # waits for the device
        return time.perf_counter() - started

    lead = [step(0, look=True), step(1), step(2)]
    seconds: list[float] = []
    while len(seconds) < 3 or (sum(seconds) < BUDGET and len(seconds) < MOST):
        seconds.append(step(3 + len(seconds)))
    typical = statistics.median(seconds)
    logged = step(3 + len(seconds), look=True)
    typical += max(0.0, logged - typical) / spec.training.log_every
    validated = _validation(engine, spec, ids)
    times = {
        "seconds": typical * spec.batch / batch,
        "flops": step_flops(spec),
        "validation_seconds_per_token": validated,
    }
    return times, max(0.0, sum(lead) - len(lead) * typical)


@torch.no_grad()
def _validation(engine: Engine, spec: RunSpec, ids: Tensor) -> float:
    """Seconds a token of a validation pass: all depths decoded, no dropout."""
    engine.model.eval()
    times = []
    for _ in range(3):
        started = time.perf_counter()
        with autocast(spec.training.precision, engine.device):
            states = engine.model(ids[:, :-1])
            total = sum(
                cross_entropy(engine.model, states[k], k, ids[:, 1:]) for k in range(1, len(states))
            )
        float(total)
        times.append(time.perf_counter() - started)
    return min(times) / (ids.numel() - len(ids))


if __name__ == "__main__":
    given = {key: RunSpec.model_validate(value) for key, value in json.load(sys.stdin).items()}
    how = Execution.model_validate_json(sys.argv[2])
    print(json.dumps(timed(given, torch.device("cpu"), int(sys.argv[1]), how)))
