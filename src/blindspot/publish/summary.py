"""The numbers that matter: what a study showed of drift, and of what depth buys.

numbers(c)        -> at each size the three numbers, as far as its cells are there
summary(results)  -> the same in a few lines, for the terminal
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from blindspot.collect.collected import Collected
from blindspot.collect.stats import paired, summarize
from blindspot.publish.typeset import number

#: The baseline that drifts, and the cell with the same losses that sees the scale.
BLIND, SEEING = "perloop-rms", "perloop-raw"


@dataclass(frozen=True)
class Number(ABC):
    """One number of a study at one size: its mean over seeds, and their 95 % t-interval (NaN for
    one seed). `before` and `after` are the two means that it compares."""

    what: str
    size: str
    value: float
    low: float
    high: float
    seeds: int
    before: float
    after: float

    @property
    def shown(self) -> str:
        """The number as text."""
        return f"{self._text(self.value)}{self.unit}"

    @property
    def spread(self) -> str:
        """Its interval as text, in the number's unit; empty where there is none."""
        if math.isnan(self.low) or math.isnan(self.high):
            return ""
        return f"[{self._text(self.low)}, {self._text(self.high)}]"

    @property
    @abstractmethod
    def unit(self) -> str:
        """What stands behind the number."""

    @property
    @abstractmethod
    def detail(self) -> str:
        """The two means, and how many seeds the interval is of."""

    @abstractmethod
    def line(self) -> str:
        """The number as a line for the terminal, without the size."""

    @abstractmethod
    def _text(self, value: float) -> str:
        """A value of the number's kind for reading, without its unit."""

    def _seeds(self) -> str:
        return f"{self.seeds} seed{'s' if self.seeds > 1 else ''}"


@dataclass(frozen=True)
class Drift(Number):
    """|H_K| of `BLIND` (`before`) over that of `SEEING` (`after`), paired by seed."""

    unit = "×"

    @property
    def detail(self) -> str:
        return f"{number(self.before, 1)} over {number(self.after, 1)}; {self._seeds()}"

    def line(self) -> str:
        return (
            f"norm of the last state {self.before:,.1f} in {BLIND}, {self.after:,.1f} in "
            f"{SEEING}: {self.value:,.0f} times"
        )

    def _text(self, value: float) -> str:
        return number(value, 0 if value >= 10 else 1)


@dataclass(frozen=True)
class Gain(Number):
    """The share by which loops 2..K of a cell change its validation perplexity: `before` is that
    after loop 1, `after` that after loop K. `unigram` is the perplexity of token frequencies where
    no exit is better, else NaN."""

    cell: str
    loops: int
    unigram: float

    unit = " %"

    @property
    def detail(self) -> str:
        text = f"{_ppl(self.before)} after loop 1, {_ppl(self.after)} after loop {self.loops}"
        return f"{text}; {self._seeds()}{self._weak()}"

    def line(self) -> str:
        return (
            f"loops 2 to {self.loops} of {self.cell} change perplexity from {_ppl(self.before)} "
            f"to {_ppl(self.after)}{self._weak()}"
        )

    def _weak(self) -> str:
        if math.isnan(self.unigram):
            return ""
        return f", no better than a unigram model ({_ppl(self.unigram)})"

    def _text(self, value: float) -> str:
        text = number(100 * value, 1 if abs(value) >= 0.0005 else 0).replace("-", "−")
        return f"+{text}" if value >= 0.0005 else text


def numbers(c: Collected) -> list[Number]:
    """Three numbers for each size that has a run of `BLIND` and one of `SEEING` with a common seed:
    drift, and what loops 2..K change in each of the two cells; sizes in the order of the config.

    Each compares runs by seed. Means are of logarithms.
    """
    norms, exits = c.frame("norms"), c.exits()
    norms = c.last(norms[norms["split"] == "validation"])
    found: list[Number] = []
    for size in c.sizes:
        norm = {cell: _by_seed(norms, size, cell, "l2_mean") for cell in (BLIND, SEEING)}
        if not norm[BLIND].keys() & norm[SEEING].keys():
            continue
        found.append(_drift(size, norm))
        found += [gain for cell in (BLIND, SEEING) if (gain := _gain(c, exits, size, cell))]
    return found


def summary(results: Path) -> str:
    """Lines on drift and on what depth buys, from `collected/` in a study's results folder; empty
    where the study has not both cells."""
    found = numbers(Collected(results / "collected"))
    return "\n".join(f"  {n.size}: {n.line()}" for n in found)


def _by_seed(frame: pd.DataFrame, size: str, cell: str, column: str) -> dict[int, float]:
    own = frame[(frame["size"] == size) & (frame["cell"] == cell)]
    return {int(seed): float(x) for seed, x in zip(own["seed"], own[column], strict=True)}


def _drift(size: str, norm: dict[str, dict[int, float]]) -> Drift:
    logs = {
        cell: {s: math.log(x) if x else -math.inf for s, x in by.items()}
        for cell, by in norm.items()
    }
    ratio = paired(logs[BLIND], logs[SEEING])
    both = logs[BLIND].keys() & logs[SEEING].keys()
    blind, seeing = (summarize([logs[cell][s] for s in both]).mean for cell in (BLIND, SEEING))
    return Drift(
        what=f"norm of the last state, {BLIND} over {SEEING}",
        size=size,
        value=_exp(ratio.mean),
        low=_exp(ratio.low),
        high=_exp(ratio.high),
        seeds=ratio.n,
        before=_exp(blind),
        after=_exp(seeing),
    )


def _gain(c: Collected, exits: pd.DataFrame, size: str, cell: str) -> Gain | None:
    """None for a cell of one loop, which has no later ones."""
    loops = c.loops_of[cell]
    ce = {k: _by_seed(exits[exits["k"] == k], size, cell, "ce") for k in range(1, loops + 1)}
    if loops < 2 or not ce[1]:
        return None
    change = paired(ce[loops], ce[1])
    mean = {k: summarize(list(by.values())).mean for k, by in ce.items()}
    limit = c.baseline("unigram")
    return Gain(
        what=f"perplexity, changed by loops 2 to {loops} of {cell}",
        size=size,
        value=_exp(change.mean) - 1,
        low=_exp(change.low) - 1,
        high=_exp(change.high) - 1,
        seeds=change.n,
        before=_exp(mean[1]),
        after=_exp(mean[loops]),
        cell=cell,
        loops=loops,
        unigram=math.exp(limit) if min(mean.values()) >= limit else math.nan,
    )


def _exp(x: float) -> float:
    return math.inf if x > 700 else math.exp(x)


def _ppl(ppl: float) -> str:
    """A perplexity for reading; beyond what can be counted, as a power of e."""
    if not math.isfinite(ppl):
        return "∞"
    return f"{ppl:,.1f}" if ppl < 5e8 else f"e^{math.log(ppl):.1f}"
