"""Section `cells`: short real trainings of the 44M cells on token files, equal steps each.

A normal initialization of standard deviation 0.02 stands beside PyTorch's default, which makes the
tied embedding N(0, 1): whether the drift of norms is the initialization's is what they decide.

    runs.csv         what was trained: steps and tokens; seconds and tokens/s from the first logged
                     step to the last (data, log and all); compiled or not, and if so how long that
                     took
    trajectory.csv   as declared/training.py, led by the run's name
    perplexity.csv   validation, float32, every scored target once, by depth
    norms.csv        as declared/norms.py
    gradients.csv    as declared/gradients.py: radial fractions (`cos_abs_mean`)

All but runs.csv begin with `run` and `steps`. The trainer is the product's; only steps are planned
here, when their speed is seen; compiled, where section `speed` shows that this gives more of them.
"""

import csv
import dataclasses
import math
import signal
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from blindspot.config.execution import Execution
from blindspot.config.flops import training_per_token
from blindspot.config.spec import Measurement, RunSpec
from blindspot.data.tokens import Tokens
from blindspot.data.windows import count, scoring
from blindspot.declared import FILES
from blindspot.declared.training import TRAJECTORY
from blindspot.errors import InterruptedRunError
from blindspot.lm.heads import token_cross_entropy
from blindspot.measure import gradients, norms
from blindspot.measure.subject import Subject
from blindspot.training import stopping
from blindspot.training.job import Job, Progress
from blindspot.training.train import Trainer
from gpu.bench import Bench, engine
from gpu.plan import TRAININGS, Plan, Training

SIZE = "44m"
RUNS = (
    "run",
    "cell",
    "init_std",
    "size",
    "steps",
    "tokens",
    "seconds",
    "tokens_per_s",
    "compiled",
    "compile_s",
    "finished",
)
PERPLEXITY = ("run", "steps", "k", "tokens", "ce", "ppl")
#: Rows of the trajectory that a run of many steps has, about.
LOGGED = 20
#: Seconds to measure a run's weights, reckoned before the first was; and in every plan, a reserve.
MEASURING, RESERVE = 8.0, 0.08


class Costs(NamedTuple):
    """Seconds of a per-loop step and of compiling one cell."""

    step: float
    compile: float


class Schedule(NamedTuple):
    """The first `runs` trainings, `steps` each."""

    runs: int
    steps: int


def schedule(left: float, costs: Costs, plan: Plan, measuring: float = MEASURING) -> Schedule:
    """As many runs as can have the least number of steps within `left` seconds, as long as all of
    them can be; no runs where not even one can."""
    dear = _flops(plan, "perloop-rms")
    for runs in range(len(TRAININGS), 0, -1):
        chosen = TRAININGS[:runs]
        compiled = len({t.cell for t in chosen}) * costs.compile
        room = left * (1 - RESERVE) - runs * measuring - compiled
        steps = int(room / sum(costs.step * _flops(plan, t.cell) / dear for t in chosen))
        if steps >= plan.least_steps:
            return Schedule(runs, min(steps, plan.most_steps))
    return Schedule(0, 0)


def _flops(plan: Plan, cell: str) -> float:
    spec = plan.run(SIZE, cell)
    return training_per_token(spec.model, spec.objective)


def seen(out: Path) -> dict[str, Costs]:
    """Costs by path (eager, compiled) as section `speed` found them; none where it did not."""
    path = out / "speed.csv"
    if not path.exists():
        return {}
    with open(path, encoding="utf-8") as file:
        return {
            row["path"]: Costs(float(row["step_s"]), float(row["compile_s"] or 0))
            for row in csv.DictReader(file)
            if (row["size"], row["cell"]) == (SIZE, "perloop-rms")
        }


def seconds(plan: Plan, cell: str, steps: int, costs: Costs, measuring: float) -> float:
    """Seconds of one run whose cell was not compiled yet."""
    share = _flops(plan, cell) / _flops(plan, "perloop-rms")
    return costs.compile + steps * costs.step * share + measuring


def compiles(left: float, costs: dict[str, Costs], plan: Plan) -> bool:
    """Whether compiled trainings get further in the time that is left."""
    if "compiled" not in costs or "eager" not in costs:
        return False
    return schedule(left, costs["compiled"], plan) > schedule(left, costs["eager"], plan)


def run(bench: Bench, tokens: Path) -> None:
    data = Tokens.open(tokens)
    bench.plan = dataclasses.replace(bench.plan, vocab=data.vocab_size)
    Trainings(bench, data, seen(bench.out)).run()


