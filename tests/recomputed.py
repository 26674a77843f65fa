"""Claims of the ledger computed again from `collected/*.csv`, in plain numpy and by nothing of the
package: what a reader with a calculator would do with docs/criteria.md."""

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy import stats

BASE, RAW, PENALTY = "perloop-rms", "perloop-raw", "perloop-rms-penalty"
Numbers = dict[int, float]


class Again:
    """One size of a folder that `collect` wrote, of a study in which every cell has one K."""

    def __init__(self, folder: Path, size: str) -> None:
        self.folder, self.size = folder, size
        self.study = json.loads((folder / "study.json").read_text())
        self.K = self.study["loops"]

    def rows(self, name: str, cell: str, **where: object) -> list[dict[str, str]]:
        with open(self.folder / f"{name}.csv", newline="") as file:
            return [
                row
                for row in csv.DictReader(file)
                if (row["size"], row["cell"]) == (self.size, cell)
                and all(row[key] == str(value) for key, value in where.items())
            ]

    def by_seed(self, name: str, cell: str, column: str, **where: object) -> Numbers:
        return {int(row["seed"]): float(row[column]) for row in self.rows(name, cell, **where)}

    def ce(self, cell: str, k: int) -> Numbers:
        return self.by_seed("exits", cell, "ce", split="validation", protocol="full", k=k)

    def gain(self, cell: str) -> Numbers:
        return _minus(self.ce(cell, 1), self.ce(cell, self.K))

    def norm(self, cell: str, k: int) -> Numbers:
        return self.by_seed("norms", cell, "l2_mean", split="validation", k=k)

    def slope(self, cell: str) -> Numbers:
        points: dict[int, list[tuple[float, float]]] = {}
        for row in self.rows("trajectory", cell, split="validation", k=self.K):
            pair = (float(row["step"]), float(row["norm_mean"]))
            points.setdefault(int(row["seed"]), []).append(pair)
        found = {}
        for seed, pairs in points.items():
            half = max(step for step, _ in pairs) / 2
            x, y = np.log([pair for pair in pairs if pair[0] >= half]).T
            found[seed] = float(((x - x.mean()) @ (y - y.mean())) / ((x - x.mean()) ** 2).sum())
        return found

    def at_equal_flops(self, ours: str, theirs: str) -> Numbers:
        curves = []
        for cell in (ours, theirs):
            each = self.by_seed("runs", cell, "train_flops_per_token")
            curve: dict[int, list[tuple[float, float]]] = {}
            for row in self.rows("trajectory", cell, split="validation", k=self.K):
                seed = int(row["seed"])
                flops = float(row["tokens"]) * each[seed]
                curve.setdefault(seed, []).append((flops, float(row["ce"])))
            curves.append(curve)
        found = {}
        for seed in curves[0].keys() & curves[1].keys():
            pair = [sorted(curve[seed]) for curve in curves]
            at = min(points[-1][0] for points in pair)
            if max(points[-1][0] for points in pair) < 1.001 * at:
                # Both end there: as all cross-entropies, of the whole split.
                found[seed] = self.ce(theirs, self.K)[seed] - self.ce(ours, self.K)[seed]
                continue
            a, b = (np.interp(at, *np.array(points).T) for points in pair)
            found[seed] = float(b - a)
        return found

    def angle(self, cell: str) -> Numbers:
        return self.by_seed("updates", cell, "angle_mean", split="validation", k=self.K - 1)


def _minus(a: Numbers, b: Numbers) -> Numbers:
    return {seed: a[seed] - b[seed] for seed in a.keys() & b.keys()}


def _over(a: Numbers, b: Numbers) -> Numbers:
    return {seed: a[seed] / b[seed] for seed in a.keys() & b.keys()}


