"""Windows: plain enumeration is the reference for every closed form."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindspot.config.spec import Windows
from blindspot.data.windows import Batches, count, order, scoring
from blindspot.errors import BlindspotError
from toys import times_a_target


def listed(tokens, windows):
    """Starts of all windows, by trying every place."""
    return [s for s in range(0, tokens, windows.stride) if s + windows.length + 1 <= tokens]


shapes = st.integers(1, 40).flatmap(
    lambda length: st.tuples(st.just(length), st.integers(1, length), st.integers(length + 1, 200))
)


@given(shapes)
def test_count_equals_plain_enumeration(shape):
    length, stride, tokens = shape
    windows = Windows(length=length, stride=stride)
    assert count(tokens, windows) == len(listed(tokens, windows))


def test_inner_tokens_are_seen_length_over_stride_times():
    # The paper's 256 at 128: twice inside, once in the first and the last 128 targets.
    windows = Windows(length=256, stride=128)
    tokens = 1 + 128 * 10
    assert count(tokens, windows) == 9
    seen = times_a_target(tokens, windows)[1:]
    assert seen.tolist() == [1] * 128 + [2] * 128 * 8 + [1] * 128


@pytest.mark.parametrize("tokens", [15, 16, 17, 24, 25, 100])
@pytest.mark.parametrize("world", [1, 2])
def test_three_epochs_of_a_counting_stream(tokens, world):
    """T-08: every window once an epoch, orders differ, ranks share the whole without overlap."""
    windows = Windows(length=16, stride=8)
    stream = np.arange(tokens, dtype=np.uint16)
    if tokens < 17:
        with pytest.raises(BlindspotError, match=f"at least 17 tokens, this one has {tokens}"):
            Batches(stream, windows, batch=2, seed=1)
        return
    n = count(tokens, windows)
    assert n == {17: 1, 24: 1, 25: 2, 100: 11}[tokens]
    ranks = [Batches(stream, windows, 2, 1, rank, world) for rank in range(world)]
    steps = 3 * n  # with two rows a step: six epochs
    rows = np.concatenate([ranks[r][step] for step in range(steps) for r in range(world)])
    assert rows.dtype == np.int64 and rows.shape == (6 * n, 17)
    # A row of a counting stream is its start and the 16 that follow: targets are inputs shifted.
    assert (rows == rows[:, :1] + np.arange(17)).all()
    starts = rows[:, 0].reshape(6, n)
    assert (np.sort(starts, axis=1) == 8 * np.arange(n)).all()
    if n > 5:
        assert len({tuple(epoch) for epoch in starts}) == 6
    targets = np.bincount(rows[:, 1:].ravel(), minlength=tokens)
    assert (targets == 6 * times_a_target(tokens, windows)).all()


@given(
    n=st.integers(1, 30),
    batch=st.integers(1, 12),
    world=st.sampled_from([1, 2, 3]),
    seed=st.integers(0, 2**63 - 1),
)
def test_batches_run_on_across_epochs_and_ranks(n, batch, world, seed):
    windows = Windows(length=3, stride=2)
    stream = np.arange(2 * (n - 1) + 4, dtype=np.uint32)
    batches = Batches(stream, windows, batch * world, seed)
    parts = [Batches(stream, windows, batch * world, seed, r, world) for r in range(world)]
    expected = np.concatenate([order(n, seed, e) for e in range(5 * batch * world // n + 2)])
    for step in [4, 0, 1, 2, 3]:  # any step, in any order: the step is all the state there is
        whole = batches[step]
        numbers = expected[step * batch * world : (step + 1) * batch * world]
        assert (whole[:, 0] == 2 * numbers).all()
        assert (np.concatenate([p[step] for p in parts]) == whole).all()


def test_order_is_a_function_of_seed_and_epoch_alone():
    # Golden: another numpy must not give another order of training.
    assert order(10, 42, 0).tolist() == [8, 5, 3, 9, 7, 2, 1, 0, 4, 6]
    assert order(10, 42, 1).tolist() == [1, 7, 3, 9, 5, 0, 2, 8, 6, 4]
    assert sorted(order(1000, 7, 3).tolist()) == list(range(1000))
    # Pairs that naive mixing of the two numbers would confuse.
    pairs = [(0, 0), (0, 1), (1, 0), (1, 1), (5, 7), (5 + 7 * 2**32, 0), (2**63 - 1, 0)]
    assert len({tuple(order(50, s, e)) for s, e in pairs}) == len(pairs)


def test_a_batch_that_the_devices_cannot_share_is_refused():
    with pytest.raises(BlindspotError, match=r"batch: 5 .* 2 devices"):
        Batches(np.arange(50, dtype=np.uint16), Windows(length=4, stride=4), 5, 0, 0, 2)


@given(st.data())
def test_scoring_scores_every_target_once_with_its_context(data):
    length = data.draw(st.integers(1, 40))
    context = data.draw(st.integers(0, length - 1))
    tokens = data.draw(st.integers(0, 300))
    plan = scoring(tokens, length, context)
    scored = [t for _, first, end in plan.tolist() for t in range(first, end)]
    assert scored == list(range(1, tokens))
    for start, first, end in plan.tolist():
        assert 0 <= start < first < end <= tokens
        assert end - 1 - start == min(length, tokens - 1)  # one shape, so batches need no padding
        assert first - start > context or start == 0


def test_scoring_by_hand():
    # A stream of 11 ids, windows that read 4, context 2: two new targets a window.
    expected = [[0, 1, 5], [2, 5, 7], [4, 7, 9], [6, 9, 11]]
    assert scoring(11, 4, 2).tolist() == expected
    assert scoring(10, 4, 2).tolist() == [*expected[:3], [5, 9, 10]]
    assert scoring(3, 4, 0).tolist() == [[0, 1, 3]]
    assert scoring(1, 4, 0).tolist() == []
    with pytest.raises(BlindspotError, match=r"min_context: 4 .* use 0 to 3"):
        scoring(11, 4, 4)
