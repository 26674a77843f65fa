"""A table of any file with rows by loop: the catalogue names its columns (`Item.values`)."""

import pandas as pd

from blindspot.collect.collected import Collected
from blindspot.publish.item import Item
from blindspot.publish.tables.table import KEYS, Table, every_cell, lead, means, spreads


def means_by_loop(c: Collected, item: Item) -> Table:
    """Means over seeds by loop in `data`; after loop 1 and after the last in the shown table."""
    values = list(item.values)
    data = means(c.frame(item.reads[0]), [*KEYS, "split", "k"], values)
    last = every_cell(c, c.last(data))
    first = every_cell(c, data[data["k"] == 1])
    shown = lead(c, last)
    for column, label in item.values.items():
        shown[f"{label}, loop 1"] = spreads(first, column, 3)
        shown[f"{label}, loop {c.depth}"] = spreads(last, column, 3)
    return Table(data, pd.DataFrame(shown), "The other loops are in the CSV.")
