"""The test split in blocks of windows: what a bootstrap over evaluated tokens draws from."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from blindspot.declared.columns import Context, File, integer, real, word
from blindspot.declared.common import EXIT
from blindspot.declared.measurement import Measurement

if TYPE_CHECKING:
    import pandas as pd

#: Windows of a block; the last one has the rest as well.
BLOCK = 8


def _windows(frame: "pd.DataFrame", at: Context) -> Iterator[str]:
    for column in ("windows", "tokens"):
        if (frame.groupby("block")[column].nunique() != 1).any():
            yield f"has {column} that differ between the exits of a block"
    for k, group in frame.groupby("k"):
        if sorted(group["block"]) != list(range(len(group))):
            yield f"has blocks {sorted(group['block'])} for exit {k}, expected all from 0"


MEASUREMENT = Measurement(
    "windows",
    "Cross-entropy by block of windows",
    (
        File(
            "windows",
            "a block x exit",
            (
                word("split", "part of the corpus", "test"),
                integer("block", f"{BLOCK} windows that follow each other, numbered from 0", low=0),
                EXIT,
                integer("windows", f"windows of the block: {BLOCK}, the last has up to 7 more"),
                integer("tokens", "targets that count in it", "tokens", low=1),
                real("nll", "sum of their negative log-likelihoods, 6 digits", "nats", low=0),
            ),
            ("split", "block", "k"),
            depths=1,
            check=_windows,
            note="Windows of protocol `full` in the order of the text, each target once: sums over "
            "all blocks are those of `exits.csv`, test. What is known of a difference of two cells "
            "on this text comes from drawing blocks, the same ones for both.",
        ),
    ),
    revision=1,
    settings=("min_context",),
)
