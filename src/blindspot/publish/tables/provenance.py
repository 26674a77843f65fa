"""Where the results come from: one row for each stage and set of code, versions and machine."""

import pandas as pd

from blindspot.collect.collected import Collected
from blindspot.publish.tables.table import Table
from blindspot.publish.typeset import ABSENT

#: Results that agree in all of these share a row.
SHARED = ["stage", "revision", "data_revision", "commit", "dirty", "blindspot", "python", "torch",
          "numpy", "device", "threads", "precision"]  # fmt: skip
#: What may differ within a stage without being wrong, and how the note names it.
NAMED = {
    "commit": "commits",
    "torch": "versions of torch",
    "numpy": "versions of numpy",
    "python": "versions of Python",
    "device": "devices",
    "threads": "numbers of threads",
    "precision": "precisions",
}


def provenance(c: Collected) -> Table:
    """Every result in `data`; in the shown table one row a distinct origin."""
    data = c.frame("provenance")
    rows = []
    for _, part in data.groupby(SHARED, sort=False, dropna=False):
        one = part.iloc[0]
        stage = data[data["stage"] == one["stage"]]
        days = sorted(part["finished"].dropna().str[:10])
        again = part[["resumes", "requeues"]].fillna(0).sum().astype(int)
        rows.append(
            {
                "Stage": one["stage"],
                "Results": str(len(part)),
                "Of": "all" if len(part) == len(stage) else _whose(part),
                "Commit": _commit(one),
                "Versions": _versions(one),
                "Device": _text(one["device"]),
                "Threads": _text(one["threads"]),
                "Precision": _text(one["precision"]),
                "Revision": _text(one["revision"]),
                "Finished": " – ".join(dict.fromkeys([days[0], days[-1]])) if days else ABSENT,
                "Resumed": str(again["resumes"]),
                "Requeued": str(again["requeues"]),
            }
        )
    return Table(data, pd.DataFrame(rows), _note(c, data))


def _note(c: Collected, data: pd.DataFrame) -> str:
    revisions = ", ".join(f"{name} {number}" for name, number in c.study["revisions"].items())
    parts = [f"Revisions: {revisions}; results of other revisions are refused."]
    mixed = [
        f"{stage} mixes {len(set(part[column].dropna()))} {name}"
        for stage, part in data.groupby("stage", sort=False)
        for column, name in NAMED.items()
        if len(set(part[column].dropna())) > 1
    ]
    parts += [f"Not all alike: {'; '.join(mixed)}."] if mixed else []
    changed = int((data["dirty"].astype(str) == "True").sum())
    if changed:
        parts.append(f"{changed} of {len(data)} results were made with uncommitted changes.")
    unknown = int(data["commit"].isna().sum())
    if unknown:
        parts.append(f"{unknown} of {len(data)} were made outside of a checkout: no commit.")
    if strays := c.study.get("strays"):
        parts.append(f"Not part of this study, and left out: {', '.join(strays)}.")
    return " ".join([*parts, "One row a result, with times and commands, in the CSV."])


def _whose(part: pd.DataFrame) -> str:
    """Sizes, cells and seeds of some results: `perloop-rms at 44m (42, 101)`."""
    if part["cell"].isna().all():
        return ", ".join(part["size"])
    found = [
        f"{cell} at {size} ({', '.join(str(int(s)) for s in rows['seed'])})"
        for (size, cell), rows in part.groupby(["size", "cell"], sort=False)
    ]
    return ", ".join(found[:4]) + (f" and {len(found) - 4} more" if len(found) > 4 else "")


def _commit(row: pd.Series) -> str:
    if pd.isna(row["commit"]):
        return ABSENT
    return str(row["commit"])[:8] + (" (changed)" if str(row["dirty"]) == "True" else "")


def _versions(row: pd.Series) -> str:
    names = {"python": "Python", "torch": "torch", "numpy": "numpy"}
    known = [f"{name} {row[key]}" for key, name in names.items() if not pd.isna(row[key])]
    return ", ".join(known) or ABSENT


def _text(value: object) -> str:
    if pd.isna(value):
        return ABSENT
    return str(int(value)) if isinstance(value, float) else str(value)
