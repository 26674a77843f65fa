"""Does a readout see the norm of a state, and does the loss hold it?

Of each trained exit k, CE of r(a H_k) for a = 2^-4 .. 2^4, and its derivative by log a, over
tokens of the test split in float32. Every token's state has the same factor; the loops are not run
on the scaled state.
"""

import math
from collections import defaultdict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blindspot.declared.scale_response import SCALES
from blindspot.measure.subject import Row, Subject, number, token_nll

SPLIT = "test"


def measure(subject: Subject) -> dict[str, list[Row]]:
    """`scale_response.csv`."""
    rows = subject.sample(SPLIT, subject.settings.intervention_tokens)
    nll: dict[tuple[int, float], list[NDArray[np.float64]]] = defaultdict(list)
    slopes: dict[tuple[int, float], float] = defaultdict(float)
    for inputs, targets in subject.chunks(rows):
        with torch.no_grad():
            states = subject.model(inputs)
        for k in range(1, subject.loops + 1):
            for scale in SCALES:
                values, slope = response(subject, states[k], k, targets, scale)
                nll[k, scale].append(values)
                slopes[k, scale] += slope
    table: list[Row] = []
    for (k, scale), parts in nll.items():
        ce, plain = np.concatenate(parts), np.concatenate(nll[k, 1.0])
        change, n = ce - plain, ce.size
        error = change.std(ddof=1) / math.sqrt(n) if n > 1 else math.nan
        numbers = [ce.mean(), change.mean(), error, slopes[k, scale] / n]
        table.append([SPLIT, k, number(scale), n, *map(number, numbers)])
    return {"scale_response": table}


def response(
    subject: Subject, state: Tensor, k: int, targets: Tensor, scale: float
) -> tuple[NDArray[np.float64], float]:
    """NLL of each target from r(a H_k), flat, and the sum of its derivatives by log a."""
    log = torch.tensor(math.log(scale), dtype=state.dtype, device=state.device, requires_grad=True)
    with torch.enable_grad():
        # exp(log a) may be off by rounding: the value is that of a itself.
        factor = scale * (log - log.detach()).exp()
        nll = token_nll(subject.model, factor * state, k, targets).flatten().double()
        (slope,) = torch.autograd.grad(nll.sum(), log)
    return nll.detach().cpu().numpy(), float(slope)
