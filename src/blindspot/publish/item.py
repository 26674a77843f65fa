"""What a table or figure is to the catalogue, and the function behind each of them.

Imports nothing heavy: Snakemake reads this at the start of every job.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from blindspot.config.spec import canonical

if TYPE_CHECKING:
    from blindspot.config.study import Config


def always(config: "Config") -> bool:
    """Of every study."""
    return True


def two_initializations(config: "Config") -> bool:
    """Whether some cell is there under more than one initialization."""
    kinds: dict[str, set[str]] = {}
    for cell in config.cells.values():
        kind = {k: x for k, x in cell.described(config.model).items() if k != "init_std"}
        init = cell.initial(config.model)
        kinds.setdefault(canonical(kind), set()).add("default" if init is None else str(init))
    return any(len(stds) > 1 for stds in kinds.values())


@dataclass(frozen=True)
class Item:
    """One table or figure.

    `reads` names collected CSVs without their ending; every item reads `study.json` as well.
    """

    name: str
    #: The function that makes it, `module.function` of publish/tables/ or publish/figures/.
    made_by: str
    title: str
    category: str
    caption: str
    reads: tuple[str, ...]
    #: Whether a study can have it, by its config; the workflow makes no target of what it cannot.
    when: Callable[["Config"], bool] = always
    #: Of tables and figures `by_loop`: column of the first file that it reads, with its name.
    values: tuple[tuple[str, str], ...] = ()
    #: Of figures: `interval` draws bars of the t-interval, `range` bands over all seeds, `runs` one
    #: curve a run.
    spread: str = "interval"

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


def named(*items: Item) -> dict[str, Item]:
    return {item.name: item for item in items}
