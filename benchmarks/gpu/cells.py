"""Section `cells`: short real trainings of the 44M cells on token files, equal steps each.

A normal initialization of standard deviation 0.02 stands beside PyTorch's default, which makes the
tied embedding N(0, 1): whether the drift of norms is the initialization's is what they decide.

    runs.csv         what was trained: steps, seconds, tokens/s (data, log and all), compiled or not
    trajectory.csv   of training batches: as training/trajectory.py, led by the run's name
    perplexity.csv   validation, float32, every scored target once, by depth
    norms.csv        as measure/norms.py
    gradients.csv    as measure/gradients.py: radial fractions (`cos_abs_mean`)

All but runs.csv begin with `run` and `steps`. Steps are planned when the first run's speed is seen;
compiled, where section `speed` shows that this gives more of them.
"""

import csv
import dataclasses
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from blindspot.config.flops import training_per_token
from blindspot.config.spec import Measurement, RunSpec
from blindspot.data.tokens import Tokens
from blindspot.data.windows import Batches, count, scoring
from blindspot.lm.heads import token_cross_entropy
from blindspot.lm.model import LoopedLM
from blindspot.measure import gradients, norms
from blindspot.measure.subject import Subject
from blindspot.training import trajectory
from blindspot.training.engine import Engine
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
#: Steps between rows of the trajectory, as a share of all.
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
        self.trajectory = bench.sheet("trajectory", ("run", *trajectory.COLUMNS))
        self.perplexity = bench.sheet("perplexity", PERPLEXITY)
        self.measured = {
            name: bench.sheet(name, ("run", "steps", *module.FILES[name]))
            for name, module in (("norms", norms), ("gradients", gradients))
        }
        #: Known when the first run has begun.
        self.schedule: Schedule | None = None
        self.costs = Costs(0.0, 0.0)
        self.made: Engine | None = None
        self.cell = ""

    def run(self) -> None:
        for training in TRAININGS:
            if training.cell != self.cell:
                self.made, self.cell = None, training.cell
                self.bench.forget()
                self.bench.free()
            if self.schedule is not None:
                # A run that cannot end is not begun: what is compared has equal steps.
                new = self.costs if self.made is None else self.costs._replace(compile=0.0)
                steps = self.schedule.steps or self.bench.plan.least_steps
                needed = seconds(self.bench.plan, training.cell, steps, new, self.measuring)
                if not self.bench.fits(training.name, needed):
                    continue
            with self.bench.case(training.name):
                self._one(training)

    def _one(self, training: Training) -> None:
        spec = self.bench.plan.run(SIZE, training.cell, init_std=training.init_std)
        batches = Batches(self.data.split("train"), spec.windows, spec.batch, spec.seed)
        first: float | None = None
        if self.made is None:
            made = engine(spec, self.bench.device, compile=self.compiled)
            first = self.bench.seconds(lambda: self._step(made, batches, 0))
            self.made = made
        if self.schedule is None:
            self.schedule = self._plan(self.made, batches, first or 0.0)
        if not self.schedule.steps:
            raise TimeoutError(f"not even {self.bench.plan.least_steps} steps fit")
        restart(self.made, spec)
        done = self._train(self.made, batches, training, spec, first)
        self._measure(self.made, training, spec, done)

    def _plan(self, made: Engine, batches: Batches, first: float) -> Schedule:
        bench = self.bench
        step = bench.seconds(lambda: self._step(made, batches, 0), times=5)
        if self.compiled:
            # Section `speed` may have left this cell's graph in the compiler's cache.
            self.costs = Costs(step, max(first, self.known["compiled"].compile))
        else:
            self.costs = Costs(step, 0.0)
        # This cell is compiled by now.
        left = bench.left + self.costs.compile
        found = schedule(left, self.costs, bench.plan, self.measuring)
        windows = count(len(self.data.split("train")), made.spec.windows)
        print(
            f"{found.runs} runs of {found.steps} steps "
            f"({found.steps * made.spec.batch / windows:.1f} passes over the windows), "
            f"{1e3 * step:.1f} ms a step, {first:.1f} s to the first",
            flush=True,
        )
        return found

    def _step(self, made: Engine, batches: Batches, step: int, look: bool = False) -> None:
        ids = torch.from_numpy(batches[step])
        if self.bench.device.type == "cuda":
            ids = ids.pin_memory().to(self.bench.device, non_blocking=True)
        made.step(ids, step, look)

    def _train(
        self,
        made: Engine,
        batches: Batches,
        training: Training,
        spec: RunSpec,
        compile_s: float | None,
    ) -> int:
        """Train and log; the steps that were done."""
        assert self.schedule is not None
        bench, steps = self.bench, self.schedule.steps
        every = max(1, steps // LOGGED)
        per_step = spec.batch * spec.windows.length
        bench.wait()
        start, done = time.monotonic(), 0
        while done < steps:
            look = done == 0 or (done + 1) % every == 0 or done + 1 == steps
            self._step(made, batches, done, look)
            done += 1
            if not look:
                continue
            _, failed = made.harvest()
            table, norm = made.seen()
            rows = trajectory.rows(done, done * per_step, "train", table, norm)
            self.trajectory.add(*([training.name, *row] for row in rows))
            if failed is not None:
                raise FloatingPointError(f"step {failed + 1} is not finite")
            if bench.left < self.measuring:
                break
        bench.wait()
        seconds = time.monotonic() - start
        lead = [training.name, training.cell, training.init_std, SIZE, done, done * per_step]
        speed = [seconds, done * per_step / seconds, int(self.compiled), compile_s]
        self.runs.add([*lead, *speed, int(done == steps)])
        return done

    def _measure(self, made: Engine, training: Training, spec: RunSpec, done: int) -> None:
        plan, start = self.bench.plan, time.monotonic()
        settings = Measurement(norm_tokens=plan.norm_tokens, probe_tokens=plan.probe_tokens)
        subject = Subject(made.model.eval(), spec, settings, self.data)
        rows = perplexity(subject, plan.scored_tokens)
        self.perplexity.add(*([training.name, done, *row] for row in rows))
        for name, module in (("norms", norms), ("gradients", gradients)):
            table: Sequence[Sequence[Any]] = module.measure(subject)[name]
            self.measured[name].add(*([training.name, done, *row] for row in table))
        made.model.train()
        self.measuring = max(self.measuring, time.monotonic() - start)


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


@torch.no_grad()
def restart(made: Engine, spec: RunSpec) -> None:
    """Give an engine the initial weights of `spec` and an optimizer that has done nothing.

    Only the initialization may differ from the engine's own specification; its graph is kept.
    """
    torch.manual_seed(spec.seed)
    fresh = LoopedLM(spec.model).state_dict()
    for name, parameter in made.model.named_parameters():
        parameter.copy_(fresh[name])
    for moments in made.optimizer.moments.values():
        for tensor in moments.values():
            tensor.zero_()
    made.optimizer.set_applied(0)
    made.harvest()
    made.resume(0, [])
