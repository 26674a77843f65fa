"""Per-token norms of H_0 and of the state after every loop 1..K of training.

All are L2 norms over d in float32, of tokens of the validation split.
"""

import itertools

import numpy as np
import torch
from numpy.typing import NDArray

from blindspot.measure.subject import Ids, Row, Subject, number

SPLIT = "validation"
BINS_A_DECADE = 50
#: Part of the tokens that counts as the tail.
TAIL = 0.01

Norms = NDArray[np.float64]


def measure(subject: Subject) -> dict[str, list[Row]]:
    """All four files."""
    rows = subject.sample(SPLIT, subject.settings.norm_tokens)
    norms = token_norms(subject, rows)
    flat = norms.reshape(len(norms), -1)
    seen = subject.occurrences
    frequency = seen / max(1, seen.sum()) * 1e6
    return {
        "norms": summary(flat, subject.spec.model.d_model),
        "norm_hist": histogram(flat),
        "norm_groups": [*by_position(norms), *by_frequency(flat, frequency[rows[:, :-1].ravel()])],
        "norm_growth": [growth(flat)],
    }


@torch.no_grad()
def token_norms(subject: Subject, rows: Ids) -> Norms:
    """|H_k| of the inputs of windows (n, T + 1): shape (K + 1, n, T)."""
    found = []
    for inputs, _ in subject.chunks(rows):
        states = subject.model(inputs)
        found.append(torch.stack([torch.linalg.vector_norm(h, dim=-1) for h in states]).cpu())
    return torch.cat(found, dim=1).double().numpy()


def summary(norms: Norms, width: int) -> list[Row]:
    """Rows of `norms.csv` from norms (K + 1, N), d = `width`."""
    table: list[Row] = []
    for k, values in enumerate(norms):
        marks = np.quantile(values, [0.5, 0.9, 0.99, 0.999])
        spread = values.std(ddof=1) if values.size > 1 else np.nan
        numbers = [values.mean(), spread, *marks, values.max(), values.mean() / np.sqrt(width)]
        numbers += [log_kurtosis(values), hill(values), *mass(values)]
        table.append([SPLIT, k, values.size, *map(number, numbers)])
    return table


def log_kurtosis(values: Norms) -> float:
    """Excess kurtosis of the logarithms of positive `values`; NaN where they are all equal."""
    logs = np.log(values[values > 0])
    if not logs.size or not np.ptp(logs) > 0:
        return np.nan
    # By hand: scipy's takes longer to import than all norms take to measure.
    return float((((logs - logs.mean()) / logs.std()) ** 4).mean() - 3)


def hill(values: Norms) -> float:
    """Hill's estimate of the tail index from the top 1 % of `values`, at least 10 of them.

    NaN with fewer than 11 values, or where the tail does not rise above its own threshold.
    """
    top = max(10, round(TAIL * values.size))
    if values.size <= top:
        return np.nan
    tail = np.sort(values)[-top - 1 :]
    excess = np.log(tail[1:] / tail[0]).mean() if tail[0] > 0 else 0.0
    return float(1 / excess) if excess > 0 else np.nan


def mass(values: Norms) -> tuple[float, float]:
    """Share of the squares' sum in the top 1 % of tokens; least share of tokens with half of it."""
    shares = np.cumsum(np.sort(values**2)[::-1])
    if not shares[-1] > 0:
        return np.nan, np.nan
    shares /= shares[-1]
    top = max(1, round(TAIL * values.size))
    return float(shares[top - 1]), float((np.searchsorted(shares, 0.5) + 1) / values.size)


def histogram(norms: Norms) -> list[Row]:
    """Rows of `norm_hist.csv` from norms (K + 1, N); norms of 0 have the bin 0 to 0."""
    table: list[Row] = []
    for k, values in enumerate(norms):
        positive = values[values > 0]
        if positive.size < values.size:
            table.append([SPLIT, k, values.size, "0", "0", values.size - positive.size])
        if not positive.size:
            continue
        # One more bin at each end: a value at an edge may fall to either side of its logarithm.
        first, last = np.floor(np.log10([positive.min(), positive.max()]) * BINS_A_DECADE)
        edges = edge(np.arange(first - 1, last + 3))
        counts, _ = np.histogram(positive, edges)
        table += [
            [SPLIT, k, values.size, number(low), number(high), count]
            for (low, high), count in zip(itertools.pairwise(edges), counts.tolist(), strict=True)
            if count
        ]
    return table


def edge(at: Norms) -> Norms:
    """Lower edges of histogram bins number `at`."""
    return np.asarray(10 ** (at / BINS_A_DECADE))


def by_position(norms: Norms) -> list[Row]:
    """Rows of group `position` from norms (K + 1, n, T)."""
    length = norms.shape[2]
    edges = [0, *(2**i for i in range(int(length).bit_length()) if 2**i < length), length]
    return [
        _group(k, "position", low, high, values[:, low:high].ravel())
        for k, values in enumerate(norms)
        for low, high in itertools.pairwise(edges)
    ]


def by_frequency(norms: Norms, frequency: Norms) -> list[Row]:
    """Rows of group `frequency` from norms (K + 1, N) and occurrences a million (N,)."""
    edges = [0, *(10**i for i in range(6)), 10**6 + 1]
    place = np.digitize(frequency, edges) - 1
    return [
        _group(k, "frequency", edges[at], min(edges[at + 1], 10**6), values[place == at])
        for k, values in enumerate(norms)
        for at in np.unique(place).tolist()
    ]


def _group(k: int, group: str, low: int, high: int, values: Norms) -> Row:
    numbers = [values.mean(), *np.quantile(values, [0.5, 0.99])]
    return [SPLIT, k, group, low, high, values.size, *map(number, numbers)]


def growth(norms: Norms) -> Row:
    """The row of `norm_growth.csv` from norms (K + 1, N)."""
    start, first, last = norms[[0, 1, -1]].mean(axis=1)
    parts = first - start, last - first
    whole = last - start
    both = min(parts) >= 0 and whole > 0
    shares = [number(part / whole) if both else "" for part in parts]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.log(first / start), np.log(last / first)
    means = map(number, (start, first, last, *parts))
    return [SPLIT, len(norms) - 1, norms.shape[1], *means, *shares, *map(number, ratios)]
