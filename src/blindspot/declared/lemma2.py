"""The activity lemma (Lemma 2 of the paper) in trained weights: scale as an intervention, and the
angle of each loop against what the limit b(u) says."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from blindspot.declared.columns import Context, File, integer, real
from blindspot.declared.common import EXIT, TOKENS, VALIDATION
from blindspot.declared.measurement import Measurement, Sample

if TYPE_CHECKING:
    import pandas as pd

#: Factors on H_1.
SCALES = tuple(2.0**i for i in range(-10, 11, 2))
#: A scale counts for a token's slope where s is at least so many times |b(u)|.
FAR = 10
#: A token has a slope where at least so many scales count.
LEAST = 3

EPS = real("eps", "of every norm: the model's own, and 0", low=0)
LOOP = integer("k", "the loop, from H_{k-1} to H_k")


def _scales(frame: "pd.DataFrame", at: Context) -> Iterator[str]:
    found = sorted(set(frame["scale"]))
    if found != list(SCALES):
        yield f"has scales {found}, expected {list(SCALES)}"


MEASUREMENT = Measurement(
    "lemma2",
    "The activity lemma in trained weights",
    (
        File(
            "lemma2",
            "an eps x scale x exit",
            (
                VALIDATION,
                EPS,
                real("scale", "the factor on every token's H_1, 2^-10 to 2^10", low=0),
                EXIT,
                TOKENS,
                real("ce", "cross-entropy at the exit", "nats/token", low=0),
                real("norm_mean", "|H_k|", low=0),
                real("angle_mean", "angle that loop k turns the state by; empty at k = 1", "rad"),
                real("angle_p50", "median over tokens", "rad"),
                real(
                    "far",
                    f"share of tokens with s at least {FAR} |b(u)|; s, u of what loop 2 is given",
                    low=0,
                ),
            ),
            ("split", "eps", "scale", "k"),
            depths=1,
            check=_scales,
            note="An intervention on trained weights in float64: H_1 is scaled and the remaining "
            "loops are run. Under an inter-loop norm they are given the same state whatever the "
            "scale.",
        ),
        File(
            "lemma2_slope",
            "an eps x loop",
            (
                VALIDATION,
                EPS,
                LOOP,
                integer("tokens", f"tokens for which at least {LEAST} scales count", "tokens"),
                real("scales_mean", "scales that count, mean over these tokens"),
                real(
                    "slope_mean",
                    "slope of log angle on log scale, by least squares for each token over the "
                    f"scales at which s is at least {FAR} |b(u)| (of what loop 2 is given): "
                    "the lemma says -1. Empty without such tokens, and at k = 1",
                ),
                real("slope_p50", "median over tokens"),
                real("slope_std", "standard deviation over tokens"),
            ),
            ("split", "eps", "k"),
            depths=1,
        ),
        File(
            "lemma2_update",
            "an eps x loop",
            (
                VALIDATION,
                EPS,
                LOOP,
                TOKENS,
                real("norm_mean", "s, the norm of what loop k is given: mean over tokens", low=0),
                real("b_mean", "|b(u)|, the limit as in update_fixed.csv, at u of loop k", low=0),
                real("b_perp_mean", "|b perp|, its part across u: mean", low=0),
                real("b_perp_p50", "median", low=0),
                real("b_parallel_mean", "its part along u: mean"),
                real("scaled_tan_p50", "s tan(angle) of loop k: median"),
                real("limit_p50", "|b perp| / (1 + b par / s), which the lemma says: median"),
                real("ratio_p50", "median of s tan(angle) over what the lemma says"),
                real("residual_p50", "median of |that ratio - 1|"),
                real("residual_p90", "90th percentile"),
            ),
            ("split", "eps", "k"),
            depths=1,
            note="At the model's own states and scale, in float64. b(u) is the sum of the branches "
            "at u itself with eps 0, not the update: a residual is what eps, and what the "
            "branches of one loop do to each other at a finite s, leave. Where a token turns by "
            "more than a right angle both sides are negative.",
        ),
    ),
    revision=1,
    settings=("probe_tokens",),
    sample=Sample("The activity lemma (float64)", "probe_tokens"),
)
