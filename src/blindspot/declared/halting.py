"""Halting: a token stops looping as soon as its readout is sure enough."""

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING

from blindspot.declared.columns import Column, Context, File, integer, real, unequal, word
from blindspot.declared.common import DEVICE, TOKENS, TRAINED_K
from blindspot.declared.measurement import Measurement, Sample

if TYPE_CHECKING:
    import pandas as pd

SCORES = ("margin", "entropy")
VARIANTS = ("oracle", "realised")
SCORE = word(
    "score",
    "`margin`: probability of the best token less that of the second, stops at `threshold` or "
    "more; `entropy`: of the predicted distribution in nats, stops at `threshold` or less",
    *SCORES,
)
THRESHOLD = real("threshold", "inf or -inf where no or every token stops after loop 1")
TEST = word("split", "the split that is scored", "test")


def mean_loops(meaning: str, name: str = "mean_loops") -> Column:
    """A column of mean exit depths."""
    return real(name, meaning, "loops", low=1)


def _within(frame: "pd.DataFrame", at: Context) -> Iterator[str]:
    if (frame["mean_loops"] > at.loops + 1e-6).any():
        yield f"has mean_loops above the {at.loops} loops of training"


def _halting(frame: "pd.DataFrame", at: Context) -> Iterator[str]:
    import numpy as np

    if (frame["calibrated_on"] == frame["scored_on"]).any():
        yield "scores halting on the split that it was calibrated on"
    found = set(zip(frame["score"], frame["variant"], strict=True))
    if found != set(product(SCORES, VARIANTS)):
        yield f"has scores and variants {sorted(found)}"
    yield from _within(frame, at)
    relative = np.exp((frame["ce"] - frame["ce_full"]).clip(upper=709))
    yield from unequal(frame, {"relative_ppl": relative})


def _timing(frame: "pd.DataFrame", at: Context) -> Iterator[str]:
    yield from _within(frame, at)
    yield from unequal(frame, {"speedup": frame["tokens_per_s"] / frame["tokens_per_s_full"]})


MEASUREMENT = Measurement(
    "halting",
    "Calibrated halting",
    (
        File(
            "halting",
            "a score x variant",
            (
                SCORE,
                word(
                    "variant",
                    "`oracle`: states of all depths are those of a plain pass, a token is read "
                    "where its criterion first holds; `realised`: its state is frozen where it "
                    "stops, and is not computed on",
                    *VARIANTS,
                ),
                TRAINED_K,
                real("target", "perplexity relative to depth K's that is calibrated for"),
                THRESHOLD,
                word("calibrated_on", "split of the calibration"),
                integer("calibration_tokens", "its tokens", "tokens"),
                real("calibration_relative_ppl", "perplexity there, relative to depth K's"),
                real("calibration_mean_loops", "mean exit depth there", "loops"),
                word("scored_on", "split that the rest is of"),
                integer("tokens", "its tokens", "tokens"),
                real("ce_full", "cross-entropy at depth K of the plain pass", "nats/token", low=0),
                real("ce", "with halting", "nats/token", low=0),
                real("ppl", "exp(ce)"),
                real("relative_ppl", "exp(ce - ce_full)"),
                mean_loops("mean exit depth over tokens, 1 to trained_k"),
            ),
            ("score", "variant"),
            check=_halting,
        ),
        File(
            "halting_curve",
            "a score x threshold",
            (
                TEST,
                SCORE,
                THRESHOLD,
                TOKENS,
                real("ce", "cross-entropy with halting", "nats/token", low=0),
                real("relative_ppl", "perplexity relative to depth K's", low=0),
                mean_loops("mean exit depth over tokens"),
            ),
            ("split", "score", "threshold"),
            check=_within,
            note="The oracle over a grid of thresholds: percentiles of the validation split's "
            "scores.",
        ),
        File(
            "halting_timing",
            "a score",
            (
                TEST,
                SCORE,
                THRESHOLD,
                *DEVICE,
                integer("batch", "sequences at a time"),
                integer("context", "tokens of a sequence", "tokens"),
                TOKENS,
                integer("repeats", "timings, of which the median counts"),
                mean_loops("mean exit depth over tokens"),
                real("tokens_per_s", "of the realised variant", "tokens/s", low=0),
                real(
                    "tokens_per_s_full",
                    "of the plain pass to depth K with one head",
                    "tokens/s",
                    low=0,
                ),
                real("speedup", "the first over the second"),
            ),
            ("split", "score"),
            check=_timing,
            note="float32. The only file of a measurement that is not a function of the weights.",
        ),
    ),
    revision=4,
    settings=("intervention_tokens", "halting_target"),
    sample=Sample("Halting", "intervention_tokens", "test"),
)
