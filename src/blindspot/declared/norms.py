"""Per-token norms of H_0 and of the state after every loop 1..K of training."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from blindspot.declared.columns import Context, File, integer, real, unequal, word
from blindspot.declared.common import TOKENS, TRAINED_K, VALIDATION, K
from blindspot.declared.measurement import Measurement, Sample

if TYPE_CHECKING:
    import pandas as pd

#: Quantiles are stored in float32.
SLACK = 1 + 1e-6


def _norms(frame: "pd.DataFrame", at: Context) -> Iterator[str]:
    values = frame[["l2_p50", "l2_p90", "l2_p99", "l2_p999", "l2_max"]].to_numpy()
    if (values[:, :-1] > values[:, 1:] * SLACK).any():
        yield "has quantiles out of order"
    if (frame["l2_mean"] > frame["l2_max"] * SLACK).any():
        yield "has a mean above the maximum"


def _hist(frame: "pd.DataFrame", at: Context) -> Iterator[str]:
    if sorted(set(frame["k"])) != list(range(at.loops + 1)):
        yield f"has k = {sorted(set(frame['k']))}, expected 0 to {at.loops}"
    for k, group in frame.groupby("k"):
        if group["count"].sum() != group["tokens"].iloc[0] or group["tokens"].nunique() != 1:
            yield f"counts {group['count'].sum()} tokens at k = {k}, of {group['tokens'].iloc[0]}"


def _groups(frame: "pd.DataFrame", at: Context) -> Iterator[str]:
    totals = frame.groupby(["group", "k"])["tokens"].sum()
    if totals.nunique() != 1:
        yield f"has groups of different totals: {sorted(set(totals))} tokens"


def _growth(frame: "pd.DataFrame", at: Context) -> Iterator[str]:
    # Of two numbers of nine digits the difference has fewer.
    slack = frame["l2_k"].max() * 1e-7
    expected = {
        "growth_1": frame["l2_1"] - frame["l2_0"],
        "growth_rest": frame["l2_k"] - frame["l2_1"],
    }
    yield from unequal(frame, expected, absolute=slack)


MEASUREMENT = Measurement(
    "norms",
    "Norms of the state",
    (
        File(
            "norms",
            "a loop",
            (
                VALIDATION,
                K,
                TOKENS,
                real("l2_mean", "L2 norm of H_k over the width: mean over tokens", low=0),
                real("l2_std", "its standard deviation (ddof 1)", low=0),
                real("l2_p50", "median", low=0),
                real("l2_p90", "90th percentile", low=0),
                real("l2_p99", "99th percentile", low=0),
                real("l2_p999", "99.9th percentile", low=0),
                real("l2_max", "maximum", low=0),
                real("rms_mean", "mean of |H| / sqrt(d)", low=0),
                real("log_kurtosis", "excess kurtosis of log |H|; 0 for a log-normal norm"),
                real(
                    "hill",
                    "Hill's tail index over the top 1 % (at least 10 tokens): survival falls as "
                    "norm^-hill; small is heavy",
                ),
                real("mass_top1", "share of the sum of |H|^2 that the top 1 % of tokens carry"),
                real("half_mass", "least share of tokens that carries half of the sum of |H|^2"),
            ),
            ("split", "k"),
            depths=0,
            check=_norms,
            note="All in float32.",
        ),
        File(
            "norm_hist",
            "a loop x bin",
            (
                VALIDATION,
                K,
                TOKENS,
                real("low", "lower edge of the bin", low=0),
                real("high", "upper edge", low=0),
                integer("count", "tokens with low <= |H| < high", "tokens", low=0),
            ),
            ("split", "k", "low"),
            check=_hist,
            note="50 bins a decade, empty ones left out; every run has the same bins, so counts "
            "of seeds add up and survival at an edge is exact.",
        ),
        File(
            "norm_groups",
            "a loop x group of tokens",
            (
                VALIDATION,
                K,
                word(
                    "group",
                    "`position`: of the token in its window, in powers of two; `frequency`: of "
                    "the token in the training split, occurrences a million",
                    *("position", "frequency"),
                ),
                integer("low", "the group's lowest position or frequency"),
                integer("high", "below this"),
                TOKENS,
                real("l2_mean", "L2 norm: mean", low=0),
                real("l2_p50", "median", low=0),
                real("l2_p99", "99th percentile", low=0),
            ),
            ("split", "k", "group", "low"),
            check=_groups,
        ),
        File(
            "norm_growth",
            "a run",
            (
                VALIDATION,
                TRAINED_K,
                TOKENS,
                real("l2_0", "mean of |H_0|", low=0),
                real("l2_1", "mean of |H_1|", low=0),
                real("l2_k", "mean of |H_K|", low=0),
                real("growth_1", "l2_1 - l2_0"),
                real("growth_rest", "l2_k - l2_1"),
                real("share_1", "loop 1's share of l2_k - l2_0; empty unless both parts are >= 0"),
                real("share_rest", "that of loops 2 to K"),
                real("log_growth_1", "ln(l2_1 / l2_0)"),
                real("log_growth_rest", "ln(l2_k / l2_1)"),
            ),
            ("split",),
            check=_growth,
            note="Where the mean norm grows.",
        ),
    ),
    revision=4,
    settings=("norm_tokens",),
    sample=Sample("Norms", "norm_tokens"),
)
