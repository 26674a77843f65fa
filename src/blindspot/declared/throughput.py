"""Throughput of a size: `throughput/<size>-<hash>.csv`. It needs no weights, so it is no
measurement of a run; `collect` gives each cell the rows of its architecture."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from blindspot.declared.columns import Context, File, integer, real, word
from blindspot.declared.common import DEVICE

if TYPE_CHECKING:
    import pandas as pd


def _throughput(frame: "pd.DataFrame", at: Context) -> Iterator[str]:
    q25, median, q75 = (frame[f"tokens_per_s{q}"] for q in ("_q25", "", "_q75"))
    if not ((q25 <= median) & (median <= q75)).all():
        yield "has a median outside its quartiles"


THROUGHPUT = File(
    "throughput",
    "an architecture x depth",
    (
        word("architecture", "readout and inter-loop norm; cells that differ in loss share one"),
        integer("k", "loops of the forward pass, with one head at the exit"),
        integer("batch", "sequences at a time"),
        integer("context", "tokens of a sequence", "tokens"),
        word("precision", "precision of training, which is timed"),
        *DEVICE,
        integer("repeats", "timings"),
        real("tokens_per_s", "median over the repeats", "tokens/s", low=0),
        real("tokens_per_s_q25", "first quartile", "tokens/s", low=0),
        real("tokens_per_s_q75", "third quartile", "tokens/s", low=0),
        real("flops_per_token", "of the forward pass, by formula", "FLOPs/token"),
    ),
    ("architecture", "k"),
    check=_throughput,
)
