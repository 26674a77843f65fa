"""Claims that a study makes itself, with their criteria, in its own file (key `claims`).

    claims:
      grows:
        claim: The norm of {cell} grows with the learning rate.
        each: [perloop-rms, perloop-raw]
        parts:
          - {quantity: slope, of: norm, sweep: rate, cell: "{cell}", axes: log-log,
             supported: {outside: [-0.1, 0.1]}, contradicted: {within: [-0.1, 0.1]}}

A part is one number a seed; its interval over seeds is set against two regions. A claim is
supported where every part fulfils its `supported`, contradicted where every part that has a
`contradicted` fulfils that, and inconclusive else. Claims decide no run; the ledger shows them
(publish/studyclaims.py) in the place of the paper's.
"""

from math import inf
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from blindspot.settings import Extent, Name, Positive, Settings

#: What a part can be about, of one run. All at the run's own last loop and on the validation split.
Of = Literal["gain", "ce", "norm", "first-norm", "growth", "angle", "b-perp"]
#: Values that spread by factors: their means, ratios and slopes are of logarithms.
POSITIVE: frozenset[Of] = frozenset({"norm", "first-norm", "growth", "angle", "b-perp"})
#: Values that say how well a model predicts: one that has learned nothing has none.
PREDICTS: frozenset[Of] = frozenset({"gain", "ce"})
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Region(Settings):
    """Where an interval must lie, whole; exactly one of the four."""

    above: Finite | None = None
    below: Finite | None = None
    within: tuple[Finite, Finite] | None = None
    #: Beyond one of the two, and all on one side.
    outside: tuple[Finite, Finite] | None = None
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [self.above, self.below, self.within, self.outside]
        if sum(x is not None for x in given) != 1:
            raise ValueError("give exactly one of above, below, within, outside")
        for pair in (self.within, self.outside):
            if pair is not None and not pair[0] < pair[1]:
                raise ValueError(f"{list(pair)}: the lower end comes first")
        return self

    def holds(self, low: float, high: float) -> bool:
        """Whether the interval `low`..`high` lies in it, whole."""
        return any(least <= low and high <= most for least, most in self._spans())

    def span(self, mean: float) -> tuple[float, float] | None:
        """The part of it that `mean` lies in; None outside."""
        return next((x for x in self._spans() if x[0] < mean < x[1]), None)

    def _spans(self) -> list[tuple[float, float]]:
        if self.above is not None:
            return [(self.above, inf)]
        if self.below is not None:
            return [(-inf, self.below)]
        if self.within is not None:
            return [self.within]
        assert self.outside is not None
        return [(-inf, self.outside[0]), (self.outside[1], inf)]

    def text(self) -> str:
        """For reading."""
        interval = "" if self.confidence == 0.95 else f" ({self.confidence:.0%} interval)"
        if self.above is not None:
            return f"above {self.above:g}{interval}"
        if self.below is not None:
            return f"below {self.below:g}{interval}"
        pair = self.within or self.outside
        assert pair is not None
        word = "within" if self.within else "outside"
        return f"{word} {pair[0]:g} to {pair[1]:g}{interval}"


class _Judged(Settings):
    supported: Region
    contradicted: Region | None = None


class Slope(_Judged):
    """Least-squares slope of a value over the points of a sweep, one a seed."""

    quantity: Literal["slope"]
    of: Of
    sweep: Name
    cell: Name
    #: y-x: `linear-log2` is nats a doubling, `log-log` an exponent.
    axes: Literal["log-log", "linear-log2", "linear-linear", "log-linear"] = "log-log"

    @property
    def cells(self) -> tuple[str, ...]:
        return (self.cell,)


class Value(_Judged):
    """A value of one cell."""

    quantity: Literal["value"]
    of: Of
    cell: Name

    @property
    def cells(self) -> tuple[str, ...]:
        return (self.cell,)


class Compared(_Judged):
    """The first cell's value against the second's, paired by seed: the difference, or the ratio.

    `of` and `to` may be different values: |H_4| of one cell over |H_1| of another.
    """

    quantity: Literal["difference", "ratio"]
    of: Of
    to: Of | None = None
    cell: Name
    against: Name

    @property
    def cells(self) -> tuple[str, ...]:
        return (self.cell, self.against)


class Beyond(_Judged):
    """CE at exit `at`, nats, less that of the trained K of the same cell, or, with `against`, less
    that of another cell at the same exit."""

    quantity: Literal["beyond"]
    cell: Name
    at: Extent
    against: Name | None = None
    #: Smaller exits that are judged alike; the deepest that fulfils `supported` is reported.
    ladder: tuple[Extent, ...] = ()

    @property
    def cells(self) -> tuple[str, ...]:
        return (self.cell, *([self.against] if self.against else []))


class Predicted(Settings):
    """The product of the power laws of several sweeps, fitted on a cell's points of them, against
    the mean of cells that no law was fitted on. Supported if each is within `tolerance` (a share of
    the measured one), else contradicted: a statement about means."""

    quantity: Literal["predicted"]
    of: Literal["norm"] = "norm"
    cell: Name
    sweeps: Annotated[tuple[Name, ...], Field(min_length=1)]
    left_out: Annotated[tuple[Name, ...], Field(min_length=1)]
    tolerance: Positive

    @property
    def cells(self) -> tuple[str, ...]:
        return (self.cell, *self.left_out)


Part = Annotated[Slope | Value | Compared | Beyond | Predicted, Field(discriminator="quantity")]


class StudyClaim(Settings):
    """One claim, or one for each cell of `each`, whose name stands for `{cell}`."""

    claim: Annotated[str, Field(min_length=1)]
    each: tuple[Name, ...] = ()
    #: As they are written; `judged` reads them, with the cells of `each` filled in.
    parts: Annotated[tuple[dict[str, Any], ...], Field(min_length=1)]


class OneClaim(Settings):
    """A claim as it is judged, of certain cells."""

    claim: str
    parts: tuple[Part, ...]

    @model_validator(mode="after")
    def _can_fail(self) -> Self:
        if not any(isinstance(part, Predicted) or part.contradicted for part in self.parts):
            raise ValueError("no part says what would contradict the claim; give a `contradicted`")
        return self

    @property
    def cells(self) -> list[str]:
        """Those that its parts name."""
        return list(dict.fromkeys(cell for part in self.parts for cell in part.cells))
