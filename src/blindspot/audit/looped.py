"""What the audit knows of a model: four functions, and a few facts.

    context, state = init(ids)              H_0 of token ids (B, T)
    state = loop(context, state, k)         H_k from H_{k-1}, k = 1, 2, ...
    logits = read(context, state, k)        (B, T, V), the prediction that H_k gives
    state = scale(state, a)                 a H

The state is what one loop hands to the next, at the last block's output, before any norm on the
way to the readout or to the next loop. It is one tensor (B, T, d), or a tuple, list or dictionary
of tensors (B, T, ..., d). Whatever stays the same from loop to loop is context.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from blindspot.errors import BlindspotError

State = Any


def map_tensors(function: Callable[[Tensor], Tensor], state: State) -> State:
    """The state with `function` applied to each of its tensors."""
    if isinstance(state, Tensor):
        return function(state)
    if isinstance(state, dict):
        return {key: map_tensors(function, value) for key, value in state.items()}
    if isinstance(state, tuple | list):
        return type(state)(map_tensors(function, value) for value in state)
    raise BlindspotError(
        f"a state is a tensor, or a tuple, list or dictionary of tensors; it has a "
        f"{type(state).__name__}"
    )


def scale_all(state: State, a: float | Tensor) -> State:
    """Every tensor of the state times `a`, a number or one number a token (B, T, 1)."""

    def scaled(x: Tensor) -> Tensor:
        if not isinstance(a, Tensor):
            return x * a
        return x * a.view(*a.shape[:2], *[1] * (x.dim() - 2)).to(x.dtype)

    return map_tensors(scaled, state)


def first(state: State) -> Tensor:
    """The first tensor of a state: the one whose norm is meant by |H|."""
    while not isinstance(state, Tensor):
        state = next(iter(state.values() if isinstance(state, dict) else state))
    return state


@dataclass(frozen=True)
class Looped:
    """A looped language model; see the module's docstring for the four functions."""

    name: str
    init: Callable[[Tensor], tuple[Any, State]]
    loop: Callable[[Any, State, int], State]
    read: Callable[[Any, State, int], Tensor]
    #: Loops that the model was trained with, at least 2.
    loops: int
    vocab_size: int
    scale: Callable[[State, float | Tensor], State] = scale_all
    #: The tensor (B, T, d) of a state whose norm and direction are measured.
    vector: Callable[[State], Tensor] = first
    #: Where the state is taken, in words, for the report.
    point: str = "the last block's output"
    #: Most tokens the model reads at a time; None where it does not say.
    context: int | None = None
    #: The model's own logits of ids (B, T) after `loops` loops. Where given, the audit checks that
    #: the four functions compute the same.
    whole: Callable[[Tensor], Tensor] | None = None
    #: The parameters, to be looked through for NaN; also says the device of the ids.
    module: nn.Module | None = None

    @property
    def device(self) -> torch.device:
        """Where ids have to be."""
        parameter = next(self.module.parameters(), None) if self.module else None
        return torch.device("cpu") if parameter is None else parameter.device

    def check_loops(self) -> None:
        """Raise `BlindspotError` where there is nothing between loops to look at."""
        if self.loops < 2:
            raise BlindspotError(
                f"{self.name}: loops: {self.loops}; the audit looks at the state between loops, so "
                f"it needs a model that loops at least twice. If the model loops more often than "
                f"its configuration says, give --loops"
            )

    def check_weights(self) -> None:
        """Raise `BlindspotError` naming the first parameter that has NaN or infinity."""
        for name, parameter in self.module.named_parameters() if self.module else ():
            if not parameter.isfinite().all():
                raise BlindspotError(
                    f"{self.name}: parameter {name} holds NaN or infinity; the checkpoint is "
                    f"damaged, or its training diverged. Audit an earlier one"
                )
