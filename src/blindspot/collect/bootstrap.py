"""What the evaluated text leaves open: a bootstrap over contiguous blocks of windows.

The spread over seeds says nothing of the text: all runs are scored on the same tokens. Here blocks
of windows (`windows.csv`) are drawn with replacement, as many as there are. Every run is given the
same draws, so that what two cells share (hard passages) cancels in their difference.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from blindspot.collect.stats import CONFIDENCE

DRAWS = 1000
SEED = 1

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Blocks:
    """NLL (nats) and targets of each block of a run, shape (blocks,), in the order of the text."""

    nll: Numbers
    tokens: Numbers

    @classmethod
    def of(cls, frame: pd.DataFrame, k: int) -> "Blocks":
        """Of one run's rows of `windows.csv`, at exit k. Raises ValueError without any, and where
        a block stands twice: rows of two runs."""
        rows = frame[frame["k"] == k].sort_values("block")
        if rows.empty or rows["block"].duplicated().any():
            raise ValueError(f"expected the blocks of one run at exit {k}, got {len(rows)} rows")
        return cls(rows["nll"].to_numpy(np.float64), rows["tokens"].to_numpy(np.float64))


@dataclass(frozen=True)
class Sampling:
    """A mean CE, or a difference of two, in nats a token; the standard deviation of its draws; the
    95 % interval of their quantiles. NaN where there is one block: it has no spread."""

    value: float
    se: float
    low: float
    high: float
    blocks: int


def draws(blocks: int, n: int = DRAWS) -> Numbers:
    """How often each of `blocks` blocks is drawn in each of n draws: shape (n, blocks), rows sum to
    `blocks`. A function of its arguments alone, whatever the version of numpy (it promises raw
    bits, not what is made of them)."""
    drawn = np.random.PCG64(SEED).random_raw(n * blocks).reshape(n, blocks) % np.uint64(blocks)
    counts = np.zeros((n, blocks))
    np.add.at(counts, (np.arange(n)[:, None], drawn.astype(np.int64)), 1)
    return counts


def cross_entropy(runs: Mapping[int, Blocks]) -> Sampling:
    """Mean over runs (by seed) of the CE, with its sampling error over the text."""
    return signed({seed: [(1, run)] for seed, run in runs.items()})


def paired(ours: Mapping[int, Blocks], reference: Mapping[int, Blocks]) -> Sampling:
    """Mean over the seeds that both have of CE(ours) - CE(reference), the same draws for all.

    Raises ValueError without a common seed, and where runs were scored on other blocks.
    """
    common = sorted(set(ours) & set(reference))
    if not common:
        raise ValueError(f"no common seed in {sorted(ours)} and {sorted(reference)}")
    return signed({seed: [(1, ours[seed]), (-1, reference[seed])] for seed in common})


def signed(terms: Mapping[int, list[tuple[int, Blocks]]]) -> Sampling:
    """Mean over seeds of a signed sum of CEs, by seed the signs and runs of each.

    Raises ValueError without a run, and where runs were scored on other blocks.
    """
    runs = [run for parts in terms.values() for _, run in parts]
    if not runs:
        raise ValueError("expected at least one run")
    tokens = runs[0].tokens
    for run in runs:
        if not np.array_equal(run.tokens, tokens):
            raise ValueError("runs were scored on other blocks; no draw is the same for both")
    # CE is linear in the sums of nats once the draws, and with them the tokens, are common.
    nll = sum(sign * run.nll for parts in terms.values() for sign, run in parts) / len(terms)
    value, n = float(np.sum(nll) / tokens.sum()), len(tokens)
    if n < 2:
        return Sampling(value, np.nan, np.nan, np.nan, n)
    weights = draws(n)
    drawn = (weights @ nll) / (weights @ tokens)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return Sampling(value, float(drawn.std(ddof=1)), float(low), float(high), n)
