"""Cross-entropy at every exit: K depths and some beyond, all read from one pass over a window."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, get_args

from blindspot.declared.columns import Context, File, count, integer, real, unequal, word
from blindspot.declared.common import SPLITS, TRAINED_K
from blindspot.declared.measurement import Measurement

if TYPE_CHECKING:
    import pandas as pd

#: How the tokens of a split are scored; docs/perplexity.md defines each.
Protocol = Literal["full", "paper", "release-figure"]
PROTOCOLS: tuple[str, ...] = get_args(Protocol)


def _exits(frame: "pd.DataFrame", at: Context) -> Iterator[str]:
    import numpy as np

    if "full" not in set(frame["protocol"]):
        yield "has no rows of protocol full"
    counts = {name: frame[name].astype("float64") for name in ("tokens", "words", "bytes")}
    if any((values < 1).any() for values in counts.values()):
        yield "scores no tokens"
    if frame["nll"].isna().any() or (frame["nll"] < 0).any():
        yield "has an nll that is not a number of nats"
    with np.errstate(over="ignore"):
        # One sum of nats; every other number is that sum over its own count (E-03).
        derived = {
            "ce": frame["nll"] / frame["tokens"],
            "ppl": np.exp(frame["nll"] / frame["tokens"]),
            "word_ppl": np.exp(frame["nll"] / counts["words"]),
            "bits_per_byte": frame["nll"] / counts["bytes"] / math.log(2),
        }
    yield from unequal(frame, derived, absolute=1e-8)


MEASUREMENT = Measurement(
    "exits",
    "Cross-entropy at every exit",
    (
        File(
            "exits",
            "a split x protocol x depth",
            (
                SPLITS,
                word(
                    "protocol",
                    "how the tokens of the split are scored (docs/perplexity.md)",
                    *PROTOCOLS,
                    every=False,
                ),
                integer(
                    "k",
                    "the exit. A final-only-rms readout is raw for k < trained_k and normalized "
                    "from there on",
                ),
                integer("tokens", "targets that were counted, each as often as it was", "tokens"),
                count(
                    "words",
                    "words of the original text that begin in those targets. Where the literature "
                    "counts line ends as words (WikiText), the split's words are scaled to its "
                    "count. Empty: not known",
                    "words",
                ),
                count("bytes", "UTF-8 length of the text of those targets", "bytes"),
                real("nll", "sum of negative log-likelihoods, in float64", "nats"),
                real("ce", "nll / tokens", "nats/token"),
                real("ppl", "exp(ce); `inf` where that overflows"),
                real("word_ppl", "exp(nll / words)"),
                real("bits_per_byte", "nll / ln 2 / bytes", "bits/byte"),
                TRAINED_K,
                real("unk_rate", "share of the counted targets that are UNK"),
                integer(
                    "comparable",
                    "1 where the tokenizer loses nothing; 0 where word_ppl and bits_per_byte are "
                    "of a text that was made easier, so that no other tokenizer's may stand beside",
                ),
            ),
            ("split", "protocol", "k"),
            depths=1,
            check=_exits,
        ),
    ),
    revision=4,
    settings=("min_context", "depths_beyond"),
)
