"""What a table or figure is to the catalogue, and the function behind each of them.

Imports nothing heavy: Snakemake reads this at the start of every job.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from blindspot.config.cells import but_initialization
from blindspot.config.criteria import Predicted, Slope, Value
from blindspot.config.studyclaims import judged
from blindspot.settings import Settings

if TYPE_CHECKING:
    from blindspot.config.schema import Config


def two_initializations(config: "Config") -> bool:
    """Whether some cell is there under more than one initialization."""
    kinds: dict[str, set[str]] = {}
    for cell in config.cells.values():
        init = cell.initial(config.model)
        kind = but_initialization(cell.described(config.model))
        kinds.setdefault(kind, set()).add("default" if init is None else str(init))
    return any(len(stds) > 1 for stds in kinds.values())


def asked(config: "Config") -> set[str]:
    """Which questions of causes and laws a study asks: `dose` (a slope of what depth gains over a
    sweep), `laws` (power laws carried to left-out settings), `remedies` (the growth of the norm of
    three cells or more), `horizon` (exits four times as deep as every trained K)."""
    parts = [part for claim in judged(config).values() for part in claim.parts]
    growths = {p.cell for p in parts if isinstance(p, Value) and p.of == "growth"}
    deepest = max(cell.shared(config.model).loops for cell in config.cells.values())
    found = {
        "dose": any(isinstance(p, Slope) and p.of == "gain" for p in parts),
        "laws": any(isinstance(p, Predicted) for p in parts),
        "remedies": len(growths) >= 3,
        "horizon": max(config.measurement.depths_beyond, default=0) >= 4 * deepest,
    }
    return {name for name, there in found.items() if there}


class Item(Settings):
    """One table or figure; `catalogue.yaml` explains the keys."""

    name: str
    #: A sweep's are made by tables/sweep.py and figures/sweep.py, the ledger by claims.py.
    made_by: str = ""
    title: str
    category: str
    caption: str
    reads: tuple[str, ...]
    two_initializations: bool = False
    asks: Literal["", "dose", "laws", "remedies", "horizon"] = ""
    values: dict[str, str] = Field(default_factory=dict)
    spread: Literal["interval", "range", "runs"] = "interval"

    def inputs(self) -> list[str]:
        """Names of the collected files it is a function of; nothing else may change it."""
        return ["study.json", *(f"{name}.csv" for name in ("runs", *self.reads))]

    def described(self, config: "Config", missing: Sequence[str]) -> str:
        """The caption as far as it is known before there are results: without the `missing`."""
        depths = ", ".join(
            str(k)
            for k in sorted({cell.shared(config.model).loops for cell in config.cells.values()})
        )
        sizes, seeds = ", ".join(config.sizes), ", ".join(map(str, config.grid.seeds))
        return (
            f"{self.title}. {self.caption} Study {config.study}, corpus {config.corpus.label}, "
            f"sizes {sizes}, seeds {seeds}, K = {depths}."
            + (f" Not shown, since not finished: {', '.join(missing)}." if missing else "")
        )


class Functions(Mapping[str, Callable[..., Any]]):
    """The functions that make `items`, by name; a module is imported when one is asked for."""

    def __init__(self, package: str, items: Mapping[str, Item]) -> None:
        self._package, self._items = package, items

    def __getitem__(self, name: str) -> Callable[..., Any]:
        item = self._items[name]
        module, _, function = item.made_by.partition(".")
        made: Callable[..., Any] = getattr(import_module(f"{self._package}.{module}"), function)
        return partial(made, item=item) if item.values else made

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)