#: Name to the values, whether they are averaged as logarithms, and the limits.
PRIMARY: dict[str, tuple[Callable[[Again], Numbers], bool, float, float]] = {
    "runaway": (lambda a: a.slope(BASE), False, 0.1, math.inf),
    "growth-recurrence": (
        lambda a: _over(_minus(a.norm(BASE, a.K), a.norm(BASE, 1)), a.norm(BASE, a.K)),
        False, 0.5, math.inf,
    ),
    "k-invariance": (lambda a: a.gain(BASE), False, -0.01, 0.01),
    "depth-raw": (lambda a: _minus(a.gain(RAW), a.gain(BASE)), False, 0.02, math.inf),
    "depth-penalty": (lambda a: _minus(a.gain(PENALTY), a.gain(BASE)), False, 0.02, math.inf),
    "equal-flops-raw": (lambda a: a.at_equal_flops(RAW, BASE), False, 0.0, math.inf),
    "freezing-raw": (lambda a: _over(a.angle(RAW), a.angle(BASE)), True, 10.0, math.inf),
    "dead-exits": (lambda a: a.gain("terminal-rms"), False, 1.0, math.inf),
}  # fmt: skip
OTHERS: dict[str, tuple[Callable[[Again], Numbers], bool, float, float]] = {
    "drift": (lambda a: _over(a.norm(BASE, a.K), a.norm(RAW, a.K)), True, 100.0, math.inf),
    "drift-start": (lambda a: _over(a.norm(BASE, a.K), a.norm(BASE, 0)), True, 10.0, math.inf),
    "control-raw": (
        lambda a: a.by_seed("norms", RAW, "rms_mean", split="validation", k=a.K),
        True, -math.inf, 5.0,
    ),
    "clamp": (
        lambda a: a.by_seed("clamp", BASE, "change_mean", intervention="norm", k=a.K),
        False, -0.01, 0.01,
    ),
    "useful-depth-raw": (lambda a: a.gain(RAW), False, 0.02, math.inf),
    "halting-rms": (
        lambda a: a.by_seed("halting", BASE, "mean_loops", score="margin", variant="oracle"),
        False, -math.inf, 1.1,
    ),
}  # fmt: skip


def _scaled(values: Numbers, log: bool, low: float, high: float) -> tuple[np.ndarray, float, float]:
    x = np.array([values[seed] for seed in sorted(values)])
    if not log:
        return x, low, high
    ends = [math.log(end) if 0 < end < math.inf else end for end in (low, high)]
    return np.log(x), ends[0], ends[1]


def by_interval(values: Numbers, log: bool, low: float, high: float) -> str:
    """Verdict by the 95 % t-interval."""
    x, low, high = _scaled(values, log, low, high)
    half = stats.t.ppf(0.975, len(x) - 1) * x.std(ddof=1) / math.sqrt(len(x))
    if x.mean() - half >= low and x.mean() + half <= high:
        return "supported"
    return "contradicted" if x.mean() + half < low or x.mean() - half > high else "inconclusive"


def p_values(values: Numbers, log: bool, low: float, high: float) -> tuple[float, float]:
    """One-sided p-values of supported and contradicted."""
    x, low, high = _scaled(values, log, low, high)

    def p(limit: float, alternative: str) -> float:
        return float(stats.ttest_1samp(x, limit, alternative=alternative).pvalue)

    if high == math.inf:
        return p(low, "greater"), p(low, "less")
    return (
        max(p(low, "greater"), p(high, "less")),
        min(1.0, 2 * min(p(low, "less"), p(high, "greater"))),
    )


def by_holm(tests: dict[str, tuple[float, float]]) -> dict[str, str]:
    """Verdicts of the primary claims: step down through all sixteen p-values at 0.05."""
    ordered = sorted(
        (p, name, which) for name, pair in tests.items() for which, p in enumerate(pair)
    )
    verdicts = dict.fromkeys(tests, "inconclusive")
    for rank, (p, name, which) in enumerate(ordered):
        if p > 0.05 / (16 - rank):
            break
        verdicts[name] = ("supported", "contradicted")[which]
    return verdicts
