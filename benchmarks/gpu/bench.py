"""What every section shares: its time, its files, and how a step is built and timed."""

import csv
import gc
import io
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from blindspot.config.execution import Execution
from blindspot.config.spec import RunSpec
from blindspot.files import write_text
from blindspot.lm.device import autocast
from blindspot.lm.model import LoopedLM
from blindspot.training.engine import Engine
from gpu.plan import Plan
from reference_model import batched_attention, total_loss

NOTES = ("section", "case", "seconds", "outcome")
OVER = "stopped: the section's time was over"


class OutOfTime(BaseException):
    """The section's time is over. No `Exception`: nothing on the way may swallow it."""


class Sheet:
    """A CSV that is whole after every row."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path, self.columns = path, tuple(columns)
        self.rows: list[list[Any]] = []

    def add(self, *rows: Sequence[Any], key: int = 0) -> None:
        """Add rows; with `key`, in place of those that have the same first `key` values."""
        fresh = [[_text(value) for value in row] for row in rows]
        old = [row[:key] for row in fresh] if key else []
        self.rows = [row for row in self.rows if row[:key] not in old] + fresh
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(self.rows)
        write_text(self.path, buffer.getvalue())


def _text(value: Any) -> Any:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else value


@dataclass
class Bench:
    """One section at work: its plan, device, folder and deadline (of `time.monotonic`)."""

    section: str
    plan: Plan
    device: torch.device
    out: Path
    deadline: float
    notes: Sheet = field(init=False)

    def __post_init__(self) -> None:
        self.notes = Sheet(self.out / f"notes-{self.section}.csv", NOTES)
        if self.plan.backend != "inductor":
            torch.compile = partial(torch.compile, backend=self.plan.backend)

    @property
    def left(self) -> float:
        """Seconds until the section must end."""
        return self.deadline - time.monotonic()

    def sheet(self, name: str, columns: Sequence[str]) -> Sheet:
        return Sheet(self.out / f"{name}.csv", columns)

    @contextmanager
    def case(self, name: str) -> Iterator[None]:
        """One case: how long it took, or why it failed, is noted; the next one runs anyway."""
        print(f"[{self.section}] {name} ({self.left:.0f} s left)", flush=True)
        start = time.monotonic()
        outcome = "done"
        try:
            if self.left <= 0:
                raise OutOfTime
            yield
        except OutOfTime:
            outcome = OVER
            raise
        except Exception as error:
            traceback.print_exc()
            first = next(iter(str(error).strip().splitlines()), "")
            outcome = f"failed: {type(error).__name__}: {first}"
            if self.left <= 0:
                # Libraries pass the end of the time on as a fault of their own, or not at all.
                outcome = OVER
                raise OutOfTime from error
        finally:
            self.notes.add([self.section, name, time.monotonic() - start, outcome[:300]])
            self.free()

    def fits(self, name: str, seconds: float) -> bool:
        """Whether `seconds` are left; where not, that `name` was left out is noted."""
        if seconds <= self.left:
            return True
        text = f"left out: needs about {seconds:.0f} s, {max(0, self.left):.0f} s were left"
        self.notes.add([self.section, name, 0.0, text])
        return False

    def free(self) -> None:
        if self.device.type == "cuda":
            # What an exception's traceback still holds, too.
            gc.collect()
            torch.cuda.empty_cache()

    def forget(self) -> None:
        """Drop compiled graphs: they hold their models, and one function may have few of them."""
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def seconds(self, work: Callable[[], object], times: int = 1) -> float:
        """Seconds of one of `times` calls, with the device idle before and after."""
        self.wait()
        start = time.perf_counter()
        for _ in range(times):
            work()
        self.wait()
        return (time.perf_counter() - start) / times

    def ids(self, spec: RunSpec, seed: int = 0) -> Tensor:
        """A batch of random ids (B, T + 1) on the device."""
        draw = torch.Generator().manual_seed(seed)
        shape = (spec.batch, spec.windows.length + 1)
        return torch.randint(spec.model.vocab_size, shape, generator=draw).to(self.device)


def engine(spec: RunSpec, device: torch.device, **execution: Any) -> Engine:
    """The product's optimizer step, in training mode."""
    made = Engine(spec, device, Execution.model_validate({"compile": False, **execution}))
    made.model.train()
    return made


def gradients(made: Engine, ids: Tensor) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of the engine's forward and backward pass, without an update."""
    _, result = made.forward(ids, 0)
    result.total.backward()
    found = {n: p.grad for n, p in made.model.named_parameters() if p.grad is not None}
    for parameter in made.parameters:
        parameter.grad = None
    return float(result.total.detach()), found


class Reference:
    """The plain reference as a trainer: explicit attention, full logits, eager; no dropout.

    All heads at once: with kernels for each of them a GPU would wait for the host.
    """

    def __init__(self, spec: RunSpec, device: torch.device, precision: str) -> None:
        self.spec, self.device, self.precision = spec, device, precision
        # The same initial weights as the engine's.
        torch.manual_seed(spec.seed)
        model = LoopedLM(spec.model).to(device)
        self.parameters = {n: p.detach().requires_grad_() for n, p in model.named_parameters()}
        self._optimizer: torch.optim.Optimizer | None = None

    def loss(self, ids: Tensor) -> Tensor:
        p, spec = self.parameters, self.spec
        with autocast(self.precision, self.device):
            return total_loss(
                p, ids[:, :-1], ids[:, 1:], spec.model, spec.objective, batched_attention
            )

    def gradients(self, ids: Tensor) -> tuple[float, dict[str, Tensor]]:
        total = self.loss(ids)
        found = torch.autograd.grad(total, list(self.parameters.values()))
        return float(total.detach()), dict(zip(self.parameters, found, strict=True))

    def step(self, ids: Tensor) -> None:
        """One training step, as a short script has it."""
        if self._optimizer is None:
            s = self.spec.training
            leaves = list(self.parameters.values())
            self._optimizer = torch.optim.AdamW(
                leaves, lr=s.learning_rate, betas=s.betas, weight_decay=s.weight_decay
            )
        self._optimizer.zero_grad()
        self.loss(ids).backward()
        torch.nn.utils.clip_grad_norm_(list(self.parameters.values()), self.spec.training.clip)
        self._optimizer.step()
