"""The rules between loops: how a loop's input is made, and what is done to its output.

    x   = enter(H_{k-1})       an inter-loop rule of `INTERLOOPS`, then injection of H_0
    F   = stack(x)
    H_k = leave(x, F)          the carry, then the clamp

Every rule acts on each token alone, over the last dimension. Whether a loop's update shrinks as the
state grows (the activity lemma) depends on its input: after `rms` or `reset` it does
not depend on the norm of H_{k-1} at all, and the norm is not carried on.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from blindspot.config.spec import Interloop, ModelSpec
from blindspot.lm.norm import rms_norm


@dataclass(frozen=True)
class Rule:
    """An inter-loop rule."""

    #: x of H (..., d), the gain (d,) or None, and the model's specification.
    apply: Callable[[Tensor, Tensor | None, ModelSpec], Tensor]
    #: Whether it acts on H_0 as well.
    on_first: bool = False
    gained: bool = False


def _rms(state: Tensor, gain: Tensor | None, spec: ModelSpec) -> Tensor:
    return rms_norm(state, gain, spec.norm_eps)


def _reset(state: Tensor, _: Tensor | None, spec: ModelSpec) -> Tensor:
    """s* sqrt(d) u."""
    assert spec.interloop_scale is not None
    return rms_norm(state, None, spec.norm_eps) * spec.interloop_scale


#: None: the state itself.
INTERLOOPS: dict[Interloop, Rule | None] = {
    "none": None,
    "rms": Rule(_rms),
    "rms-gain": Rule(_rms, gained=True),
    "reset": Rule(_reset, on_first=True),
}


@dataclass(frozen=True)
class Start:
    """What later loops may need from earlier in the pass: H_0 (..., d) and |H_1| (..., 1)."""

    state: Tensor
    size: Tensor | None = None

    def after(self, first: Tensor) -> "Start":
        """The same with the norms of H_1."""
        return Start(self.state, torch.linalg.vector_norm(first, dim=-1, keepdim=True))


def enter(
    spec: ModelSpec, state: Tensor, k: int, gain: Tensor | None, start: Start | None
) -> Tensor:
    """The input of loop k, made from H_{k-1} (..., d)."""
    rule = INTERLOOPS[spec.interloop]
    x = state if rule is None or (k == 1 and not rule.on_first) else rule.apply(state, gain, spec)
    if spec.inject and k > 1:
        assert start is not None, "injection needs H_0: give the loop its start"
        x = x + start.state
    return x


def leave(spec: ModelSpec, x: Tensor, after: Tensor, k: int, start: Start | None) -> Tensor:
    """H_k (..., d), from the input of loop k and the output of its stack."""
    if spec.carry is not None:
        after = after - (1 - spec.carry) * x
    if spec.clamp != "none" and k > 1:
        assert start is not None and start.size is not None, "the clamp needs |H_1|"
        factor = start.size / torch.linalg.vector_norm(after, dim=-1, keepdim=True)
        after = after * (factor.detach() if spec.clamp == "stopped" else factor)
    return after
