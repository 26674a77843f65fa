"""What studies of causes and laws are about: numbers of runs, slopes over sweeps, power laws.

All at the last loop that a run was trained with and on the validation split, unless said. The unit
is the seed: one number, one slope, one prediction a seed, then a t-interval over seeds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, log, nan, sqrt
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from blindspot.collect.collected import Collected
from blindspot.publish import sweeps

#: A claim about predictions asks that the best trained exit is this far below the unigram model, in
#: nats, on the test split in every seed; a state is collapsed above this share of one direction
#: (docs/criteria.md).
GATE, COLLAPSED = 0.3, 0.9

INDEX = ["size", "cell", "seed"]
Values = dict[int, float]


@dataclass(frozen=True)
class Interval:
    """Mean over seeds and its t-interval; the ends are NaN for one seed."""

    mean: float
    low: float
    high: float

    def exp(self) -> "Interval":
        """Of logarithms, back on the scale of the values."""
        return Interval(exp(self.mean), exp(self.low), exp(self.high))


def interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """The t-interval of the mean of at least one number."""
    x = np.asarray(values, dtype=float)
    mean, n = float(x.mean()), len(x)
    if n < 2:
        return Interval(mean, nan, nan)
    half = float(stdtrit(n - 1, (1 + confidence) / 2)) * float(x.std(ddof=1)) / sqrt(n)
    return Interval(mean, mean - half, mean + half)


class Runs:
    """Single runs of a collected study, by size, cell and seed."""

    def __init__(self, collected: Collected) -> None:
        self.collected = collected

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row a run, indexed by size, cell and seed: `ce` and `gain` (CE_1 - CE_K), nats;
        `norm` |H_K|, `first-norm` |H_1|, `growth` |H_K| / |H_0|; `angle` of the last loop, radians;
        `b-perp`, the part of all branches across the state, at the direction of H_K."""
        c = self.collected
        frame = sweeps.measured(c).set_index(INDEX)
        norms = c.frame("norms").query("split == 'validation'")
        start, first = (norms[norms["k"] == k].set_index(INDEX)["l2_mean"] for k in (0, 1))
        fixed = c.last(c.frame("update_fixed").query("split == 'validation'"))
        # The limit is of the direction alone, so every norm has the same one.
        across = fixed.drop_duplicates(INDEX).set_index(INDEX)["angular_limit_mean"]
        more = {"first-norm": first, "growth": frame["norm"] / start, "b-perp": across}
        return frame.assign(**more)

    def of(self, size: str, cell: str, value: str) -> Values:
        """A column of `table` by seed."""
        return self._by_seed(self.table[value], size, cell)

    def at(self, size: str, cell: str, k: int) -> Values:
        """CE at exit k, nats, by seed."""
        return self._by_seed(self._exits[self._exits["k"] == k].set_index(INDEX)["ce"], size, cell)

    @cached_property
    def _exits(self) -> pd.DataFrame:
        return self.collected.exits()

    @staticmethod
    def _by_seed(column: pd.Series, size: str, cell: str) -> Values:
        if (size, cell) not in column.index.droplevel("seed"):
            return {}
        found = column.loc[[size], [cell]].dropna()
        return {int(seed): float(x) for (_, _, seed), x in found.items()}

    def unlearned(self, size: str, cell: str) -> str:
        """Says by how much a cell misses the gate, if it does in some seed; else empty."""
        short = self._short.get((size, cell), -1.0)
        limit = f"{GATE:g} nats below the unigram model"
        return f"{cell} misses {limit} by {short:.2f} nats" if short > 0 else ""

    @cached_property
    def _short(self) -> Mapping[tuple[str, str], float]:
        """By (size, cell) how far the worst seed is from the gate, nats; negative if it passes."""
        e = self.collected.frame("exits")
        e = e[(e["split"] == "test") & (e["protocol"] == "full")]
        best = self.collected.trained(e).groupby(INDEX)["ce"].min()
        limit = self.collected.baseline("unigram", "test") - GATE
        return dict((best - limit).groupby(["size", "cell"]).max())

    def collapsed(self, size: str, cell: str) -> bool:
        """Whether all tokens share one direction after the last loop, in some seed."""
        found = self._shared.get((size, cell), 0.0)
        return bool(found > COLLAPSED)

    @cached_property
    def _shared(self) -> Mapping[tuple[str, str], float]:
        frame = self.collected.last(self.collected.frame("collapse"))
        frame = frame[frame["split"] == "validation"]
        return dict(frame.groupby(["size", "cell"])["shared_direction"].max())

    def points(self, sweep: str, of: str) -> list[tuple[str, float]]:
        """The points of a sweep of one key that depart from a cell: the cell there, the value."""
        chosen = [p for p in sweeps.points(self.collected, sweep) if p["of"] == of]
        return [(p["cell"], float(next(iter(p["values"].values())))) for p in chosen]

    def slopes(self, size: str, sweep: str, of: str, value: str, axes: str = "log-log") -> Values:
        """Least-squares slope of a value over a sweep, by seed; of seeds that have every point.

        `axes` is y-x, each `linear`, `log` (natural) or, of x, `log2`.
        """
        points = self.points(sweep, of)
        y_axis, _, x_axis = axes.partition("-")
        x = np.array([_on(x_axis, at) for _, at in points])
        found = [self.of(size, cell, value) for cell, _ in points]
        seeds = sorted(set.intersection(*(set(values) for values in found)))
        return {
            seed: slope(x, np.array([_on(y_axis, values[seed]) for values in found]))
            for seed in seeds
        }


def _on(axis: str, value: float) -> float:
    if axis == "linear":
        return value
    return log(value) / (log(2) if axis == "log2" else 1.0)


def slope(x: np.ndarray, y: np.ndarray) -> float:
    """Slope of the line of least squares; both of shape (points,)."""
    away = x - x.mean()
    return float((away * (y - y.mean())).sum() / (away**2).sum())


def predictions(runs: Runs, size: str, part: Mapping[str, Any]) -> pd.DataFrame:
    """The product of power laws against cells that none was fitted on; `part` is a `predicted` of
    study.json. One row a left-out cell and seed: `cell`, `seed`, `measured`, `predicted`, norms.

    A law goes through the cell that all sweeps depart from: predicted = |H_K| there x product of
    (value / value there) ^ exponent, both of that seed.
    """
    base = part["cell"]
    at_base = runs.of(size, base, part["of"])
    keys = [
        next(iter(sweeps.points(runs.collected, sweep)[0]["values"])) for sweep in part["sweeps"]
    ]
    exponents = [runs.slopes(size, sweep, base, part["of"]) for sweep in part["sweeps"]]
    rows = []
    for cell in part["left_out"]:
        measured = runs.of(size, cell, part["of"])
        factors = [part["settings"][cell][key] / part["settings"][base][key] for key in keys]
        seeds = set(measured) & set(at_base)
        for seed in sorted(seeds.intersection(*exponents)):
            power = sum(e[seed] * log(f) for e, f in zip(exponents, factors, strict=True))
            predicted = at_base[seed] * exp(power)
            rows.append((cell, seed, measured[seed], predicted))
    return pd.DataFrame(rows, columns=["cell", "seed", "measured", "predicted"])
