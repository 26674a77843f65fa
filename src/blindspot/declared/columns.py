"""How a CSV is declared: its columns with type, unit, meaning and limits, and what a whole file
must fulfil. Whoever writes the file and whoever reads it share the declaration, and
docs/columns.md is made from it.

Imports nothing heavy: Snakemake plans with these declarations. The checks are given frames of
pandas; what is wrong comes back as a phrase ("has ce 1.0 in row 2"), and the reader puts the
file's name in front.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

#: Types of pandas. Int64 is an integer that may be empty: not known.
INT, COUNT, FLOAT, TEXT, FLAG = "int64", "Int64", "float64", "str", "boolean"


@dataclass(frozen=True)
class Column:
    """One column. `unit` is empty for words, flags and plain ratios."""

    name: str
    type: str
    meaning: str
    unit: str = ""
    #: Every number is finite and at least this. None: anything, also nothing.
    low: float | None = None
    #: The words that may stand here; None: any.
    values: tuple[str, ...] | None = None
    #: Whether each of `values` must be there in a file that has rows.
    every: bool = True

    def faults(self, frame: "pd.DataFrame") -> Iterator[str]:
        """What is wrong with this column of `frame`."""
        column = frame[self.name]
        if self.low is not None:
            yield from not_above(frame, [self.name], self.low)
        if self.values is not None and len(column):
            found, known = set(column), set(self.values)
            if (found != known) if self.every else (found - known):
                yield f"has {self.name} {sorted(found)}, expected {sorted(known)}"


def integer(name: str, meaning: str, unit: str = "", low: float | None = None) -> Column:
    """A whole number."""
    return Column(name, INT, meaning, unit, low)


def count(name: str, meaning: str, unit: str = "") -> Column:
    """A whole number that may be unknown (empty)."""
    return Column(name, COUNT, meaning, unit)


def real(name: str, meaning: str, unit: str = "", low: float | None = None) -> Column:
    """A real number; without `low` it may be infinite, or nan or empty where there is none."""
    return Column(name, FLOAT, meaning, unit, low)


def word(name: str, meaning: str, *values: str, every: bool = True) -> Column:
    """Text; with `values` one of these."""
    return Column(name, TEXT, meaning, values=values or None, every=every)


#: Lower limit of numbers that must be finite, whatever their sign.
FINITE = -math.inf


@dataclass(frozen=True)
class Context:
    """What a file is checked against: the run's specification (a `RunSpec`), the optimizer steps
    that it took, and whose record is beside it."""

    spec: Any
    steps: int

    @property
    def loops(self) -> int:
        """The K of training."""
        return int(self.spec.model.loops)


Check = Callable[["pd.DataFrame", Context], Iterator[str]]


@dataclass(frozen=True)
class File:
    """A CSV: `<name>.csv`. No two rows agree in all `keys`."""

    name: str
    #: What one row is: "a split x depth".
    row: str
    columns: tuple[Column, ...]
    keys: tuple[str, ...]
    #: First loop of the depths that must be there without a gap up to K, deeper ones may follow.
    depths: int | None = None
    #: What else relates its numbers.
    check: Check | None = None
    #: What a reader must know besides the columns.
    note: str = ""
    #: Whether some runs may have no rows.
    partial: bool = False

    @property
    def csv(self) -> str:
        return f"{self.name}.csv"

    @property
    def header(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return tuple(column.name for column in self.columns)

    @property
    def types(self) -> dict[str, str]:
        """Name to type of pandas."""
        return {column.name: column.type for column in self.columns}

    def faults(self, frame: "pd.DataFrame", at: Context) -> Iterator[str]:
        """What is wrong with `frame`, which has exactly these columns."""
        for column in self.columns:
            yield from column.faults(frame)
            if column.name == "trained_k" and (frame["trained_k"] != at.loops).any():
                yield f"says trained_k {frame['trained_k'].max()}, the run has {at.loops}"
        if self.depths is not None:
            yield from gaps(frame, [k for k in self.keys if k != "k"], self.depths, at.loops)
        if self.check is not None:
            yield from self.check(frame, at)


# --- what checks are made of -----------------------------------------------------------------


def not_above(frame: "pd.DataFrame", columns: Collection[str], low: float) -> Iterator[str]:
    """Numbers that are not finite, or below `low`."""
    for name in columns:
        values = frame[name]
        bad = ~(values.abs() < math.inf) | (values < low)
        if bad.any():
            yield f"has {name} {values[bad].iloc[0]} in row {position(bad)}"


def gaps(frame: "pd.DataFrame", by: Collection[str], first: int, last: int) -> Iterator[str]:
    """Each group has k = first..last without a gap; deeper ones (extrapolation) may follow."""
    expected = list(range(first, last + 1))
    # A frame without groups is one group.
    groups = frame.groupby(list(by)) if by else [("all rows", frame)]
    for key, group in groups:
        found = sorted(group["k"])
        if found[: len(expected)] != expected:
            yield f"has k = {found} for {key}, expected {expected}"


def unequal(
    frame: "pd.DataFrame",
    expected: Mapping[str, Any],
    relative: float = 1e-5,
    absolute: float = 1e-6,
) -> Iterator[str]:
    """Columns that follow from others (`expected`: name to values), and do not."""
    import numpy as np  # planning never comes here

    for name, values in expected.items():
        wrong = ~np.isclose(frame[name], values, rtol=relative, atol=absolute, equal_nan=True)
        if wrong.any():
            at = int(wrong.argmax())
            yield (
                f"has {name} {frame[name].iloc[at]} in row {at + 2}, where its other columns give "
                f"{values.iloc[at]:.6g}"
            )


def position(bad: "pd.Series") -> int:
    """The line in the file of the first row that is bad."""
    return int(bad.to_numpy().argmax()) + 2
