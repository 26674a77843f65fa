"""What the loss says of a state's scale: gradients with respect to H_k, split along H_k."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from blindspot.declared.columns import Context, File, gaps, integer, not_above, real, word
from blindspot.declared.common import EXIT, TOKENS, VALIDATION
from blindspot.declared.measurement import Measurement, Sample

if TYPE_CHECKING:
    import pandas as pd


def _gradients(frame: "pd.DataFrame", at: Context) -> Iterator[str]:
    chosen = frame[(frame["source"] == "ce") & (frame["path"] == "immediate")]
    for dtype in ("float64", "float32"):
        yield from gaps(chosen[chosen["dtype"] == dtype], ["dtype"], 1, at.loops)
    # Where no token has a gradient there is no angle; then the count says so.
    some = frame[frame["tokens"] > 0]
    cosines = ["cos_abs_mean", "cos_abs_p50", "cos_abs_p90"]
    yield from not_above(some, [*cosines, "cos2_mean", "grad_norm_mean"], 0)
    if (some[cosines] > 1 + 1e-6).any(axis=None):
        yield "has a cosine above 1"
    if (frame["width"] != at.spec.model.d_model).any():
        yield f"is of another width than {at.spec.model.d_model}"


MEASUREMENT = Measurement(
    "gradients",
    "Gradients along the state",
    (
        File(
            "gradients",
            "a dtype x source x path x k",
            (
                VALIDATION,
                EXIT,
                word("source", "`ce`: the cross-entropies; `penalty`: the norm penalty"),
                word(
                    "path",
                    "`immediate`: of depth k itself, its own readout and loss (the visibility "
                    "lemma's case); `recurrence`: of all trained losses at depths > k, through "
                    "the loops after k",
                ),
                integer("trained", "whether training followed this gradient (1) or not (0)"),
                word(
                    "dtype",
                    "float64; float32 beside it shows the floor of rounding",
                    *("float64", "float32"),
                ),
                integer(
                    "tokens",
                    "tokens whose gradient is not zero; |cos| has no meaning for others",
                    "tokens",
                ),
                integer("width", "d"),
                real("cos_abs_mean", "|cos| of the gradient and H_k: mean over tokens"),
                real("cos_abs_p50", "median"),
                real("cos_abs_p90", "90th percentile"),
                real("cos_mean", "signed mean: positive where descent shrinks the norm"),
                real("cos2_mean", "mean of cos^2"),
                real("cos2d_mean", "mean of cos^2 x d; 1 for a random direction"),
                real(
                    "radial_mean",
                    "<g, H_k> / |H_k|: change of the objective a unit of norm",
                    "nats",
                ),
                real("grad_norm_mean", "|g|", "nats"),
                real("chance_cos_abs", "E|cos| of a random direction"),
                real("chance_cos2", "E cos^2 of a random direction, 1 / d"),
            ),
            ("split", "k", "source", "path", "dtype"),
            check=_gradients,
            note="g is the gradient of the training objective with respect to H_k, times the "
            "number of tokens, so that a token's own loss has weight 1 / (supervised depths); at "
            "depths without a loss of their own (terminal cells) weight 1. The objective is that "
            "of a step with all K loops, without a z-loss.",
        ),
        File(
            "gradient_eps",
            "a loop x bucket of norms",
            (
                VALIDATION,
                EXIT,
                real("eps", "eps of the readout's norm"),
                real("norm_low", "the bucket: norm_low <= |H_k|"),
                real("norm_high", "|H_k| < norm_high; half decades"),
                TOKENS,
                real("cos_abs_mean", "|cos| of the immediate ce's gradient and H_k", low=0),
                real("cos_abs_mean_eps0", "the same with the readout's eps set to 0", low=0),
                real("radial_mean", "<g, H_k> / |H_k|", "nats"),
                real("radial_mean_eps0", "the same with eps 0", "nats"),
            ),
            ("split", "k", "norm_low"),
            note="What RMSNorm's eps adds to the immediate ce's radial part, in float64; depths "
            "whose readout normalizes only.",
            partial=True,
        ),
    ),
    revision=4,
    settings=("probe_tokens",),
    sample=Sample("Gradients (float64)", "probe_tokens"),
)
