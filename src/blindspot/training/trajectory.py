"""The training log: a trajectory that is a function of the specification, and timings that are not.

Their columns are declared in declared/training.py.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from blindspot.lm.model import LoopedLM
from blindspot.lm.objective import cross_entropy
from blindspot.training.parallel import World


def token_norms(state: Tensor) -> Tensor:
    """L2 norm over d of each state of (B, T, d), in float32: shape (B T,)."""
    return torch.linalg.vector_norm(state.detach().flatten(0, -2).float(), dim=-1)


def summary(norms: Tensor) -> Tensor:
    """Mean, median, 99th percentile and maximum of token norms (..., n): shape (..., 4)."""
    marks = torch.tensor([0.5, 0.99, 1.0], device=norms.device, dtype=norms.dtype)
    quantiles = torch.quantile(norms, marks, dim=-1).movedim(0, -1)
    return torch.cat([norms.mean(-1, keepdim=True), quantiles], dim=-1)


@torch.no_grad()
def observe(
    model: LoopedLM,
    states: Sequence[Tensor],
    targets: Tensor,
    known: dict[int, Tensor],
    world: World,
) -> Tensor:
    """CE and norm summary of H_0..H_K as one float32 table (K + 1, 5), still on the device, over
    the tokens of all ranks.

    `known` holds cross-entropies that the objective has computed already. CE of H_0 is NaN.
    """
    ce = torch.full((len(states),), torch.nan, device=states[0].device)
    for k, state in enumerate(states[1:], start=1):
        ce[k] = known[k] if k in known else cross_entropy(model, state, k, targets)
    world.average([ce])
    norms = world.gather(torch.stack([token_norms(state) for state in states]))
    return torch.cat([ce[:, None], summary(norms)], dim=1)


def rows(
    step: int, tokens: int, split: str, table: Tensor, grad_norm: float | None
) -> list[list[Any]]:
    """Rows of the trajectory from a table of `observe`."""
    result: list[list[Any]] = []
    for k, values in enumerate(table.tolist()):
        ce, *norms = values
        result.append(
            [step, tokens, split, k]
            + ["" if k == 0 else _number(ce)]
            + [_number(v) for v in norms]
            + [_number(grad_norm) if k == 0 and grad_norm is not None else ""]
        )
    return result


def _number(value: float) -> str:
    # Nine digits bring a float32 back exactly.
    return f"{value:.9g}"
