"""Measured speed of each cell and depth, without differences that are noise.

Architectures of equal FLOPs at a depth do the same products; on a busy machine their timings
still differ by a tenth or two, and a frontier drawn from them would order cells by chance. Where
the quartiles of all of them overlap they share one speed.
"""

import pandas as pd

from blindspot.collect.collected import Collected

QUARTILES = ["tokens_per_s_q25", "tokens_per_s", "tokens_per_s_q75"]


def speeds(collected: Collected) -> pd.DataFrame:
    """Rows of throughput.csv: size, cell, architecture, k, tokens_per_s and its quartiles,
    flops_per_token, and `pooled`: how many architectures share the speed of the row."""
    return pool(collected.frame("throughput"))


def pool(timings: pd.DataFrame) -> pd.DataFrame:
    """`timings` with one speed for the architectures that equal FLOPs and quartiles make equal.

    All were timed equally often, so the median of all timings together is close to the median of
    their medians; the quartiles likewise.
    """
    keys = ["size", "k", "flops_per_token"]
    own = timings.drop_duplicates(["size", "architecture", "k"])
    groups = own.groupby(keys, sort=False)
    alike = groups["tokens_per_s_q25"].max() <= groups["tokens_per_s_q75"].min()
    shared = groups[QUARTILES].median()
    number = groups.size().where(alike, 1).rename("pooled")
    at = pd.MultiIndex.from_frame(timings[keys])
    result = timings.assign(pooled=number.reindex(at).to_numpy())
    same = alike.reindex(at).to_numpy(dtype=bool)
    result.loc[same, QUARTILES] = shared.reindex(at).to_numpy()[same]
    return result
