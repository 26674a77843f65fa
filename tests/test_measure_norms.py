"""Norm statistics against loops over tokens and plain formulas."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import reference_model as plain
from blindspot.measure import norms
from measuring import parameters, subject, table


def files(s):
    return {name: table(name, rows) for name, rows in norms.measure(s).items()}


@pytest.mark.parametrize("cell", ["perloop-rms", "perloop-rms-interloop", "terminal-raw"])
def test_norms_are_those_of_the_reference_states(cell):
    s = subject(cell, settings={"norm_tokens": 48})
    rows = s.sample("validation", 48)
    found = norms.token_norms(s, rows)
    states = plain.states(parameters(s), torch.from_numpy(rows[:, :-1]), s.spec.model)
    for k, state in enumerate(states):
        for n in range(4):
            for t in range(12):
                expected = math.sqrt(sum(float(x) ** 2 for x in state[n, t]))
                assert found[k, n, t] == pytest.approx(expected, rel=1e-12)
    summary = files(s)["norms"]
    assert [r["k"] for r in summary] == [0, 1, 2, 3]
    for r, values in zip(summary, found.reshape(4, -1), strict=True):
        assert r["tokens"] == 48
        mean = sum(values) / 48
        assert r["l2_mean"] == pytest.approx(mean, rel=1e-8)
        assert r["l2_std"] == pytest.approx(
            math.sqrt(sum((x - mean) ** 2 for x in values) / 47), rel=1e-8
        )
        assert r["l2_max"] == pytest.approx(max(values), rel=1e-8)
        assert r["rms_mean"] == pytest.approx(mean / 4, rel=1e-8)
        ordered = sorted(values)
        for name, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)):
            at = q * 47
            low = ordered[int(at)]
            expected = low + (at - int(at)) * (ordered[min(int(at) + 1, 47)] - low)
            assert r[f"l2_{name}"] == pytest.approx(expected, rel=1e-8)
        logs = np.log(values) - np.log(values).mean()
        assert r["log_kurtosis"] == pytest.approx((logs**4).mean() / (logs**2).mean() ** 2 - 3)


def test_tail_measures_know_a_pareto_and_a_log_normal():
    rng = np.random.default_rng(0)
    for index in (1.5, 4.0):
        pareto = rng.pareto(index, 400_000) + 1
        assert norms.hill(pareto) == pytest.approx(index, rel=0.08)
    values = rng.pareto(3, 500) + 1
    assert norms.log_kurtosis(values) == pytest.approx(stats.kurtosis(np.log(values)))
    row = norms.summary(np.exp(rng.normal(size=(1, 200_000))), 4)[0]
    r = table("norms", [row])[0]
    assert abs(r["log_kurtosis"]) < 0.05
    # Of a log-normal, squares' top share is a normal distribution's tail, shifted by 2.
    assert r["mass_top1"] == pytest.approx(0.372, abs=0.04)


def test_mass_by_hand():
    values = np.array([1.0, 1.0, 1.0, 1.0, 4.0])  # squares 1 1 1 1 16
    assert norms.mass(values) == (pytest.approx(16 / 20), pytest.approx(1 / 5))
    assert norms.mass(np.ones(10)) == (pytest.approx(0.1), pytest.approx(0.5))
    assert all(map(math.isnan, norms.mass(np.zeros(3))))
    assert math.isnan(norms.hill(np.ones(10))) and math.isnan(norms.hill(np.ones(2000)))


@given(
    st.lists(
        st.floats(min_value=1e-3, max_value=1e7) | st.sampled_from([0.0, 1.0, 10.0, 1e4]),
        min_size=1,
        max_size=60,
    )
)
def test_histogram_redraws_the_survival_curve(values):
    rows = table("norm_hist", norms.histogram(np.array([values])))
    assert sum(r["count"] for r in rows) == len(values)
    for r in rows:
        if r["high"] == 0:
            assert r["count"] == values.count(0.0)
            continue
        # The file's edges have nine digits; the bins are at exact fiftieths of a decade.
        low, high = (10 ** (round(50 * math.log10(r[name])) / 50) for name in ("low", "high"))
        assert (r["low"], r["high"]) == (pytest.approx(low, 1e-8), pytest.approx(high, 1e-8))
        assert r["count"] == sum(low <= v < high for v in values)
        above = sum(q["count"] for q in rows if q["low"] >= r["high"])
        assert above == sum(v >= high for v in values)


def test_groups_partition_the_tokens():
    s = subject(settings={"norm_tokens": 96})
    found, out = norms.token_norms(s, s.sample("validation", 96)), files(s)
    train, ids = s.tokens.split("train"), s.sample("validation", 96)[:, :-1]
    for group in ("position", "frequency"):
        rows = [r for r in out["norm_groups"] if r["group"] == group]
        for k in range(4):
            own = [r for r in rows if r["k"] == k]
            assert sum(r["tokens"] for r in own) == 96
            for r in own:
                values = [
                    found[k, n, t]
                    for n in range(8)
                    for t in range(12)
                    if r["low"]
                    <= (t if group == "position" else sum(train == ids[n, t]) / len(train) * 1e6)
                    < r["high"]
                ]
                assert len(values) == r["tokens"]
                assert r["l2_mean"] == pytest.approx(np.mean(values), rel=1e-8)
                assert r["l2_p50"] == pytest.approx(np.median(values), rel=1e-8)
    positions = [(r["low"], r["high"]) for r in out["norm_groups"] if r["group"] == "position"]
    assert positions[:5] == [(0, 1), (1, 2), (2, 4), (4, 8), (8, 12)]


def test_growth_is_split_between_loop_one_and_the_rest():
    values = np.array([[10.0, 14.0], [100.0, 120.0], [130.0, 150.0], [140.0, 160.0]])
    r = table("norm_growth", [norms.growth(values)])[0]
    assert (r["l2_0"], r["l2_1"], r["l2_k"], r["trained_k"]) == (12, 110, 150, 3)
    assert (r["growth_1"], r["growth_rest"]) == (98, 40)
    assert r["share_1"] == pytest.approx(98 / 138) and r["share_rest"] == pytest.approx(40 / 138)
    assert r["log_growth_1"] == pytest.approx(math.log(110 / 12))
    assert r["log_growth_rest"] == pytest.approx(math.log(150 / 110))
    shrinks = table("norm_growth", [norms.growth(values[::-1])])[0]
    assert shrinks["share_1"] == shrinks["share_rest"] == ""


def test_large_states_keep_their_norms():
    """L-04: an entry of 1,733 has a square of 3.0e6, far beyond float16."""
    s = subject(dtype=torch.float32)
    s.model.embedding.weight *= 1e5
    found = norms.token_norms(s, s.sample("validation", 48))
    double = subject()
    double.model.embedding.weight *= 1e5
    exact = norms.token_norms(double, s.sample("validation", 48))
    assert found.min() > 1e4
    np.testing.assert_allclose(found, exact, rtol=1e-5)
