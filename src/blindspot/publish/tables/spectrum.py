"""Table of blind directions: what a state hides, how active that is, and whether the least visible
directions are the most active ones."""

import pandas as pd

from blindspot.collect.collected import Collected
from blindspot.publish.spectra import RATIOS, relative
from blindspot.publish.tables.table import KEYS, Table, every_cell, lead, means, spreads
from blindspot.publish.typeset import ABSENT, number

SHARES = ["in_least_visible", "in_most_active"]
OF_STATES = ["hidden_mean", "hidden_radial", "overlap"]


def spectrum(c: Collected) -> Table:
    """Each direction at k = 1 and K in `data`; those that are asked for most, at K, in the shown
    table."""
    keys = [*KEYS, "k"]
    hidden = c.frame("spectrum_hidden")
    states = means(hidden, keys, OF_STATES)
    fixed = ["width", "rank", "overlap_chance"]  # a function of the width
    states = states.merge(hidden.groupby(keys, sort=False)[fixed].first().reset_index(), on=keys)
    log = ["visibility", "activity", *RATIOS]
    data = means(relative(c), [*keys, "direction"], SHARES, log)
    data = data.merge(states.drop(columns="seeds"), on=keys, validate="many_to_one")

    last = c.last(data)

    def of(direction: str) -> pd.DataFrame:
        return every_cell(c, last[last["direction"] == direction])

    radial, ones, least = of("radial"), of("ones"), of("least-visible")
    seen, active = RATIOS
    shown = lead(c, radial) | {
        "Hidden": [
            ABSENT if pd.isna(n) else f"{number(n)} of {d:.0f}"
            for n, d in zip(radial["hidden_mean"], radial["width"], strict=True)
        ],
        "Radial: seen": spreads(radial, seen),
        "Radial: active": spreads(radial, active),
        "Ones: seen": spreads(ones, seen),
        "Least visible: seen": spreads(least, seen),
        "Least visible: active": spreads(least, active),
        "Overlap": spreads(radial, "overlap"),
        "Chance": [number(x) for x in radial["overlap_chance"]],
    }
    note = f"After loop {c.depth}; k = 1 and the other directions are in the CSV."
    return Table(data, pd.DataFrame(shown), note)
