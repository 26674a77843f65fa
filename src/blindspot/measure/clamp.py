"""Does the scale matter to what is predicted? Interventions on the norm while the loops run.

    norm       after each loop k > 1, a token's state is scaled back to its norm after loop 1
    radial     from each update of loops k > 1, the part parallel to the incoming state is removed

Directions are left to the model. The next loop works on the changed state. Neither intervention
touches depth 1, so its change is 0.
"""

import math
from collections import defaultdict
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blindspot.measure.subject import Row, Subject, number, token_nll

SPLIT = "validation"

Edit = Callable[[Tensor, Tensor, int], Tensor]


def clamp_norm(before: Tensor, state: Tensor, k: int) -> Tensor:
    """H_k scaled to the norm of H_{k-1}, for k > 1: the norm stays what loop 1 made it."""
    if k == 1:
        return state
    norms = [torch.linalg.vector_norm(x, dim=-1, keepdim=True) for x in (before, state)]
    return state * (norms[0] / norms[1])


def remove_radial(before: Tensor, state: Tensor, k: int) -> Tensor:
    """H_{k-1} plus only the part of loop k's update that is orthogonal to it, for k > 1."""
    if k == 1:
        return state
    u = before / torch.linalg.vector_norm(before, dim=-1, keepdim=True)
    update = state - before
    return before + update - (update * u).sum(-1, keepdim=True) * u


INTERVENTIONS: dict[str, Edit] = {"norm": clamp_norm, "radial": remove_radial}


@torch.no_grad()
def measure(subject: Subject) -> dict[str, list[Row]]:
    """`clamp.csv`."""
    rows = subject.sample(SPLIT, subject.settings.intervention_tokens)
    found: dict[tuple[str, int], list[NDArray[np.float64]]] = defaultdict(list)
    for inputs, targets in subject.chunks(rows):
        plain = _observe(subject, targets, subject.model(inputs))
        for name, edit in INTERVENTIONS.items():
            edited = _observe(subject, targets, subject.model(inputs, edit=edit))
            for k in range(1, subject.loops + 1):
                found[name, k].append(np.vstack([plain[k - 1], edited[k - 1]]))
    return {"clamp": [_row(name, k, np.hstack(parts)) for (name, k), parts in found.items()]}


def _observe(subject: Subject, targets: Tensor, states: list[Tensor]) -> list[NDArray[np.float64]]:
    """NLL and |H_k| of each token at k = 1..K: K arrays of shape (2, B T)."""
    return [
        torch.stack(
            [
                token_nll(subject.model, state, k, targets).flatten(),
                torch.linalg.vector_norm(state, dim=-1).flatten(),
            ]
        )
        .double()
        .cpu()
        .numpy()
        for k, state in enumerate(states[1:], start=1)
    ]


def _row(name: str, k: int, values: NDArray[np.float64]) -> Row:
    nll, norm, nll_edited, norm_edited = values
    change = nll_edited - nll
    n = change.size
    error = change.std(ddof=1) / math.sqrt(n) if n > 1 else math.nan
    numbers = [nll.mean(), nll_edited.mean(), change.mean(), error, norm.mean(), norm_edited.mean()]
    return [SPLIT, name, k, n, *map(number, numbers)]
