"""What all tables share: their two faces, rows for every cell, and cells of text."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from blindspot.collected import Collected
from blindspot.typeset import ABSENT, spread

KEYS = ["size", "cell"]


@dataclass
class Table:
    """`data` for the CSV; `shown` has the same numbers as text, one column a header. A rule is
    drawn where the value of its first column changes."""

    data: pd.DataFrame
    shown: pd.DataFrame
    note: str = ""


def every_cell(c: Collected, frame: pd.DataFrame, more: Sequence[str] = ()) -> pd.DataFrame:
    """`frame`, one row a size and cell (and `more` keys), with empty rows for what is not there:
    a cell that failed or is not done must not just be absent. In the order of the config."""
    keys = [*KEYS, *more]
    levels = [[s["name"] for s in c.study["sizes"]], c.cells]
    levels += [list(dict.fromkeys(frame[name])) for name in more]
    grid = pd.MultiIndex.from_product(levels, names=keys)
    return frame.set_index(keys).reindex(grid).reset_index()


def counted(c: Collected, size: str, cell: str, seeds: float) -> str:
    """How many seeds, and how many runs failed: `2 (1 failed)`."""
    n = 0 if pd.isna(seeds) else int(seeds)
    failed = c.failed.get((size, cell), 0)
    return f"{n} ({failed} failed)" if failed else str(n)


def lead(c: Collected, frame: pd.DataFrame) -> dict[str, list[str]]:
    """The columns that tables begin with, from rows with size, cell, seeds."""
    rows = list(zip(frame["size"], frame["cell"], frame["seeds"], strict=True))
    return {
        "Size": [size for size, _, _ in rows],
        "Cell": [cell for _, cell, _ in rows],
        "Seeds": [counted(c, *row) for row in rows],
    }


def spreads(frame: pd.DataFrame, value: str, decimals: int = 2) -> list[str]:
    """`mean ± half-width` of a column of `over_seeds`."""
    pairs = zip(frame[value], frame[f"{value}_ci"], strict=True)
    return [spread(mean, ci, decimals) for mean, ci in pairs]


def wide(frame: pd.DataFrame, text: str, column: str, keys: Sequence[str]) -> pd.DataFrame:
    """One row a combination of `keys` in order of appearance, one column a value of `column`."""
    table = frame.pivot(index=list(keys), columns=column, values=text)
    order = pd.MultiIndex.from_frame(frame[list(keys)].drop_duplicates())
    return table.reindex(order).fillna(ABSENT)


def controls(c: Collected) -> dict[str, tuple[str, str, str]]:
    """Loss placement, readout and further controls of each cell, for reading."""
    shared = c.study["model"].get("init_std")
    found = {}
    for cell in c.study["cells"]:
        extra = []
        if cell.get("penalty"):
            extra.append(f"penalty {cell['penalty']['weight']:g}")
        if cell.get("interloop", "none") != "none":
            extra.append("inter-loop norm")
        if (std := cell.get("init_std") or shared) is not None:
            extra.append(f"init {std}")
        found[cell["name"]] = (cell["loss"], cell["readout"], ", ".join(extra) or ABSENT)
    return found
