"""Statistics over seeds. The unit is the seed: tokens of one run are not independent trials.

What is positive and spreads by factors (perplexities, norms, tail indices, cosines) is averaged as
logarithms: a perplexity is exp of the mean CE, and no interval reaches below zero. The paper
averages perplexities themselves; at the spread of its seeds (about 0.01 nats) the two differ in the
fifth digit, but not where seeds differ by factors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isinf, nan, sqrt
from statistics import median_high, median_low
from typing import Literal

import numpy as np
import pandas as pd
from scipy.special import stdtr, stdtrit

CONFIDENCE = 0.95
#: Changes of CE within this, in nats, are called negligible (claims.yaml and table clamp).
EQUIVALENT = 0.01

#: What lies below cannot be: no interval of a perplexity ends under that of a sure prediction.
LEAST = {"ppl": 1.0, "word_ppl": 1.0}
#: A run whose CE is further from the median of its cell's other seeds, in nats, is named.
OUTLYING = 0.5

#: What an interval can say of a criterion.
Judgement = Literal["supported", "contradicted", "inconclusive"]


def t_factor(n: int) -> float:
    """Half-width of the 95 % t-interval of a mean of `n` values, in standard deviations (ddof 1).

    2.484 for three seeds. NaN for n < 2: one value has no spread.
    """
    if n < 2:
        return nan
    # The t quantile without scipy.stats, whose import takes longer than most tables do.
    return float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) / sqrt(n)


@dataclass(frozen=True)
class Summary:
    """Mean of `n` values; `sd` (ddof 1), `sem` and `ci` (half-width of the 95 % t-interval) are
    NaN for n < 2 and where a value is infinite. `infinite` counts those."""

    n: int
    mean: float
    sd: float
    sem: float
    ci: float
    infinite: int = 0

    @property
    def low(self) -> float:
        return self.mean - self.ci

    @property
    def high(self) -> float:
        return self.mean + self.ci


def summarize(values: Sequence[float] | np.ndarray | pd.Series) -> Summary:
    """Mean and spread over seeds. NaN is refused (ValueError): a missing seed is not a value."""
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or x.size == 0 or np.isnan(x).any():
        raise ValueError(f"expected at least one number and no NaN, got {x!r}")
    n = x.size
    with np.errstate(invalid="ignore"):
        mean = float(x.mean())
    sd = float(x.std(ddof=1)) if n > 1 and np.isfinite(x).all() else nan
    return Summary(n, mean, sd, sd / sqrt(n), sd * t_factor(n), int(np.isinf(x).sum()))


def judge(ours: Summary, low: float, high: float) -> Judgement:
    """Whether the interval of `ours` lies within `low`..`high`, outside, or neither.

    Values that are infinite for every seed are an interval of their own (an overflow is no doubt).
    """
    if ours.n < 2:
        return "inconclusive"
    infinite = abs(ours.mean) == float("inf") and ours.infinite == ours.n
    least, most = (ours.mean, ours.mean) if infinite else (ours.low, ours.high)
    if least >= low and most <= high:
        return "supported"
    if most < low or least > high:
        return "contradicted"
    return "inconclusive"


def p_above(ours: Summary, limit: float) -> float:
    """One-sided p-value of a t-test over seeds, for a mean above `limit`. NaN for n < 2."""
    if ours.n < 2:
        return nan
    if not ours.sd > 0:  # all alike, or infinite
        certain = ours.sd == 0 or ours.infinite == ours.n
        return 0.0 if certain and ours.mean > limit else 1.0
    return float(stdtr(ours.n - 1, (limit - ours.mean) / ours.sem))


def p_below(ours: Summary, limit: float) -> float:
    """As `p_above`, for a mean below `limit`."""
    return p_above(replace(ours, mean=-ours.mean), -limit)


def p_values(ours: Summary, low: float, high: float) -> tuple[float, float]:
    """p-values for a mean within `low`..`high`, and for one outside.

    Where both limits are finite the first is that of two one-sided tests (equivalence), and the
    second twice the smaller of the two tests beyond a limit, so that it holds for any spread.
    """
    if isinf(high):
        return p_above(ours, low), p_below(ours, low)
    if isinf(low):
        return p_below(ours, high), p_above(ours, high)
    outside = 2 * min(p_above(ours, high), p_below(ours, low))
    return max(p_above(ours, low), p_below(ours, high)), min(outside, 1.0)


def holm(values: Sequence[float]) -> list[float]:
    """p-values adjusted by Holm's procedure: rejecting those up to a level keeps the chance of any
    false rejection below it. A test that could not be made (NaN) counts as one with p = 1."""
    p = np.where(np.isnan(values), 1.0, values)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(stepped, 1.0)
    return [float(x) for x in adjusted]


def paired(ours: Mapping[int, float], reference: Mapping[int, float]) -> Summary:
    """Summary of `ours - reference` over the seeds both have: shared seeds share data order and
    much of their noise, so the pairs, not the two means, carry the comparison.

    Raises ValueError without a common seed.
    """
    common = sorted(set(ours) & set(reference))
    if not common:
        raise ValueError(f"no common seed in {sorted(ours)} and {sorted(reference)}")
    return summarize([ours[seed] - reference[seed] for seed in common])


def outlying(ce: Mapping[int, float]) -> dict[int, float]:
    """Of CEs by seed those more than `OUTLYING` from the median of the others, with that median.
    Of two in the middle the nearer one: else one of three that diverges would mark all three."""
    found = {}
    for seed, own in ce.items():
        others = [value for other, value in ce.items() if other != seed]
        middle = (median_low(others), median_high(others)) if others else (own,)
        distances = {abs(own - median): median for median in middle}
        if min(distances) > OUTLYING:
            found[seed] = distances[min(distances)]
    return found


def over_seeds(
    frame: pd.DataFrame, by: Sequence[str], values: Sequence[str], log: Sequence[str] = ()
) -> pd.DataFrame:
    """Mean over seeds of each of `values`, one row a group, in order of first appearance.

    `frame` has a `seed` column. Columns: `by`, `seeds` (how many), and for each value its mean
    under its own name, `<value>_sd`, `<value>_ci` (half-width of the 95 % t-interval; both NaN for
    one seed), `<value>_low` and `<value>_high` (the interval's ends), `<value>_min` and
    `<value>_max`. Those in `log`, positive and multiplicative (norms, perplexities), are averaged
    as logarithms: mean and ends are exp of those of log values, so no end is below zero; `_sd` and
    `_ci` stay on the log scale. Perplexities have no end below 1. Raises ValueError when a seed
    stands twice in a group: that would pass rows of one run off as independent.
    """
    keys = list(by)
    with np.errstate(divide="ignore"):  # of zero: -inf, and exp(-inf) is zero again
        frame = frame.assign(**{value: np.log(frame[value]) for value in log})
    if frame.duplicated([*keys, "seed"]).any():
        raise ValueError(f"a seed appears more than once within a group of {keys}")
    groups = frame.groupby(keys, sort=False, observed=True)
    result = groups["seed"].size().rename("seeds").to_frame()
    factor = result["seeds"].map({n: t_factor(n) for n in result["seeds"].unique()})
    for value in values:
        result[value] = groups[value].mean()
        # An infinite perplexity makes pandas subtract inf from inf; the NaN is what is meant.
        with np.errstate(invalid="ignore"):
            result[f"{value}_sd"] = groups[value].std(ddof=1)
        result[f"{value}_ci"] = result[f"{value}_sd"] * factor
        result[f"{value}_low"] = result[value] - result[f"{value}_ci"]
        result[f"{value}_high"] = result[value] + result[f"{value}_ci"]
        result[f"{value}_min"] = groups[value].min()
        result[f"{value}_max"] = groups[value].max()
    back = [f"{value}{end}" for value in log for end in ("", "_low", "_high", "_min", "_max")]
    result[back] = np.exp(result[back])
    for value in LEAST.keys() & values:
        result[f"{value}_low"] = result[f"{value}_low"].clip(lower=LEAST[value])
    return result.reset_index()
