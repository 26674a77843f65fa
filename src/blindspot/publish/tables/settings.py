"""The table of hyperparameters: what each cell was trained with, at each size."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from blindspot.collect.collected import Collected
from blindspot.publish.tables.table import Table, controls
from blindspot.publish.typeset import ABSENT

#: Of the training settings, what changes no weights.
NO_MATTER = {"log_every", "validate_every", "validation_windows"}


def hyperparameters(c: Collected) -> Table:
    """One row a size and planned cell. What all rows share stands in the note alone."""
    kind = controls(c)
    parameters = c.runs.groupby(["size", "cell"])["parameters"].first().to_dict()
    rows = []
    for size in c.study["sizes"]:
        for name in c.cells_at(size["name"]):
            (cell,) = [cell for cell in c.study["cells"] if cell["name"] == name]
            own = cell.get("model") or {}
            loss, readout, control = kind[name]
            shape = {key: own.get(key, size[key]) for key in ("d_model", "layers", "heads")}
            model = c.study["model"] | own
            training = dict(c.study["training"])
            over = cell.get("training") or {}
            if len(length := {"steps", "epochs"} & over.keys()) == 1:
                training |= dict.fromkeys({"steps", "epochs"} - length)
            rows.append(
                {"size": size["name"], "cell": name, "loss": loss, "readout": readout}
                | {"control": control, "loops": c.loops_of[name], **shape}
                | {"parameters": parameters.get((size["name"], name))}
                | {"batch": size["batch"], "window": c.study["windows"]["length"]}
                | {name: _plain(model.get(name)) for name in ("dropout", "norm_eps")}
                | {k: _plain(x) for k, x in (training | over).items() if k not in NO_MATTER}
                | {"planned_seeds": len(c.planned[size["name"], name])}
            )
    data = pd.DataFrame(rows)
    text = data.map(_text)
    lead = ["size", "cell", "loss", "readout", "control"]
    same = [name for name in text if name not in lead and text[name].nunique() == 1]
    shown = text.drop(columns=same).rename(columns=lambda name: _heading(str(name)))
    said = [f"{_heading(n)} {text[n].iloc[0]}" for n in same if text[n].iloc[0] != ABSENT]
    return Table(data, shown, f"All alike: {'; '.join(said)}.")


def _plain(value: Any) -> Any:
    """A setting as one cell of a CSV: maps and lists as text."""
    if isinstance(value, Mapping):
        return "; ".join(f"{key} {_plain(x)}" for key, x in value.items() if x is not None)
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def _text(value: Any) -> str:
    if value is None or value != value or value == "":
        return ABSENT
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,.0f}" if value == int(value) and abs(value) >= 1 else f"{value:g}"


def _heading(name: str) -> str:
    special = {"d_model": "Width", "loops": "K", "planned_seeds": "Seeds"}
    return special.get(name) or name[0].upper() + name[1:].replace("_", " ")
