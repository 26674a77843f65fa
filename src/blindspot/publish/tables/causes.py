"""Tables of causes and laws: doses of a scale, factors of the norm, remedies, exits beyond K."""

from math import log

import pandas as pd

from blindspot.collect.collected import Collected
from blindspot.collect.stats import over_seeds
from blindspot.publish import causes
from blindspot.publish.sweeps import shown_value
from blindspot.publish.swept import INDEX, Runs, interval, predictions, slope
from blindspot.publish.tables.table import Table, counted, means, spreads
from blindspot.publish.typeset import ABSENT
from blindspot.publish.typeset import interval as shown_interval

NONE = "This study asks no such question."


def dose(c: Collected) -> Table:
    """One row a size and dose; the slopes of each swept cell on the scale that it reaches below."""
    frame = causes.doses(c).sort_values(["size", "of", "dose"], kind="stable")
    factors = ["reached", "angle", "b-perp"]
    data = means(frame, ["size", "of", "cell", "dose"], ["gain", "ce"], factors)
    shown = pd.DataFrame(
        {
            "Size": data["size"],
            "Cell": data["of"],
            "s*": [f"{x:g}" for x in data["dose"]],
            "Seeds": _counted(c, data),
            "RMS reached": spreads(data, "reached"),
            "Last angle (rad)": spreads(data, "angle", 4),
            "|b_perp|": spreads(data, "b-perp"),
            "CE_1 - CE_K": spreads(data, "gain", 4),
            "CE_K": spreads(data, "ce", 3),
        }
    )
    return Table(data.rename(columns=RENAMED), shown, _reached(frame) or NONE)


RENAMED = {f"b-perp{end}": f"b_perp{end}" for end in ("", "_low", "_high")}


def _counted(c: Collected, data: pd.DataFrame) -> list[str]:
    rows = zip(data["size"], data["cell"], data["seeds"], strict=True)
    return [counted(c, *row) for row in rows]


def _reached(frame: pd.DataFrame) -> str:
    """Slopes on the logarithm of the scale that was reached, one a seed, by swept cell."""
    said = []
    for (size, of), own in frame.groupby(["size", "of"], sort=False):
        parts = []
        for name, word, positive in (
            ("gain", "CE_1 - CE_K a doubling", False),
            ("angle", "log angle", True),
            ("b-perp", "log |b_perp|", True),
        ):
            found = []
            for _, seed in own.groupby("seed"):
                y = pd.Series(seed[name]).map(log) if positive else seed[name]
                x = seed["reached"].map(log) / (1.0 if positive else log(2.0))
                if len(seed) == own["cell"].nunique() and len(seed) > 1:
                    found.append(slope(x.to_numpy(), y.to_numpy()))
            if found:
                at = interval(found)
                parts.append(f"{word} {shown_interval(at.mean, at.low, at.high, 4)}")
        if parts:
            said.append(f"{of} at {size}: {', '.join(parts)}")
    return f"Slopes on the scale reached: {'; '.join(said)}." if said else ""


def laws(c: Collected) -> Table:
    """One row a size and point of a sweep, then one a left-out setting, with what was predicted."""
    points = causes.by_factor(c)
    keep = ["size", "sweep", "of", "cell", "value", "seeds", "norm", "norm_low", "norm_high"]
    data = points.reindex(columns=keep).astype({"value": object})
    data["predicted"] = float("nan")
    left = []
    for size in c.sizes:
        for part in causes.parts(c, "predicted"):
            frame = predictions(Runs(c), size, part)
            both = ["measured", "predicted"]
            for _, row in over_seeds(frame, ["cell"], both, log=both).iterrows():
                left.append(
                    {"size": size, "sweep": "left out", "of": part["cell"], "cell": row["cell"]}
                    | {"value": "", "seeds": row["seeds"], "norm": row["measured"]}
                    | {"norm_low": row["measured_low"], "norm_high": row["measured_high"]}
                    | {"predicted": row["predicted"]}
                )
    data = pd.concat([data, pd.DataFrame(left, columns=data.columns)], ignore_index=True)
    data["value"] = [str(x) for x in data["value"]]
    over = data["predicted"] / data["norm"]
    shown = pd.DataFrame(
        {
            "Size": data["size"],
            "Factor": data["sweep"],
            "Cell": [
                cell if sweep == "left out" else of
                for of, cell, sweep in zip(data["of"], data["cell"], data["sweep"], strict=True)
            ],
            "Value": [shown_value(x) for x in data["value"]],
            "Seeds": _counted(c, data),
            "Norm": spreads(data, "norm", 1),
            "Predicted": [ABSENT if pd.isna(x) else f"{x:.1f}" for x in data["predicted"]],
            "Predicted / measured": [ABSENT if pd.isna(x) else f"{x:.2f}" for x in over],
        }
    )
    return Table(data, shown, "" if len(data) else NONE)


def remedies(c: Collected) -> Table:
    """One row a size and cell, the lowest CE first."""
    data = causes.plane(c)
    keep = ["size", "cell", "seeds", "growth", "growth_low", "growth_high", "gain", "gain_ci"]
    data = data[[*keep, "ce", "ce_ci", "holds", "front"]]
    data = data.sort_values(["size", "ce"], kind="stable", ignore_index=True)
    shown = pd.DataFrame(
        {
            "Size": data["size"],
            "Cell": data["cell"],
            "Seeds": _counted(c, data),
            "Norm, K over 0": spreads(data, "growth"),
            "Norm held": ["yes" if x else "no" for x in data["holds"]],
            "CE_1 - CE_K": spreads(data, "gain", 4),
            "CE_K": spreads(data, "ce", 3),
            "Front": ["yes" if x else ABSENT for x in data["front"]],
        }
    )
    return Table(data, shown)


def horizon(c: Collected) -> Table:
    """One row a size, cell and exit beyond or at K."""
    e = c.exits()
    own = c.last(e)[[*INDEX, "ce"]].rename(columns={"ce": "at_k"})
    frame = e[e["k"] >= c.own(e)].merge(own, on=INDEX)
    frame = frame.assign(change=frame["ce"] - frame["at_k"], loops=c.own(frame))
    data = means(frame, ["size", "cell", "loops", "k"], ["ce", "change"])
    shown = pd.DataFrame(
        {
            "Size": data["size"],
            "Cell": data["cell"],
            "Trained K": data["loops"].map(str),
            "k": data["k"].map(str),
            "Seeds": _counted(c, data),
            "CE": spreads(data, "ce", 3),
            "CE less that at K": spreads(data, "change", 4),
        }
    )
    return Table(data, shown)
