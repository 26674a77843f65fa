"""Statistics against scipy's t-test, textbook numbers and plain loops (fault F-01)."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_1samp, ttest_rel

from blindspot.collect import stats

numbers = st.floats(-1e6, 1e6).map(lambda x: round(x, 3))


def test_three_seeds():
    s = stats.summarize([1, 2, 3])
    assert (s.n, s.mean, s.sd) == (3, 2.0, 1.0)  # ddof 1; ddof 0 would be 0.816
    assert s.sem == pytest.approx(0.577, abs=5e-4)
    assert s.ci == pytest.approx(2.484, abs=5e-4)
    assert (s.low, s.high) == pytest.approx((2 - 2.484, 2 + 2.484), abs=1e-3)


def test_equal_values_have_a_spread_of_zero_and_one_value_has_none():
    same = stats.summarize([5, 5, 5])
    assert (same.sd, same.ci) == (0, 0)
    one = stats.summarize([7.0])
    assert one.mean == 7 and math.isnan(one.sd) and math.isnan(one.ci)


def test_infinite_perplexity_stays_infinite_without_an_interval():
    s = stats.summarize([5.0, math.inf])
    assert s.mean == math.inf and math.isnan(s.ci)


@pytest.mark.parametrize("values", [[], [1.0, math.nan]])
def test_missing_values_are_refused(values):
    with pytest.raises(ValueError, match="at least one"):
        stats.summarize(values)


@given(st.lists(numbers, min_size=2, max_size=9))
def test_interval_is_that_of_a_t_test(values):
    s = stats.summarize(values)
    if s.sd > 1e-3 * max(map(abs, values)):
        interval = ttest_1samp(values, 0).confidence_interval(0.95)
        assert s.low == pytest.approx(interval.low, rel=1e-9, abs=1e-6)
        assert s.high == pytest.approx(interval.high, rel=1e-9, abs=1e-6)


def test_paired_over_common_seeds_only():
    ours = {42: 1.0, 101: 2.5, 202: 3.0, 7: 99.0}
    reference = {202: 2.0, 42: 0.5, 101: 1.5, 8: -99.0}
    s = stats.paired(ours, reference)
    assert (s.n, s.mean) == (3, pytest.approx((0.5 + 1.0 + 1.0) / 3))
    interval = ttest_rel([1.0, 2.5, 3.0], [0.5, 1.5, 2.0]).confidence_interval(0.95)
    assert (s.low, s.high) == pytest.approx((interval.low, interval.high))


def test_paired_needs_a_common_seed():
    with pytest.raises(ValueError, match="no common seed"):
        stats.paired({1: 1.0}, {2: 1.0})


def test_pairing_removes_noise_that_seeds_share():
    noise = np.random.default_rng(0).normal(0, 10, 5)
    ours = {i: 1 + n for i, n in enumerate(noise)}
    reference = dict(enumerate(noise))
    assert stats.paired(ours, reference).ci < 1e-9 < stats.summarize(list(ours.values())).ci


def test_over_seeds_agrees_with_a_loop_and_keeps_order():
    rng = np.random.default_rng(1)
    rows = [
        {"cell": cell, "k": k, "seed": seed, "ppl": rng.normal(5, 1), "norm": rng.normal(9, 1)}
        for cell in ("z", "a")
        for k in (1, 2)
        for seed in (42, 101, 202)[: 1 if cell == "a" else 3]
    ]
    frame = pd.DataFrame(rows)
    result = stats.over_seeds(frame, ["cell", "k"], ["ppl", "norm"])
    assert list(zip(result["cell"], result["k"], strict=True)) == [
        ("z", 1), ("z", 2), ("a", 1), ("a", 2)
    ]  # fmt: skip
    for _, row in result.iterrows():
        for value in ("ppl", "norm"):
            own = [r[value] for r in rows if (r["cell"], r["k"]) == (row["cell"], row["k"])]
            s = stats.summarize(own)
            assert row["seeds"] == s.n
            assert (row[f"{value}_min"], row[f"{value}_max"]) == (min(own), max(own))
            for got, expected in ((row[value], s.mean), (row[f"{value}_ci"], s.ci)):
                assert got == pytest.approx(expected, nan_ok=True)


def test_tokens_of_one_seed_are_not_passed_off_as_trials():
    frame = pd.DataFrame({"cell": ["a", "a"], "seed": [42, 42], "ppl": [1.0, 2.0]})
    with pytest.raises(ValueError, match="more than once"):
        stats.over_seeds(frame, ["cell"], ["ppl"])


def test_log_values_have_intervals_of_their_logarithms():
    """Norms of 31, 37 and 76: on the linear scale the interval reaches below zero."""
    norms = [31.0, 37.0, 76.2]
    frame = pd.DataFrame({"cell": "a", "seed": [1, 2, 3], "x": norms, "y": norms})
    row = stats.over_seeds(frame, ["cell"], ["x", "y"], log=["y"]).iloc[0]
    assert row["x"] == pytest.approx(sum(norms) / 3) and row["x_low"] < 0
    expected = ttest_1samp(np.log(norms), 0).confidence_interval()
    assert row["y"] == pytest.approx(math.prod(norms) ** (1 / 3))
    assert (row["y_low"], row["y_high"]) == pytest.approx(tuple(np.exp(expected)))
    assert (row["y_min"], row["y_max"]) == pytest.approx((31, 76.2))
    assert frame["y"].tolist() == norms
    zero = stats.over_seeds(frame.assign(y=[0.0, 1, 2]), ["cell"], ["y"], log=["y"]).iloc[0]
    assert zero["y"] == 0 and math.isnan(zero["y_low"])


@pytest.mark.parametrize(
    ("ce", "found"),
    [
        ({1: 4.5, 2: 4.5, 3: 14.5}, {3: 4.5}),
        ({1: 4.5, 2: 4.6, 3: 4.9}, {}),
        ({1: 4.5, 2: 4.6, 3: 5.2}, {3: 4.6}),
        ({1: 4.5, 2: 4.5, 3: 3.9}, {3: 4.5}),
        ({1: 4.5, 2: math.inf, 3: 4.4}, {2: 4.5}),
        ({1: 4.5, 2: 4.5, 3: 4.5, 4: 9.0, 5: 8.0}, {4: 4.5, 5: 4.5}),
        # Of two that differ nobody knows which is the odd one.
        ({1: 4.5, 2: 9.0}, {1: 9.0, 2: 4.5}),
        ({1: 4.5}, {}),
    ],
)
def test_runs_far_from_the_other_seeds(ce, found):
    assert stats.outlying(ce) == pytest.approx(found)


def test_no_interval_of_a_perplexity_ends_below_one():
    """Two seeds at CE 4.5 and one at 14.5: exp of the mean CE less its t-interval is 1.5e-3."""
    ppl = np.exp([4.5, 4.5, 14.5])
    frame = pd.DataFrame({"cell": "a", "seed": [1, 2, 3], "ppl": ppl, "norm": ppl})
    row = stats.over_seeds(frame, ["cell"], ["ppl", "norm"], log=["ppl", "norm"]).iloc[0]
    assert row["norm_low"] < 2e-3 and row["ppl_low"] == 1
    assert row["ppl"] == pytest.approx(math.exp(23.5 / 3)) and row["ppl_high"] == row["norm_high"]


def test_two_one_sided_tests_agree_with_scipy():
    values = [0.011, 0.004, 0.02, 0.015, 0.009]
    ours = stats.summarize(values)
    above = ttest_1samp(values, 0.005, alternative="greater").pvalue
    below = ttest_1samp(values, 0.005, alternative="less").pvalue
    assert stats.p_values(ours, 0.005, math.inf) == pytest.approx((above, below))
    assert stats.p_values(ours, -math.inf, 0.005) == pytest.approx((below, above))
    # Equivalence: the larger of the two; outside: twice the smaller beyond a limit.
    inside = max(
        ttest_1samp(values, -0.02, alternative="greater").pvalue,
        ttest_1samp(values, 0.02, alternative="less").pvalue,
    )
    outside = 2 * min(
        ttest_1samp(values, 0.02, alternative="greater").pvalue,
        ttest_1samp(values, -0.02, alternative="less").pvalue,
    )
    assert stats.p_values(ours, -0.02, 0.02) == pytest.approx((inside, min(outside, 1)))


def test_holm_by_hand():
    """0.01 x 4, 0.02 x 3, 0.03 x 2 is less than the one before it, and 0.9; NaN counts as 1."""
    assert stats.holm([0.02, 0.9, 0.01, 0.03]) == pytest.approx([0.06, 0.9, 0.04, 0.06])
    assert stats.holm([0.02, math.nan]) == pytest.approx([0.04, 1.0])
