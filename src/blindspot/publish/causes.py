"""What tables and figures of causes and laws show: sweeps and cells, by the study's claims."""

from typing import Any

import pandas as pd

from blindspot.collect.collected import Collected
from blindspot.collect.stats import over_seeds
from blindspot.publish import sweeps
from blindspot.publish.studyclaims import claims
from blindspot.publish.swept import INDEX, Runs


def parts(c: Collected, quantity: str) -> list[dict[str, Any]]:
    """All parts of the study's claims of a quantity."""
    found = [part for claim in claims(c).values() for part in claim["parts"]]
    return [part for part in found if part["quantity"] == quantity]


def doses(c: Collected) -> pd.DataFrame:
    """By run of the sweeps that set a scale, and of those that steer it: size, of (the swept cell),
    cell, seed, `judged`, `dose` (s*), `reached` (the RMS that the last loop meets), and the values
    of `Runs.table`."""
    runs = Runs(c)
    judged = {p["sweep"] for p in parts(c, "slope") if p["of"] == "gain"}
    at = [
        {"of": p["of"], "cell": p["cell"], "judged": name in judged}
        | {"dose": float(next(iter(p["values"].values())))}
        for name in (c.study.get("sweeps", {}) if judged else ())
        for p in sweeps.points(c, name)
    ]
    norms = c.frame("norms").query("split == 'validation'")
    reached = c.last(norms, before=1).set_index(INDEX)["rms_mean"].rename("reached")
    frame = runs.table.join(reached).reset_index()
    columns = ["of", "cell", "judged", "dose"]
    frame = frame.merge(pd.DataFrame(at, columns=columns), on="cell")
    # norms.csv has states before they are reset.
    return frame.assign(
        reached=frame["reached"].where(~frame["judged"].astype(bool), frame["dose"])
    )


def by_factor(c: Collected) -> pd.DataFrame:
    """|H_K| along every sweep of one key, mean over seeds: size, sweep, key, of, cell, value, norm
    with its interval, and whether a law was `fitted` over it."""
    runs = Runs(c)
    fitted = {(p["cell"], sweep) for p in parts(c, "predicted") for sweep in p["sweeps"]}
    mean = over_seeds(runs.table.reset_index(), ["size", "cell"], ["norm"], log=["norm"])
    rows = []
    for name in c.study.get("sweeps", {}):
        for p in sweeps.points(c, name):
            if len(p["values"]) == 1:
                ((key, value),) = p["values"].items()
                row = {"sweep": name, "key": key, "of": p["of"], "cell": p["cell"]}
                rows.append(row | {"value": value, "fitted": (p["of"], name) in fitted})
    columns = ["sweep", "key", "of", "cell", "value", "fitted"]
    at = pd.DataFrame(rows, columns=columns)
    merged = at.assign(order=range(len(at))).merge(mean, on="cell")
    return merged.sort_values(["order", "size"], kind="stable").drop(columns="order")


def plane(c: Collected) -> pd.DataFrame:
    """One row a size and cell: `growth` (|H_K| / |H_0|), `gain` (CE_1 - CE_K) and `ce` (CE_K) with
    their intervals over seeds, `front` (no other cell has both more gain and a lower CE_K, in the
    means), `holds` (the interval of growth ends at most at 2)."""
    frame = Runs(c).table.reset_index()
    mean = over_seeds(frame, ["size", "cell"], ["gain", "ce", "growth"], log=["growth"])
    mean["holds"] = mean["growth_high"] <= 2
    front = []
    for _, row in mean.iterrows():
        others = mean[(mean["size"] == row["size"]) & (mean["cell"] != row["cell"])]
        beaten = (others["gain"] > row["gain"]) & (others["ce"] < row["ce"])
        front.append(not beaten.any())
    return mean.assign(front=front)


def exits(c: Collected) -> pd.DataFrame:
    """CE by exit, mean over seeds: size, cell, k, ce with its spread, `group` (the cell that the
    sweep departs from), `loops` (the trained K)."""
    mean = over_seeds(c.exits(), ["size", "cell", "k"], ["ce"])
    mean["loops"] = c.own(mean)
    return mean.assign(group=[group(c, cell) for cell in mean["cell"]])


def group(c: Collected, cell: str) -> str:
    """The swept cell that a cell belongs to: of its sweep, or by its name; itself if neither."""
    swept = [p for found in c.study.get("sweeps", {}).values() for p in found]
    own = [p["of"] for p in swept if p["cell"] == cell]
    named = [p["of"] for p in swept if cell.startswith(f"{p['of']}-")]
    return next(iter(own), max(named, key=len, default=cell))
