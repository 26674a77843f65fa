"""The optimizer step: model, objective and AdamW, on one device or several that work together.

`Engine.step` does not wait for a GPU: whether loss and gradient are finite decides on the device
whether the update is applied, and what the log needs stays there until `harvest`.

Which code runs where was chosen by measurement (benchmarks/README.md): on a GPU the forward pass of
all K loops with the objective is compiled as one graph; on the CPU it runs eager, since a small run
would end before the compiler does. Attention is torch's fused one on a GPU, our own on the CPU
(`lm/attention.py`).
"""

import os
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from blindspot.config.execution import Execution
from blindspot.config.spec import Objective, RunSpec
from blindspot.errors import BlindspotError
from blindspot.lm import dropout
from blindspot.lm.device import autocast
from blindspot.lm.model import LoopedLM
from blindspot.lm.objective import Loss, cross_entropy, depths, loops_of, loss
from blindspot.training import memory, trajectory
from blindspot.training.optimizer import AdamW
from blindspot.training.parallel import World


def _states_and_loss(
    model: LoopedLM,
    objective: Objective,
    inputs: Tensor,
    targets: Tensor,
    keys: Tensor | None,
    loops: int,
) -> tuple[list[Tensor], Loss]:
    """What is compiled: no method, which would tie the engine to itself and keep its GPU memory
    until the next garbage collection."""
    states = model(inputs, loops, keys=keys)
    result = loss(model, states, targets, objective)
    # Only to look at: outputs with a gradient would have a compiled backward pass add zeros to it.
    return [state.detach() for state in states], result


class Seen(NamedTuple):
    """What a logged step showed: the table of `trajectory.observe`, the norm of the gradient before
    clipping."""

    table: Tensor
    grad_norm: float


