"""The choice of learning rates, against numbers worked out by hand."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))

import pilots  # noqa: E402


def table(ce: dict[str, dict[float, list[float]]]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"cell": cell, "rate": rate, "seed": seed, "ce": value}
            for cell, rates in ce.items()
            for rate, values in rates.items()
            for seed, value in zip((7, 11), values, strict=True)
        ]
    )


def test_the_lower_of_two_rates_within_a_tie_is_taken() -> None:
    rates, common = pilots.choose(
        table(
            {
                "a": {1e-3: [3.00, 3.02], 2e-3: [3.00, 3.012]},  # 3.010 and 3.006: a tie
                "b": {1e-3: [3.40, 3.40], 2e-3: [3.30, 3.30]},
            }
        )
    )
    assert rates == {"a": 1e-3, "b": 2e-3}
    assert common == 2e-3  # 3.205 and 3.153


def test_a_rate_that_some_cells_tried_alone_is_not_the_common_one() -> None:
    tried = {"a": {1e-3: [3.0, 3.0], 8e-3: [1.0, 1.0]}, "b": {1e-3: [3.0, 3.0]}}
    assert pilots.choose(table(tried)) == ({"a": 8e-3, "b": 1e-3}, 1e-3)


def test_a_training_without_a_finite_loss_loses() -> None:
    rates, _ = pilots.choose(table({"a": {1e-3: [3.5, 3.5], 4e-3: [2.0, float("nan")]}}))
    assert rates == {"a": 1e-3}


def test_what_is_judged_of_a_trajectory() -> None:
    """|H_K| = step^0.3 has the slope 0.3; the best exit of a terminal loss is K."""
    steps = [0, 50, 100, 200]
    log = pd.DataFrame(
        [
            {"step": s, "k": k, "ce": [np.nan, 3.2, 3.0, 3.1][k], "norm_mean": (k + 1) * s**0.3}
            for s in steps
            for k in range(4)
        ]
    )
    found = pilots.judged(log, 3, terminal=False)
    assert found["best_k"] == 2 and found["ce"] == 3.0
    assert found["gain"] == pytest.approx(0.1) and found["slope"] == pytest.approx(0.3)
    assert found["growth"] == pytest.approx((4 - 2) / 4)
    assert pilots.judged(log, 3, terminal=True)["ce"] == 3.1


def test_a_promised_half_width() -> None:
    """SD of two values a apart is a / sqrt(2); t(0.975, 4) = 2.776."""
    rows = []
    for cell in ("perloop-rms", "perloop-raw", "perloop-rms-penalty", "terminal-rms"):
        for seed, x in ((7, 0.0), (11, 0.1 if cell == "terminal-rms" else 0.0)):
            values = dict.fromkeys(("slope", "growth", "gain", "ce_last"), x)
            rows.append({"cell": cell, "rate": 1e-3, "seed": seed, **values})
    found = pilots.promised(pd.DataFrame(rows), dict.fromkeys({r["cell"] for r in rows}, 1e-3))
    assert found["dead-exits"] == pytest.approx(2.776 * 0.1 / np.sqrt(2) / np.sqrt(5), rel=1e-3)
    assert found["runaway"] == 0