class Trainings:
    """The runs, one after the other; cells that share a graph share its compilation."""

    def __init__(self, bench: Bench, data: Tokens, known: dict[str, Costs]) -> None:
        self.bench, self.data, self.known = bench, data, known
        self.compiled = compiles(bench.left, known, bench.plan)
        self.measuring = MEASURING if bench.device.type == "cuda" else 0.5
        self.runs = bench.sheet("runs", RUNS)
        self.trajectory = bench.sheet("trajectory", ("run", *TRAJECTORY.header))
        self.perplexity = bench.sheet("perplexity", PERPLEXITY)
        self.measured = {
            name: bench.sheet(name, ("run", "steps", *FILES[name].header))
            for name in ("norms", "gradients")
        }
        #: Known when the first run has begun.
        self.schedule: Schedule | None = None
        self.costs = Costs(0.0, 0.0)
        #: Whose graph is compiled.
        self.cell = ""

    def run(self) -> None:
        for training in TRAININGS:
            new = training.cell != self.cell
            if new:
                self.bench.forget()
                self.bench.free()
            if self.schedule is not None:
                # A run that cannot end is not begun: what is compared has equal steps.
                costs = self.costs if new else self.costs._replace(compile=0.0)
                steps = self.schedule.steps or self.bench.plan.least_steps
                needed = seconds(self.bench.plan, training.cell, steps, costs, self.measuring)
                if not self.bench.fits(training.name, needed):
                    continue
            self.cell = training.cell
            with self.bench.case(training.name), tempfile.TemporaryDirectory() as state:
                self._one(training, Path(state))

    def _one(self, training: Training, state: Path) -> None:
        plan, start = self.bench.plan, time.monotonic()
        spec = plan.run(
            SIZE, training.cell, data=self.data.meta["data"], init_std=training.init_std
        )
        if self.schedule is None:
            self.schedule = self._plan(spec)
            start = time.monotonic()
        steps = self.schedule.steps
        if not steps:
            raise TimeoutError(f"not even {plan.least_steps} steps fit")
        amounts = {"steps": steps, "log_every": max(1, steps // LOGGED), "validate_every": steps}
        settings = spec.training.model_copy(update=amounts)
        job = Job(
            training.name,
            spec.model_copy(update={"training": settings}),
            self.data.folder,
            out=state,
            state=state,
            device=self.bench.device.type,
            threads=torch.get_num_threads(),
            execution=Execution(compile=self.compiled),
        )
        trainer = Trainer(job)
        self._train(trainer, training)
        self._measure(trainer, training.name)
        p = trainer.progress
        extra = time.monotonic() - start - p.seconds - p.compile_seconds
        self.measuring = max(self.measuring, extra)

    def _plan(self, spec: RunSpec) -> Schedule:
        bench = self.bench
        made, ids = engine(spec, bench.device, compile=self.compiled), bench.ids(spec)
        first = bench.seconds(lambda: made.step(ids, 0))
        step = bench.seconds(lambda: made.step(ids, 0), times=5)
        # Section `speed` may have left this cell's graph in the compiler's cache.
        compile_s = max(first, self.known["compiled"].compile) if self.compiled else 0.0
        self.costs = Costs(step, compile_s)
        # This cell is compiled by now; an engine of the same shape takes up the graph.
        left = bench.left + compile_s
        found = schedule(left, self.costs, bench.plan, self.measuring)
        windows = count(len(self.data.split("train")), spec.windows)
        print(
            f"{found.runs} runs of {found.steps} steps "
            f"({found.steps * spec.batch / windows:.1f} passes over the windows), "
            f"{1e3 * step:.1f} ms a step, {first:.1f} s to the first",
            flush=True,
        )
        return found

    def _train(self, trainer: Trainer, training: Training) -> None:
        """Train to the end, or until there is just time to measure; keep what is known."""
        with stopping.noted():
            left = max(0.0, self.bench.left - self.measuring)
            end = threading.Timer(left, stopping.request, [signal.SIGUSR2])
            end.start()
            try:
                trainer.run()
            except InterruptedRunError as error:
                print(error, flush=True)
            finally:
                end.cancel()
                done = trainer.progress
                self.trajectory.add(*([training.name, *row] for row in done.rows))
        if not done.timing:
            raise TimeoutError("no time was left for a step")
        per_step = trainer.spec.batch * trainer.spec.windows.length
        lead = [training.name, training.cell, training.init_std, SIZE]
        first = done.compile_seconds if self.compiled else None
        finished = int(done.step == trainer.steps)
        amount = [done.step, done.step * per_step, *speed(done, per_step)]
        self.runs.add([*lead, *amount, int(self.compiled), first, finished])

    def _measure(self, trainer: Trainer, name: str) -> None:
        plan, done = self.bench.plan, trainer.progress.step
        settings = Measurement(norm_tokens=plan.norm_tokens, probe_tokens=plan.probe_tokens)
        subject = Subject(trainer.model.eval(), trainer.spec, settings, self.data)
        rows = perplexity(subject, plan.scored_tokens)
        self.perplexity.add(*([name, done, *row] for row in rows))
        for file, module in (("norms", norms), ("gradients", gradients)):
            table: Sequence[Sequence[Any]] = module.measure(subject)[file]
            self.measured[file].add(*([name, done, *row] for row in table))


def speed(done: Progress, per_step: int) -> tuple[float, float | None]:
    """Seconds from the first to the last logged step, and tokens/s in them: without compiling."""
    (first, start, _), (last, end, _) = done.timing[0], done.timing[-1]
    taken = end - start
    return taken, (last - first) * per_step / taken if taken > 0 else None


@torch.no_grad()
def perplexity(subject: Subject, budget: int) -> list[list[Any]]:
    """k, tokens, CE (nats a token) and perplexity at each depth, of about `budget` targets from the
    beginning of the validation split; each counts once and sees half a window before it at least,
    but for those at the start."""
    length = subject.spec.model.context
    stream = np.asarray(subject.tokens.split("validation")[: budget + 1])
    plan = scoring(len(stream), length, length // 2)
    rows = np.asarray(stream[plan[:, :1] + np.arange(length + 1)], dtype=np.int64)
    first, done = torch.from_numpy(plan[:, 1] - plan[:, 0] - 1), 0
    sums = [0.0] * subject.loops
    for inputs, targets in subject.chunks(rows):
        fresh = torch.arange(length) >= first[done : done + len(inputs), None]
        done += len(inputs)
        states = subject.model(inputs)
        for k in range(1, subject.loops + 1):
            readout = subject.model.readout(states[k], k)
            nll = token_cross_entropy(subject.model.embedding.weight, readout, targets)
            sums[k - 1] += float(nll[fresh.to(nll.device)].double().sum())
    n = len(stream) - 1
    return [[k, n, s / n, math.exp(min(s / n, 700))] for k, s in enumerate(sums, start=1)]
