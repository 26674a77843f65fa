"""The training objective: where the cross-entropy is placed, and the norm penalty.

    terminal    CE(r(H_K))
    per-loop    mean over k = 1..K of CE(r(H_k))
                or sum over k of w_k CE(r(H_k)) / sum over k of w_k (weights)
    penalty     + weight x mean over loops and tokens of a kind of `PENALTIES`
    z-loss      + weight x mean over supervised depths (which count as their cross-entropies do) and
                tokens of log^2 Z, Z = sum of exp(logits)

Cross-entropy is in nats a token, a mean over all B T tokens, computed in float32 or better.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from blindspot.config.spec import Objective, Penalty
from blindspot.lm.heads import mean_cross_entropy, token_cross_entropy
from blindspot.lm.model import LoopedLM

#: Sets the draws of K apart from all others of (seed, step).
RANDOM_LOOPS = 7


class Loss(NamedTuple):
    """`total` is what is minimized; `ce[k]` the cross-entropy at each supervised depth (to look at,
    without a gradient of its own)."""

    total: Tensor
    ce: dict[int, Tensor]


@torch.no_grad()
def cross_entropy(model: LoopedLM, state: Tensor, k: int, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats of H_k (B, T, d) against targets (B, T), read at depth k; for
    observation, without gradients."""
    return token_cross_entropy(model.embedding.weight, model.readout(state, k), targets).mean()


def _target(squares: Tensor, width: int, penalty: Penalty) -> Tensor:
    assert penalty.target is not None
    # The root has no gradient at 0, where no state is.
    return ((squares / width).sqrt() - penalty.target).square()


#: Of |H_k|^2 of each token, any shape, and the width d.
PENALTIES: dict[str, Callable[[Tensor, int, Penalty], Tensor]] = {
    "mean-square": lambda squares, width, _: squares / width,
    "sum-square": lambda squares, *_: squares,
    "target": _target,
}


def norm_penalty(states: Sequence[Tensor], penalty: Penalty) -> Tensor:
    """The norm penalty of H_1..H_K (each (B, T, d)), its weight included."""
    kind, width = PENALTIES[penalty.kind], states[0].shape[-1]
    each = [kind(h.square().sum(-1), width, penalty).mean() for h in states]
    return penalty.weight * torch.stack(each).mean()


def supervised(objective: Objective, loops: int) -> range:
    """The depths whose cross-entropy is trained."""
    return range(loops, loops + 1) if objective.loss == "terminal" else range(1, loops + 1)


def loops_of(objective: Objective, loops: int, seed: int, step: int) -> int:
    """The K of a step, of a model that is trained to `loops`."""
    if not objective.random_loops:
        return loops
    return int(np.random.default_rng([seed, step, RANDOM_LOOPS]).integers(1, loops + 1))


def depths(objective: Objective, loops: int) -> range:
    """Every K that a step may have, the deepest first."""
    return range(loops, 0 if objective.random_loops else loops - 1, -1)


def loss(model: LoopedLM, states: Sequence[Tensor], targets: Tensor, objective: Objective) -> Loss:
    """The objective of H_0..H_K (a forward pass's states) for targets (B, T)."""
    depths = supervised(objective, len(states) - 1)
    readouts = [model.readout(states[k], k) for k in depths]
    total, each = mean_cross_entropy(
        model.embedding.weight, readouts, targets, objective.weights, objective.z_loss
    )
    if objective.penalty is not None:
        total = total + norm_penalty(states[1:], objective.penalty)
    return Loss(total, dict(zip(depths, each, strict=True)))
