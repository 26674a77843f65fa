"""One speed where FLOPs are equal and timings differ by noise alone."""

import itertools

import pandas as pd
import pytest

from blindspot.publish.speeds import QUARTILES, pool


def timing(architecture: str, cell: str, k: int, flops: float, q25: float, median: float,
           q75: float) -> dict:  # fmt: skip
    return {"size": "s", "cell": cell, "architecture": architecture, "k": k} | {
        "flops_per_token": flops,
        **dict(zip(QUARTILES, (q25, median, q75), strict=True)),
    }


def test_noise_does_not_order_architectures_of_equal_flops():
    """The demo's numbers at k = 3 on a busy machine: 24 % apart, quartiles overlap."""
    rows = [
        timing("rms", "perloop-rms", 3, 5e5, 56577, 57894, 65854),
        timing("rms", "terminal-rms", 3, 5e5, 56577, 57894, 65854),
        timing("raw", "perloop-raw", 3, 5e5, 59428, 71734, 77017),
        timing("interloop", "perloop-rms-interloop", 3, 5e5, 55071, 60356, 73743),
    ]
    found = pool(pd.DataFrame(rows))
    # Each architecture counts once, however many cells have it.
    assert found["tokens_per_s"].tolist() == [60356] * 4
    assert found["tokens_per_s_q25"].tolist() == [56577] * 4
    assert found["pooled"].tolist() == [3] * 4


@pytest.mark.parametrize("other", [timing("raw", "b", 1, 1e5, 105, 110, 115),
                                   timing("raw", "b", 1, 2e5, 95, 99, 103),
                                   timing("raw", "b", 2, 1e5, 95, 99, 103)])  # fmt: skip
def test_a_difference_beyond_the_quartiles_or_in_work_stays(other: dict):
    rows = pd.DataFrame([timing("rms", "a", 1, 1e5, 95, 100, 104), other])
    found = pool(rows)
    assert found["pooled"].tolist() == [1, 1]
    pd.testing.assert_frame_equal(found[rows.columns], rows)


def test_the_order_of_rows_and_no_timing_at_all():
    rows = [
        timing(a, a, k, 1e5 * k, 100 / k, 101 / k, 102 / k)
        for a, k in itertools.product(("rms", "raw"), (1, 2))
    ]
    found = pool(pd.DataFrame(rows))
    assert found[["cell", "k"]].to_numpy().tolist() == [
        ["rms", 1], ["rms", 2], ["raw", 1], ["raw", 2]
    ]  # fmt: skip
    assert pool(pd.DataFrame(rows).iloc[:0]).empty
