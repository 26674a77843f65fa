"""The bootstrap of blocks against standard errors that are known in closed form."""

import math

import numpy as np
import pandas as pd
import pytest

from blindspot.collect import bootstrap
from blindspot.collect.bootstrap import Blocks, cross_entropy, draws, paired

N, TOKENS = 400, 256.0


def blocks(ce):
    return Blocks(np.asarray(ce) * TOKENS, np.full(len(ce), TOKENS))


def test_draws_are_the_same_for_all_and_even():
    first, again = draws(50), draws(50)
    assert np.array_equal(first, again) and first.shape == (1000, 50)
    assert (first.sum(1) == 50).all()
    # Each block is drawn once on average, with the variance of a binomial.
    assert first.mean(0) == pytest.approx(np.ones(50), abs=0.15)
    assert first.var() == pytest.approx(1 - 1 / 50, rel=0.03)


def test_independent_blocks_give_the_analytic_standard_error():
    x = np.random.default_rng(0).normal(2.5, 0.3, N)
    found = cross_entropy({1: blocks(x)})
    se = x.std() / math.sqrt(N)
    assert found.value == pytest.approx(x.mean(), abs=1e-12)
    # 1,000 draws know a standard deviation to 1 / sqrt(2,000), 2.2 %.
    assert found.se == pytest.approx(se, rel=0.08)
    assert (found.low, found.high) == pytest.approx(
        (x.mean() - 1.96 * se, x.mean() + 1.96 * se), abs=0.2 * se
    )


@pytest.mark.parametrize("correlation", [0.0, 0.9, 0.99])
def test_what_both_cells_share_cancels(correlation):
    """Var(x - y) = 2 sd^2 (1 - correlation), by construction exactly."""
    rng = np.random.default_rng(1)
    raw = rng.normal(size=(2, N))
    raw -= raw.mean(1, keepdims=True)
    # Two series that are uncorrelated to the last digit, each of variance 1.
    a, b = np.linalg.qr(raw.T)[0].T * math.sqrt(N)
    x, y = a, correlation * a + math.sqrt(1 - correlation**2) * b
    found = paired({1: blocks(2 + 0.3 * x)}, {1: blocks(1.9 + 0.3 * y)})
    assert found.value == pytest.approx(0.1, abs=1e-12)
    assert found.se == pytest.approx(0.3 * math.sqrt(2 * (1 - correlation) / N), rel=0.08)


def test_seeds_are_matched_and_share_their_text():
    """Three seeds on one text know no more of it than one does."""
    rng = np.random.default_rng(2)
    text = rng.normal(0, 0.3, N)
    ours = {s: blocks(2 + text + rng.normal(0, 1e-3, N)) for s in (1, 2, 3)}
    reference = {s: blocks(2.2 + 0 * text) for s in (2, 3, 4)}
    found = paired(ours, reference)
    mean = np.mean([ours[s].nll / TOKENS - 2.2 for s in (2, 3)], axis=0)
    assert found.value == pytest.approx(mean.mean(), abs=1e-12)
    assert found.se == pytest.approx(mean.std() / math.sqrt(N), rel=0.08)
    with pytest.raises(ValueError, match="no common seed"):
        paired({1: ours[1]}, reference)
    with pytest.raises(ValueError, match="other blocks"):
        paired(ours, {2: blocks(np.ones(N - 1))})


def test_longer_blocks_keep_what_neighbours_share():
    """Where eight windows in a row have one value, drawing windows would find too little."""
    each = np.random.default_rng(3).normal(2, 0.3, N // 8)
    whole, windows = blocks(each), blocks(np.repeat(each, 8))
    ratio = cross_entropy({1: whole}).se / cross_entropy({1: windows}).se
    assert ratio == pytest.approx(math.sqrt(8), rel=0.12)


def test_one_block_has_no_spread():
    found = cross_entropy({1: blocks([2.0])})
    assert (found.value, found.blocks) == (2.0, 1)
    assert math.isnan(found.se) and math.isnan(found.low) and math.isnan(found.high)


def test_blocks_of_a_run():
    frame = pd.DataFrame(
        {"block": [1, 0, 0, 1], "k": [1, 1, 2, 2], "nll": [3.0, 2.0, 9.0, 9.0], "tokens": 4}
    )
    found = Blocks.of(frame, 1)
    assert found.nll.tolist() == [2.0, 3.0] and found.tokens.tolist() == [4.0, 4.0]
    for rows, k in ((pd.concat([frame, frame]), 1), (frame, 3)):
        with pytest.raises(ValueError, match=f"the blocks of one run at exit {k}"):
            Blocks.of(rows, k)
    assert bootstrap.DRAWS == 1000
