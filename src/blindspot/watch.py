"""Watch the state's norm from loop to loop while a model trains: anyone's model, in their own loop.

    with Watch(model, model.blocks[-1], log=writer) as watch:
        for step, batch in enumerate(batches):
            ...                              # forward, backward, optimizer
            watch.step(step)

`block` is a module that runs once a loop; its output (`where="input"`: its input) is the state H_k.
Every `every` steps the next training pass is looked at, at some of its tokens, and logged:

    blindspot/norm/K        mean |H_k| of each loop k
    blindspot/growth        (|H_K| / |H_1|)^(1/(K-1)): growth of the norm a loop
    blindspot/angle/K       mean angle between H_{k-1} and H_k, radians, from k = 2
    blindspot/exit_kl       median KL(p(H_K) || p(H_1)), nats; only where `read` is given

and alarms are raised: once when one begins, again if it ends and comes back. Without a look a pass
costs one function call a loop. The hooks are plain Python, so hook a module that is not inside a
compiled graph. `callback` is the same for the Trainer of transformers.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

Scalars = dict[str, float]
#: Called with the step and what was seen.
Log = Callable[[int, Scalars], None]
OnAlarm = Callable[[int, str], None]


@dataclass(frozen=True)
class Limits:
    """When an alarm is raised."""

    #: |H_K| is this many times what it was when first seen.
    norm: float = 10.0
    #: The last loop turns the state by less, radians.
    angle: float = 0.01
    #: The last exit's prediction differs by less from the first's, nats.
    exit_kl: float = 1e-3


def _warn(step: int, message: str) -> None:
    warnings.warn(f"step {step}: {message}", stacklevel=3)


def _scalars_to(writer: Any) -> Log:
    """What hands each number to a SummaryWriter."""

    def log(step: int, seen: Scalars) -> None:
        for name, value in seen.items():
            writer.add_scalar(name, value, step)

    return log


def submodule(model: nn.Module, block: nn.Module | str) -> nn.Module:
    """A module, or the one that a dotted path names. Raises ValueError where there is none."""
    if isinstance(block, nn.Module):
        return block
    try:
        return model.get_submodule(block)
    except AttributeError as error:
        known = ", ".join(name for name, _ in model.named_children())
        raise ValueError(f"block {block!r}: {error}; the model has {known}") from None


class Watch:
    """See the module's docstring.

    `log` is called with the step and what was seen; a SummaryWriter of TensorBoard will do as well.
    `read(states, k)` gives logits (N, V) of states (N, d) at exit k; it is called on 16 tokens.
    """

    def __init__(
        self,
        model: nn.Module,
        block: nn.Module | str,
        *,
        log: Any = None,
        on_alarm: OnAlarm = _warn,
        every: int = 100,
        where: Literal["output", "input"] = "output",
        read: Callable[[Tensor, int], Tensor] | None = None,
        tokens: int = 256,
        limits: Limits | None = None,
    ) -> None:
        if every < 1 or tokens < 1:
            raise ValueError(f"every {every}, tokens {tokens}: both are at least 1")
        self.model, self.every, self.tokens, self.read = model, every, tokens, read
        self._log: Log | None = _scalars_to(log) if hasattr(log, "add_scalar") else log
        self.on_alarm, self.limits = on_alarm, limits or Limits()
        self._armed, self._open = True, False
        self._states: list[Tensor] = []
        self._start: float | None = None
        self._raised: set[str] = set()
        watched = submodule(model, block)
        self._hooks: list[RemovableHandle] = [
            model.register_forward_pre_hook(self._begin),
            model.register_forward_hook(self._end),
            watched.register_forward_pre_hook(self._on_input)
            if where == "input"
            else watched.register_forward_hook(self._on_output),
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    # Only between the beginning and the end of a forward pass: what a checkpointed block computes
    # again in the backward pass is no loop.
    def _begin(self, module: nn.Module, args: Any) -> None:
        if self._armed and module.training:
            self._open = True
            self._states.clear()

    def _end(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._open:
            # The first pass of a step is enough, where gradients of several are added up.
            self._open = self._armed = False

    def _on_input(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self._open:
            self._see(args[0])

    def _on_output(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._open:
            self._see(output)

    def _see(self, state: Any) -> None:
        while isinstance(state, tuple | list):
            state = state[0]
        flat = state.detach().flatten(0, -2)
        # Evenly over the batch; a copy, since a later operation may work in place.
        stride = -(-len(flat) // self.tokens)
        self._states.append(flat[::stride][: self.tokens].clone())

    @torch.no_grad()
    def step(self, step: int) -> Scalars | None:
        """Call this after each optimizer step: logs what its pass showed, if it was looked at."""
        self._armed = self._armed or (step + 1) % self.every == 0
        if not self._states:
            return None
        seen = self._scalars()
        self._states.clear()
        if self._log is not None:
            self._log(step, seen)
        self._alarm(step, seen)
        return seen

    def _scalars(self) -> Scalars:
        states = [x.to(torch.promote_types(x.dtype, torch.float32)) for x in self._states]
        norms = [torch.linalg.vector_norm(x, dim=-1) for x in states]
        means = torch.stack([norm.mean() for norm in norms])
        loops = len(states)
        units = [x / norm[:, None] for x, norm in zip(states, norms, strict=True)]
        values = {f"blindspot/norm/{k}": mean for k, mean in enumerate(means, start=1)}
        if loops > 1:
            values["blindspot/growth"] = (means[-1] / means[0]) ** (1 / (loops - 1))
        for k in range(1, loops):
            chord = torch.linalg.vector_norm(units[k] - units[k - 1], dim=-1)
            values[f"blindspot/angle/{k + 1}"] = 2 * torch.arcsin((chord / 2).clamp(max=1)).mean()
        if self.read is not None and loops > 1:
            first, last = (
                self.read(self._states[k - 1][:16], k).float().log_softmax(-1) for k in (1, loops)
            )
            values["blindspot/exit_kl"] = (last.exp() * (last - first)).sum(-1).median()
        # Brought to the CPU together: a GPU waits once.
        numbers = torch.stack([x.double() for x in values.values()]).tolist()
        return dict(zip(values, numbers, strict=True))

    def _alarm(self, step: int, seen: Scalars) -> None:
        loops = sum(name.startswith("blindspot/norm/") for name in seen)
        norm = seen[f"blindspot/norm/{loops}"]
        self._start = norm if self._start is None else self._start
        angle = seen.get(f"blindspot/angle/{loops}")
        kl = seen.get("blindspot/exit_kl")
        times = norm / self._start if self._start else 1.0
        # Not `>`: a norm that is not finite is an alarm too.
        self._raise(
            step,
            "norm",
            not times < self.limits.norm,
            f"the state's norm after loop {loops} is {norm:.4g}, {times:.3g} times what it was",
        )
        self._raise(
            step,
            "angle",
            angle is not None and angle < self.limits.angle,
            f"loop {loops} turns the state by {angle or 0:.2g} radians: it is nearly frozen",
        )
        self._raise(
            step,
            "exits",
            kl is not None and kl < self.limits.exit_kl,
            f"exits 1 and {loops} give the same prediction ({kl or 0:.2g} nats): depth is unused",
        )

    def _raise(self, step: int, name: str, on: bool, message: str) -> None:
        if on and name not in self._raised:
            self.on_alarm(step, message)
        self._raised = self._raised | {name} if on else self._raised - {name}


def callback(block: nn.Module | str, **options: Any) -> Any:
    """A `TrainerCallback` of transformers that watches the model of its Trainer.

    `block` is a module or its dotted path in the model; `options` are those of `Watch`. What is
    seen also goes into the Trainer's log history, and so into trainer_state.json.
    """
    from transformers import TrainerCallback

    class WatchCallback(TrainerCallback):
        watch: Watch | None = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            self.watch = Watch(more["model"], block, **options)

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            if self.watch is not None:
                seen = self.watch.step(state.global_step)
                if seen is not None:
                    state.log_history.append({**seen, "step": state.global_step})

        def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            if self.watch is not None:
                self.watch.close()

    return WatchCallback()
