"""The table of a sweep: what the last loop of a run shows, one row a swept value."""

from typing import Any

import pandas as pd

from blindspot.collect.collected import Collected
from blindspot.publish.sweeps import LINEAR, LOG, VALUES, measured, points, shown_value
from blindspot.publish.tables.table import Table, counted, means, spreads


def table(c: Collected, sweep: str) -> Table:
    """One row a size and cell of the sweep, in the order of its values."""
    chosen = points(c, sweep)
    mean = means(measured(c), ["size", "cell"], LINEAR, LOG).set_index(["size", "cell"])
    lead = [
        {"size": size["name"], "of": p["of"], **_keyed(p), "own": p["own"], "cell": p["cell"]}
        for size in c.study["sizes"]
        for p in chosen
        if p["cell"] in c.cells_at(size["name"])
    ]
    data = pd.DataFrame(lead).join(mean, on=["size", "cell"])
    data["seeds"] = data["seeds"].fillna(0).astype(int)
    keys = list(chosen[0]["values"])
    own = [" (own)" if own else "" for own in data["own"]]
    rows = zip(data["size"], data["cell"], data["seeds"], strict=True)
    shown = pd.DataFrame(
        {"Size": data["size"], "Cell": data["of"]}
        | {
            key: [shown_value(value) + mark for value, mark in zip(data[key], own, strict=True)]
            for key in keys
        }
        | {"Seeds": [counted(c, *row) for row in rows]}
        | {
            heading[0].upper() + heading[1:]: spreads(data, name, 4 if name == "angle" else 3)
            for name, (heading, _) in VALUES.items()
        }
    )
    note = "(own): the cell's own values, from which the sweep departs. Angle in radians."
    return Table(data, shown, note)


def _keyed(point: dict[str, Any]) -> dict[str, Any]:
    # The CSV has one column a key; values that are maps or nothing are written as text.
    return {key: x if isinstance(x, int | float) else str(x) for key, x in point["values"].items()}
