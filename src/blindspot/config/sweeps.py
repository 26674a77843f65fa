"""Sweeps: cells that differ from one of the study's in one setting, or in a product of several.

    sweeps:
      loops: {cells: [perloop-rms, perloop-raw], over: {loops: [1, 2, 4, 8]}}
      rate: {cells: [perloop-rms], over: {training.learning_rate: [1.0e-4, 3.0e-4, 1.0e-3]}}

A key is one of a cell, with a point for what is within it. Each value becomes a cell, named after
the cell, the key and the value; where the cell has that value already, it stands for itself.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from blindspot.config.cells import Cell
from blindspot.config.explain import faults
from blindspot.config.schema import Config
from blindspot.config.spec import Shape
from blindspot.settings import canonical


@dataclass(frozen=True)
class Point:
    """One cell of a sweep: `of` is the cell that is swept, `values` what this one has by key."""

    name: str
    of: str
    values: dict[str, Any]
    cell: Cell

    @property
    def own(self) -> bool:
        """Whether it is the swept cell itself, with its own values."""
        return self.name == self.of

    def described(self) -> dict[str, Any]:
        return {"cell": self.name, "of": self.of, "values": self.values, "own": self.own}


def points(config: Config, sweep: str) -> Iterator[Point]:
    """The cells of a sweep, in the order of its values. Raises ValueError that names the key."""
    chosen = config.sweeps[sweep]
    for of in chosen.cells:
        if of not in config.cells:
            raise ValueError(
                f"sweeps.{sweep}.cells: the study has no cell {of}, but {', '.join(config.cells)}"
            )
        base = config.cells[of]
        for values in itertools.product(*chosen.over.values()):
            at = dict(zip(chosen.over, values, strict=True))
            before = {key: own(config, base, key) for key in at}
            if canonical(before) == canonical({key: _plain(value) for key, value in at.items()}):
                yield Point(of, of, at, base)
                continue
            name = "-".join([of, *(f"{_word(key)}{_shown(value)}" for key, value in at.items())])
            yield Point(name, of, at, _with(base, at, f"sweeps.{sweep}.over"))


def expanded(config: Config) -> Config:
    """The config with the cells of its sweeps. Raises ValueError that names sweep and key."""
    cells = dict(config.cells)
    for sweep in config.sweeps:
        for point in points(config, sweep):
            if cells.setdefault(point.name, point.cell) != point.cell:
                raise ValueError(
                    f"sweeps.{sweep}: cell {point.name} exists with other settings; rename one"
                )
    # Validated again: a swept value may be refused beside the study's other settings.
    return type(config).model_validate(config.model_dump() | {"cells": cells})


def _with(base: Cell, at: Mapping[str, Any], where: str) -> Cell:
    raw = base.model_dump(mode="json")
    for key, value in at.items():
        *path, last = key.split(".")
        place = raw
        for part in path:
            place = place.setdefault(part, {}) if isinstance(place, dict) else {}
            if not isinstance(place, dict):
                raise ValueError(f"{where}.{key}: cell has no map {part} to set {last} in")
        place[last] = value
    try:
        return Cell.model_validate(raw)
    except ValidationError as error:
        raise ValueError("; ".join(faults(error, where))) from None


def own(config: Config, cell: Cell, key: str) -> Any:
    """What a cell has under a key of a sweep, by the study (and its only size) where it does not
    say; numbers are floats."""
    shared = cell.shared(config.model)
    value: Any = cell.model_dump(mode="json") | {
        "loops": shared.loops,
        "init_std": cell.initial(config.model) or "default",
        "training": cell.trained(config.training).model_dump(mode="json"),
        "model": _shape(config) | shared.model_dump(mode="json") | cell.model,
    }
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return _plain(value)


def _shape(config: Config) -> dict[str, Any]:
    """Width, layers and heads, where all sizes agree."""
    sizes = [size.model_dump(include={*Shape.model_fields}) for size in config.sizes.values()]
    return sizes[0] if all(size == sizes[0] for size in sizes) else {}


def _plain(value: Any) -> Any:
    """A number as it is compared: 1 and 1.0 are one value."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _word(key: str) -> str:
    return key.rpartition(".")[2].replace("_", "-")


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower()
