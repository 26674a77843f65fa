"""What predictors that read no context score: the least that a perplexity must be held against."""

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING

from blindspot.declared.columns import Context, File, integer, real, unequal, word
from blindspot.declared.common import SPLITS
from blindspot.declared.measurement import Measurement

if TYPE_CHECKING:
    import pandas as pd


def _baselines(frame: "pd.DataFrame", at: Context) -> Iterator[str]:
    import numpy as np

    found = set(zip(frame["split"], frame["baseline"], strict=True))
    if found != set(product(("validation", "test"), ("uniform", "unigram"))):
        yield f"has splits and baselines {sorted(found)}"
    ce = frame["nll"] / frame["tokens"]
    with np.errstate(over="ignore"):
        yield from unequal(frame, {"ce": ce, "ppl": np.exp(ce)})


MEASUREMENT = Measurement(
    "baselines",
    "Baselines without context",
    (
        File(
            "baselines",
            "a split x baseline",
            (
                SPLITS,
                word(
                    "baseline",
                    "`uniform`: every id of the vocabulary of V is as likely, ln V; `unigram`: an "
                    "id is as likely as it is frequent in the training split, counts smoothed by "
                    "one, p(i) = (count_i + 1) / (N + V)",
                    *("uniform", "unigram"),
                ),
                integer("tokens", "targets: each token of the split once, as in exits", "tokens"),
                real("nll", "sum of negative log-likelihoods", "nats", low=0),
                real("ce", "nll / tokens", "nats/token", low=0),
                real("ppl", "exp(ce)", low=0),
            ),
            ("split", "baseline"),
            check=_baselines,
            note="The same for all runs on the same tokens.",
        ),
    ),
    revision=4,
)
