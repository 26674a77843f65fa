"""The training objective: where cross-entropy is placed, and what is asked of the norm.

    terminal    CE(r(H_K))
    per-loop    mean over k = 1..K of CE(r(H_k))
    penalty     + weight x mean over loops and tokens of |H_k|^2 / d  (mean-square)
                                                     or |H_k|^2      (sum-square)

Cross-entropy is in nats a token, a mean over all B T tokens, computed in float32 or better.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from blindspot.config.spec import Objective, Penalty
from blindspot.lm.heads import mean_cross_entropy, token_cross_entropy
from blindspot.lm.model import LoopedLM


class Loss(NamedTuple):
    """`total` is what is minimized; `ce[k]` the cross-entropy at each supervised depth (to look at,
    without a gradient of its own)."""

    total: Tensor
    ce: dict[int, Tensor]


@torch.no_grad()
def cross_entropy(model: LoopedLM, state: Tensor, k: int, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats of H_k (B, T, d) against targets (B, T), read at depth k; an
    observation, without gradients."""
    return token_cross_entropy(model.embedding.weight, model.readout(state, k), targets).mean()


def norm_penalty(states: Sequence[Tensor], penalty: Penalty) -> Tensor:
    """The norm penalty of H_1..H_K (each (B, T, d)), its weight included."""
    squares = torch.stack([h.square().sum(-1).mean() for h in states]).mean()
    if penalty.kind == "mean-square":
        squares = squares / states[0].shape[-1]
    return penalty.weight * squares


def supervised(objective: Objective, loops: int) -> range:
    """The depths whose cross-entropy is trained."""
    return range(loops, loops + 1) if objective.loss == "terminal" else range(1, loops + 1)


def loss(model: LoopedLM, states: Sequence[Tensor], targets: Tensor, objective: Objective) -> Loss:
    """The objective of H_0..H_K (a forward pass's states) for targets (B, T)."""
    depths = supervised(objective, len(states) - 1)
    readouts = [model.readout(states[k], k) for k in depths]
    total, each = mean_cross_entropy(model.embedding.weight, readouts, targets)
    if objective.penalty is not None:
        total = total + norm_penalty(states[1:], objective.penalty)
    return Loss(total, dict(zip(depths, each, strict=True)))