class Engine:
    """A run's model and optimizer, and its training step."""

    def __init__(
        self,
        spec: RunSpec,
        device: torch.device,
        execution: Execution | None = None,
        world: World | None = None,
        steps: int | None = None,
    ) -> None:
        """`steps` is the number of steps of the whole run, where `spec` gives epochs instead; only
        a schedule of the learning rate needs it, and raises ValueError without."""
        known = steps or spec.training.steps
        if known is None and spec.training.schedule != "constant":
            raise ValueError("a schedule of the learning rate needs the number of all steps")
        self.steps = known or 1
        self.spec, self.device = spec, device
        self.execution, self.world = execution or Execution(), world or World()
        if self.execution.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)
            # torch would also fill memory that is about to be written over, to find reads of it:
            # 1,500 kernels more in a step of 44M.
            filling: Any = torch.utils.deterministic
            filling.fill_uninitialized_memory = False
        if device.type == "cpu":
            memory.keep()
            # Numbers below 1e-38 are 0. Probabilities that underflow are many under an N(0, 1)
            # embedding, and products with them take a processor a hundred times as long.
            torch.set_flush_denormal(True)
        torch.manual_seed(spec.seed)
        self.model = LoopedLM(spec.model).to(device)
        self.model.recompute = self.execution.recompute
        self.parameters = list(self.model.parameters())
        self.optimizer = AdamW(dict(self.model.named_parameters()), spec.training)
        chosen = self.execution.compile
        self.compiled = device.type == "cuda" if chosen == "auto" else chosen
        self._states_and_loss = _states_and_loss
        if self.compiled:
            self._states_and_loss = torch.compile(_states_and_loss, fullgraph=True, dynamic=False)
            # Each K is a graph of its own. All engines of a process share this limit.
            settings: Any = torch._dynamo.config
            graphs = len(depths(spec.objective, spec.model.loops))
            settings.recompile_limit = max(settings.recompile_limit, 4 * graphs)
        #: Whether each step since the last harvest was applied, on the device.
        self._applied: list[tuple[int, Tensor]] = []
        #: Skipped steps in a row: on the device, and at the last harvest.
        self._in_a_row, self._row = torch.zeros((), device=device), 0
        self._seen: tuple[Tensor, Tensor] | None = None

    def forward(self, ids: Tensor, step: int) -> tuple[list[Tensor], Loss]:
        """The forward pass of a step on this rank's `ids` (B / world, T + 1): H_0..H_K, detached,
        and the objective, of whose `total` the gradient is taken."""
        loops = loops_of(self.spec.objective, self.spec.model.loops, self.spec.seed, step)
        return self._forward(ids, step, loops)

    def _forward(self, ids: Tensor, step: int, loops: int) -> tuple[list[Tensor], Loss]:
        keys = self._keys(len(ids), step)
        with autocast(self.spec.training.precision, self.device):
            inputs, targets = ids[:, :-1], ids[:, 1:]
            objective = self.spec.objective
            return self._states_and_loss(self.model, objective, inputs, targets, keys, loops)

    def compile(self, ids: Tensor) -> float:
        """Have the step compiled, where it is to be, by a pass over `ids` (as in `step`) at every K
        that a step may have, which changes nothing; the seconds that took, and 0 where nothing is
        compiled.

        Raises `BlindspotError` where the compiler fails.
        """
        if not self.compiled:
            return 0.0
        from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException
        from torch._inductor.exc import InductorError

        started = time.monotonic()
        try:
            for loops in depths(self.spec.objective, self.spec.model.loops):
                self._forward(ids, 0, loops)[1].total.backward()
        except (TorchDynamoException, InductorError, FailOnRecompileLimitHit) as error:
            why = str(error).strip().splitlines()[0]
            raise BlindspotError(
                f"execution.compile: the training step could not be compiled ({why}). Install a "
                f"C++ compiler (g++) where that is what is missing, or set it to false"
            ) from error
        for parameter in self.parameters:
            parameter.grad = None
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.monotonic() - started

    def _keys(self, rows: int, step: int) -> Tensor | None:
        """The dropout keys of a step for this rank's rows, which are those that one device would
        use for them; None without dropout. No generator's state needs saving."""
        model = self.spec.model
        if not model.dropout.active:
            return None
        if self.device.type == "cuda":
            # The fused attention's masks come from the generator: a function of (seed, step, rank).
            words = [self.spec.seed, step] + ([self.world.rank] if self.world.rank else [])
            torch.manual_seed(np.random.SeedSequence(words).generate_state(1)[0].item())
        first = self.world.rank * rows
        mine = range(first, first + rows)
        return dropout.step_keys(self.spec.seed, step, mine, model.loops, model.layers).to(
            self.device, non_blocking=True
        )

    def step(self, ids: Tensor, step: int, look: bool = False) -> None:
        """Optimizer step number `step` (from 0) on this rank's `ids` (B / world, T + 1).

        With `look`, what the log wants is kept for `harvest`: this batch, before the update.
        """
        states, result = self.forward(ids, step)
        result.total.backward()
        gradients = [self._gradient(p) for p in self.parameters]
        total = result.total.detach().clone()
        self.world.average([*gradients, total])
        norm = torch.nn.utils.get_total_norm(gradients)
        self._update(gradients, total, norm, step)
        for parameter in self.parameters:
            parameter.grad = None
        if look:
            self._seen = (self._observe(states, ids[:, 1:], result), norm)

    def _gradient(self, parameter: Tensor) -> Tensor:
        """Zeros where a step of fewer loops has not come to a parameter."""
        return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad

    @torch.no_grad()
    def _update(self, gradients: Sequence[Tensor], total: Tensor, norm: Tensor, step: int) -> None:
        """Clip and apply, unless this step is not finite or too many in a row were not: then
        nothing changes any more, so that `harvest` finds the weights as they were."""
        allowed = self.spec.training.skip
        bad = 1.0 - (torch.isfinite(total) & torch.isfinite(norm)).float()
        over = (self._in_a_row > allowed).float()
        self._in_a_row = torch.maximum((self._in_a_row + 1) * bad, self._in_a_row * over)
        skip = torch.maximum(bad, over)
        divisor = ((norm + 1e-6) / self.spec.training.clip).clamp(min=1.0)
        rate = self.spec.training.rate(step, self.steps)
        self.optimizer.step(gradients, divisor, skip, rate)
        self._applied.append((step, skip))

    @torch.no_grad()
    def _observe(self, states: Sequence[Tensor], targets: Tensor, result: Loss) -> Tensor:
        with autocast(self.spec.training.precision, self.device):
            return trajectory.observe(self.model, states, targets, result.ce, self.world)

    def harvest(self) -> tuple[list[int], int | None]:
        """Wait for the device; the steps since the last harvest that were skipped, and the one at
        which the run has failed, where it has."""
        flags = torch.stack([flag for _, flag in self._applied]).tolist() if self._applied else []
        steps = [step for step, _ in self._applied]
        self._applied.clear()
        skipped: list[int] = []
        for step, flag in zip(steps, flags, strict=True):
            self._row = self._row + 1 if flag else 0
            if self._row > self.spec.training.skip:
                return skipped, step
            if flag:
                skipped.append(step)
        return skipped, None

    def seen(self) -> Seen:
        """What the last step with `look` showed."""
        assert self._seen is not None
        (table, norm), self._seen = self._seen, None
        return Seen(table.cpu(), float(norm))

    def resume(self, step: int, skipped: Sequence[int]) -> None:
        """Go on at `step`, with parameters and moments that are in place: how many steps were
        applied counts for bias correction, how many of the last were skipped for the policy."""
        self.optimizer.set_applied(step - len(skipped))
        self._row = 0
        while step - 1 - self._row in skipped:
            self._row += 1
        self._in_a_row.fill_(self._row)

    def explain(self, ids: Tensor, step: int) -> str:
        """Where the first number that is not finite arises when `step` is done again."""
        keys = self._keys(len(ids), step)
        inputs, targets = ids[:, :-1], ids[:, 1:]
        with autocast(self.spec.training.precision, self.device):
            loops = loops_of(self.spec.objective, self.spec.model.loops, self.spec.seed, step)
            states = self.model(inputs, loops, keys=keys)
            for k, state in enumerate(states):
                if not bool(torch.isfinite(state).all()):
                    return f"H_{k}, the state after loop {k}" if k else "H_0, the embedded tokens"
            result = loss(self.model, states, targets, self.spec.objective)
            for k in range(1, len(states)):
                ce = result.ce.get(k, None)
                ce = cross_entropy(self.model, states[k], k, targets) if ce is None else ce
                if not bool(torch.isfinite(ce)):
                    return f"CE_{k}, the cross-entropy after loop {k}"
        result.total.backward()
        sizes = {n: p.grad for n, p in self.model.named_parameters() if p.grad is not None}
        names = [n for n, g in sizes.items() if not bool(torch.isfinite(g).all())]
        for parameter in self.parameters:
            parameter.grad = None
        if names:
            more = f" and of {len(names) - 1} more" if names[1:] else ""
            return f"the gradient of {names[0]}{more}"
        if self.world.size > 1:
            return "the rows of another rank, or the norm of the whole gradient"
        return "the norm of the whole gradient, which is too large for float32"
