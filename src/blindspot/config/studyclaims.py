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
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from blindspot.config.explain import faults
from blindspot.config.sweeps import own
from blindspot.settings import Extent, Name, Positive, Settings

if TYPE_CHECKING:
    from blindspot.config.study import Config

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


def judged(config: "Config") -> dict[str, OneClaim]:
    """The claims of a study whose sweeps are expanded, one for each cell of `each`.

    Raises ValueError that names the key and what is wrong with it.
    """
    found: dict[str, OneClaim] = {}
    for name, claim in config.claims.items():
        for cell in claim.each or ("",):
            where = f"claims.{name}"
            value = {
                "claim": _filled(claim.claim, cell),
                "parts": [_filled(part, cell) for part in claim.parts],
            }
            try:
                one = OneClaim.model_validate(value)
            except ValidationError as error:
                raise ValueError("; ".join(faults(error, where))) from None
            for at, part in enumerate(one.parts):
                _check(config, part, f"{where}.parts.{at}")
            found[f"{name}.{cell}" if cell else name] = one
    return found


def _filled(value: Any, cell: str) -> Any:
    if isinstance(value, str):
        return value.replace("{cell}", cell) if cell else value
    if isinstance(value, dict):
        return {key: _filled(x, cell) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [_filled(x, cell) for x in value]
    return value


def _check(config: "Config", part: Part, where: str) -> None:
    for cell in part.cells:
        if cell not in config.cells:
            raise ValueError(
                f"{where}: the study has no cell {cell}, but {', '.join(config.cells)}"
            )
    if isinstance(part, Slope):
        log_x = not part.axes.endswith("-linear")
        _swept(config, part.sweep, part.cell, f"{where}.sweep", log_x)
        if part.axes.startswith("log-") and part.of not in POSITIVE:
            raise ValueError(
                f"{where}.axes: {part.of} may be negative, so it has no logarithm; "
                f"use linear-log2 or linear-linear"
            )
    elif isinstance(part, Compared):
        signs = {value in POSITIVE for value in (part.of, part.to or part.of)}
        if part.quantity == "ratio" and signs != {True}:
            raise ValueError(f"{where}: a ratio is of {', '.join(sorted(POSITIVE))}")
    elif isinstance(part, Beyond):
        loops = config.cells[part.cell].shared(config.model).loops
        depths = {*config.measurement.depths_beyond, *range(1, loops + 1)}
        for depth in (*part.ladder, part.at):
            if depth not in depths:
                raise ValueError(
                    f"{where}: exit {depth} is not scored; add it to measurement.depths_beyond"
                )
    elif isinstance(part, Predicted):
        for sweep in part.sweeps:
            key = _swept(config, sweep, part.cell, f"{where}.sweeps", log=True)
            for left in part.left_out:
                if not isinstance(own(config, config.cells[left], key), float):
                    raise ValueError(f"{where}.left_out: {left} has no number under {key}")


def _swept(config: "Config", sweep: str, cell: str, where: str, log: bool) -> str:
    """The key of a sweep of one key, whose values are numbers; positive ones if `log`."""
    if sweep not in config.sweeps:
        raise ValueError(
            f"{where}: the study has no sweep {sweep}, but {', '.join(config.sweeps) or 'none'}"
        )
    chosen = config.sweeps[sweep]
    if cell not in chosen.cells:
        raise ValueError(
            f"{where}: sweep {sweep} has no cell {cell}, but {', '.join(chosen.cells)}"
        )
    if len(chosen.over) != 1:
        raise ValueError(f"{where}: sweep {sweep} is over {len(chosen.over)} keys; one is needed")
    ((key, values),) = chosen.over.items()
    numbers = [x for x in values if isinstance(x, int | float) and not isinstance(x, bool)]
    if len(numbers) < len(values) or len(set(numbers)) < 2:
        raise ValueError(f"{where}: sweep {sweep} needs two numbers or more, and numbers alone")
    if log and min(numbers) <= 0:
        raise ValueError(f"{where}: sweep {sweep} has {min(numbers)}, which has no logarithm")
    return key


def described(config: "Config") -> dict[str, Any]:
    """The claims as study.json has them, with what left-out cells have of each swept key."""
    found: dict[str, Any] = {}
    for name, claim in judged(config).items():
        value = claim.model_dump(mode="json")
        for part, shown in zip(claim.parts, value["parts"], strict=True):
            if isinstance(part, Predicted):
                keys = [next(iter(config.sweeps[sweep].over)) for sweep in part.sweeps]
                shown["settings"] = {
                    cell: {key: own(config, config.cells[cell], key) for key in keys}
                    for cell in part.cells
                }
        found[name] = value
    return found
