"""Do all tokens share one direction? Two numbers from u_k = H_k / |H_k| over validation tokens:

    shared direction    |mean u|^2
    effective rank      exp(-sum p log p), p the eigenvalues of the mean of u u^T, which sum to 1

Computed in float64 from float32 states.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blindspot.measure.subject import Row, Subject, number
from blindspot.measure.updates import unit

SPLIT = "validation"


@torch.no_grad()
def measure(subject: Subject) -> dict[str, list[Row]]:
    """`collapse.csv`."""
    width, depths = subject.spec.model.d_model, subject.loops + 1
    total = torch.zeros(depths, width, dtype=torch.float64, device=subject.device)
    outer = torch.zeros(depths, width, width, dtype=torch.float64, device=subject.device)
    tokens = 0
    for inputs, _ in subject.chunks(subject.sample(SPLIT, subject.settings.norm_tokens)):
        for k, state in enumerate(subject.model(inputs)):
            directions = unit(state.double()).flatten(0, -2)
            total[k] += directions.sum(0)
            outer[k] += directions.T @ directions
        tokens += inputs.numel()
    rows: list[Row] = []
    for k in range(depths):
        values = shared(total[k] / tokens), effective_rank((outer[k] / tokens).cpu().numpy())
        rows.append([SPLIT, k, tokens, *map(number, values)])
    return {"collapse": rows}


def shared(mean: Tensor) -> float:
    """|mean u|^2 of the mean direction (d,)."""
    return float((mean**2).sum())


def effective_rank(second: NDArray[np.float64]) -> float:
    """exp of the entropy of the eigenvalues of mean u u^T (d, d), whose trace is 1."""
    found = np.linalg.eigvalsh(second)
    # Rounding leaves tiny positive or negative eigenvalues where the true ones are zero.
    p = found[found > 1e-15] / found[found > 1e-15].sum()
    return max(1.0, float(np.exp(-(p * np.log(p)).sum())))
