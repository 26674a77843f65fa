"""A claim of the ledger (claims.yaml): its quantity, its criterion, and what the paper says."""

from collections.abc import Iterator, Mapping
from datetime import date as day
from functools import cache
from importlib.resources import files
from math import inf
from typing import Annotated, Any, Self

import yaml
from pydantic import Field, model_validator

from blindspot.declared.exits import Protocol
from blindspot.publish.quantities import QUANTITIES
from blindspot.settings import Settings

#: Primary claims at most, and exactly as many tests (two a claim) as Holm's procedure runs over.
PRIMARY = 8


class Published(Settings):
    """A value that the paper reports in one place, and the protocol of exits.csv that it is of."""

    value: float
    protocol: Protocol = "full"


class Setting(Settings):
    """What a published value depends on before any model: it is of one setting."""

    corpus: str
    tokenizer: dict[str, str | int]
    windows: dict[str, int]
    loops: int

    def differences(self, study: Mapping[str, Any]) -> list[str]:
        """What of it is otherwise in a study."""
        own = {name: getattr(self, name) for name in type(self).model_fields}
        found = []
        for name, value in own.items():
            other = study[name]
            if isinstance(value, dict):
                other = {key: other.get(key) for key in value}
            if other != value:
                found.append(name)
        return found


class Claim(Settings):
    """One entry of claims.yaml, which explains the keys."""

    claim: str
    quantity: str
    cells: Annotated[list[str], Field(min_length=1)]
    primary: bool = False
    exit: int | None = None
    at_least: float | None = None
    at_most: float | None = None
    within: float | None = None
    factor: Annotated[float, Field(gt=1)] | None = None
    below_depth: float | None = None
    regions: dict[str, tuple[float | None, float | None]] = Field(default_factory=dict)
    beside: list[str] = Field(default_factory=list)
    paper: str | dict[str, str] = ""
    source: str
    published: dict[str, dict[str, Published]] = Field(default_factory=dict)
    setting: Setting | None = None
    both: bool = False

    @model_validator(mode="after")
    def _criterion(self) -> Self:
        ends = self.at_least is not None or self.at_most is not None
        if sum([ends, self.within is not None, self.factor is not None]) > 1:
            raise ValueError("give one of at_least and at_most, within, factor")
        if self.factor is not None and not self.published:
            raise ValueError("factor is of a published value; give one")
        for name in (self.quantity, *self.beside):
            if name not in QUANTITIES:
                raise ValueError(f"no quantity {name!r}; there are {', '.join(QUANTITIES)}")
        if self.primary and (not self.judged or self.published or self.both):
            raise ValueError("a primary claim has a criterion, of one study's own values")
        return self

    @property
    def judged(self) -> bool:
        """Whether it has a criterion; without one its value is shown."""
        given = (self.at_least, self.at_most, self.within, self.factor)
        return any(x is not None for x in given)

    def limits(self, loops: int, around: float = 0.0) -> tuple[float, float]:
        """Lowest and highest value that fulfils the criterion, of a cell with `loops`."""
        if self.within is not None:
            return around - self.within, around + self.within
        if self.factor is not None:
            return around / self.factor, around * self.factor
        least = -inf if self.at_least is None else self.at_least
        most = inf if self.at_most is None else self.at_most
        if self.below_depth is not None:
            most = loops - self.below_depth
        return least, most

    def criterion(self, unit: str) -> str:
        """The criterion, for reading; empty where there is none."""
        if self.within is not None:
            return (
                f"within {self.within:g} of it" if self.published else f"± {self.within:g} {unit}"
            )
        if self.factor is not None:
            return f"within a factor of {self.factor:g}"
        if self.at_least is not None and self.at_most is not None:
            return f"{self.at_least:g} to {self.at_most:g} {unit}"
        if self.at_least is not None:
            room = "" if self.below_depth is None else f", ≤ K − {self.below_depth:g}"
            return f"≥ {self.at_least:g} {unit}{room}"
        return f"≤ {self.at_most:g} {unit}" if self.at_most is not None else ""

    def reported(self, size: str) -> str:
        """The paper's value for that size, for reading."""
        if size in self.published:
            return "; ".join(
                f"{at.value:,g} ({place}"
                + ("" if at.protocol == "full" else f", protocol {at.protocol}")
                + ")"
                for place, at in self.published[size].items()
            )
        return self.paper if isinstance(self.paper, str) else self.paper.get(size, "")


class Change(Settings):
    """When criteria were written or changed, and what had been seen of results by then."""

    date: day
    what: str
    seen: str


def _by_exit(name: str, entry: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """An entry with `exits` stands for one claim an exit; lists of published values have one for
    each of them, and `{k}` in the text is the exit."""
    exits = entry.get("exits")
    if exits is None:
        yield name, dict(entry)
        return
    rest = {key: value for key, value in entry.items() if key != "exits"}
    for at, k in enumerate(exits):
        published = {
            size: {
                place: {**one, "value": one["value"][at]} if isinstance(one["value"], list) else one
                for place, one in places.items()
            }
            for size, places in entry.get("published", {}).items()
        }
        text = {"claim": entry["claim"].replace("{k}", str(k))}
        if isinstance(entry.get("paper"), list):
            text["paper"] = entry["paper"][at]
        yield f"{name}-k{k}", {**rest, **text, "exit": k, "published": published}


@cache
def _read() -> dict[str, Any]:
    text = files("blindspot.publish").joinpath("claims.yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))


@cache
def claims() -> dict[str, Claim]:
    """All claims by name, in the order of the file."""
    return {
        name: Claim.model_validate(value)
        for entry, given in _read()["claims"].items()
        for name, value in _by_exit(entry, given)
    }


def history() -> list[Change]:
    """How the criteria came about, oldest first."""
    return [Change.model_validate(entry) for entry in _read()["history"]]
