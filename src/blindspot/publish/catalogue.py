"""What a study publishes, as `catalogue.yaml` has it: every table and figure, and the ledger.

Imports nothing heavy: Snakemake reads this at the start of every job, to plan one rule a figure.
"""

from collections.abc import Mapping
from importlib.resources import files
from typing import TYPE_CHECKING

import yaml

from blindspot.declared import COLLECTED as DECLARED
from blindspot.publish.item import Item, asked, two_initializations

if TYPE_CHECKING:
    from blindspot.config.schema import Config

#: CSV files that `collect` writes next to `study.json`.
COLLECTED = tuple(DECLARED)

_READ = yaml.safe_load(files("blindspot.publish").joinpath("catalogue.yaml").read_text("utf-8"))
TABLES = {name: Item(name=name, **entry) for name, entry in _READ["tables"].items()}
FIGURES = {name: Item(name=name, **entry) for name, entry in _READ["figures"].items()}
CLAIMS = Item(name="claims", **_READ["claims"])

#: Categories in the order of the paper; each item is in one of them.
ORDER = ("Claims", "Results", "Depth", "Scale", "Mechanism", "Causes", "Laws", "Remedies",
         "Training", "Sweeps", "Initialization", "Cost", "Provenance")  # fmt: skip

#: What the names of a sweep's table and figure begin with.
SWEEP = "sweep-"


def of(items: Mapping[str, Item], config: "Config") -> dict[str, Item]:
    """The items of `TABLES` or `FIGURES` that a study with this config can have, and one for each
    of its sweeps."""
    two, questions = two_initializations(config), {"", *asked(config)}
    found = {
        name: item
        for name, item in items.items()
        if item.asks in questions and (two or not item.two_initializations)
    }
    return found | {SWEEP + name: item(items, SWEEP + name) for name in config.sweeps}


def heading(category: str) -> str:
    """The category in the report's list, which Snakemake sorts by the alphabet."""
    return f"{ORDER.index(category) + 1:02} {category}"


def item(items: Mapping[str, Item], name: str) -> Item:
    """The table or figure of this name, in `items` or of a sweep. KeyError where there is none."""
    if name in items or not name.startswith(SWEEP):
        return items[name]
    entry = _READ["sweep"]
    return Item(name=name, **entry | {"title": f"{entry['title']} {name.removeprefix(SWEEP)}"})
