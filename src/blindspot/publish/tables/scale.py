"""Tables of the state's norm: by loop, over tokens, and under two initializations."""

import numpy as np
import pandas as pd

from blindspot.collect.collected import Collected
from blindspot.publish.tables.table import (
    KEYS,
    Table,
    every_cell,
    lead,
    means,
    spreads,
    weak,
    weak_note,
)
from blindspot.publish.typeset import ABSENT, number


def norms(c: Collected) -> Table:
    """Mean norm of H_0..H_K, and where it grows."""
    n = c.frame("norms")
    keys = ["size", "cell", "split", "k"]
    data = means(n, keys, [], ["l2_mean", "l2_p50", "l2_p99", "l2_max", "rms_mean"])
    before = data.groupby(keys[:3], sort=False)["l2_mean"].shift()
    data = data.assign(growth=data["l2_mean"] - before)
    rows = []
    for (size, cell, split), part in data.groupby(keys[:3], sort=False):
        by_k, loops = part.set_index("k")["l2_mean"], c.loops_of[cell]
        first, rest = by_k[1] - by_k[0], by_k[loops] - by_k[1]
        share = first / (first + rest) if min(first, rest) >= 0 and first + rest > 0 else np.nan
        rows.append(
            {"Size": size, "Cell": cell, "Split": split}
            | {f"H_{k}": number(by_k[k]) if k <= loops else ABSENT for k in range(c.deepest + 1)}
            | {"Loop 1": number(first), f"Loops 2–{c.depth}": number(rest)}
            | {"Share of loop 1": ABSENT if np.isnan(share) else f"{100 * share:.0f}%"}
        )
    return Table(data, pd.DataFrame(rows), "Intervals are in the CSV.")


#: Column of norms.csv to its heading.
TAIL = {
    "l2_mean": "Mean",
    "l2_std": "SD",
    "l2_p50": "Median",
    "l2_p90": "p90",
    "l2_p99": "p99",
    "l2_p999": "p99.9",
    "l2_max": "Max",
    "log_kurtosis": "Kurtosis",
    "hill": "Hill",
    "mass_top1": "Top 1%",
    "half_mass": "Half",
}
#: Of these, what is not averaged as logarithms: shares, and what may be negative.
LINEAR = ["log_kurtosis", "mass_top1", "half_mass"]


def token_norms(c: Collected) -> Table:
    """How the norm is spread over tokens, after each loop; after the last in the shown table."""
    n = c.frame("norms")
    n = n[n["split"] == "validation"]
    data = means(n, [*KEYS, "k"], LINEAR, [v for v in TAIL if v not in LINEAR])
    last = every_cell(c, c.last(data))
    shares = ("mass_top1", "half_mass")
    shown = pd.DataFrame(
        lead(c, last)
        | {
            heading: [
                ABSENT if np.isnan(x) else f"{100 * x:.1f}%" if column in shares else number(x)
                for x in last[column]
            ]
            for column, heading in TAIL.items()
        }
    )
    return Table(data, shown, "Intervals and the other loops are in the CSV.")


def initialization(c: Collected) -> Table:
    """Cells that differ in their initialization alone, side by side."""
    pairs = c.initializations
    columns = ["size", "cell", "init", "rate", "seeds"]
    if not pairs:
        empty = pd.DataFrame(columns=columns)
        shown = pd.DataFrame({"Size": [ABSENT], "Cell": [ABSENT]})
        return Table(empty, shown, "This study has one initialization.")
    index = [*KEYS, "seed"]
    e, n = c.exits(), c.frame("norms").query("split == 'validation'")
    ce, norm = (f.pivot(index=index, columns="k", values=v) for f, v in ((e, "ce"), (n, "l2_mean")))
    last, end = c.last(e).set_index(index)["ce"], c.last(n).set_index(index)["l2_mean"]
    frame = pd.DataFrame(
        {
            "ppl": np.exp(last),
            "ce_gain": ce[1] - last,
            "norm_0": norm[0],
            "norm_1": norm[1],
            "norm": end,
        }
    ).reset_index()
    mean = means(frame, KEYS, ["ce_gain"], ["ppl", "norm_0", "norm_1", "norm"]).set_index(KEYS)
    rows = []
    for size in c.sizes:
        for base, options in pairs.items():
            for label, cell in options.items():
                if (size, cell) in mean.index:
                    at = mean.loc[(size, cell)]
                    lead = {"size": size, "cell": base, "init": label, "rate": c.rate(cell)}
                    rows.append(lead | dict(at))
    data = pd.DataFrame(rows)
    data = data[[*columns, *(name for name in data if name not in columns)]]
    data["seeds"] = data["seeds"].astype(int)
    shown = pd.DataFrame(
        {
            "Size": data["size"],
            "Cell": data["cell"],
            "Initialization": data["init"],
            **({"Rate": [f"{x:g}" for x in data["rate"]]} if c.rates() else {}),
            "Seeds": data["seeds"].map(str),
            "PPL": weak(c, spreads(data, "ppl"), np.log(data["ppl"]), ["validation"] * len(data)),
            "CE gain": spreads(data, "ce_gain", 3),
            "Norm H_0": spreads(data, "norm_0"),
            "Norm H_1": spreads(data, "norm_1"),
            f"Norm H_{c.depth}": spreads(data, "norm"),
        }
    )
    note = " ".join(part for part in (c.rates(), weak_note(shown["PPL"])) if part)
    return Table(data, shown, note)
