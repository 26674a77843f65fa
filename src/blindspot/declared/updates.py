"""How a loop moves a state: the activity lemma, as an instrument and in trained models."""

from blindspot.declared.columns import FINITE, File, integer, real
from blindspot.declared.common import TOKENS, TRAINED_K, VALIDATION
from blindspot.declared.measurement import Measurement, Sample

MEASUREMENT = Measurement(
    "updates",
    "Updates along the loops",
    (
        File(
            "updates",
            "an update",
            (
                VALIDATION,
                integer("k", "the update from H_k to H_{k+1}; from trained_k on extrapolation"),
                TRAINED_K,
                TOKENS,
                real("norm_mean", "norm s_k of the state before: mean over tokens", low=0),
                real("norm_p50", "median", low=0),
                real("increment_mean", "s_{k+1} - s_k", low=FINITE),
                real("radial_mean", "radial increment <u_k, H_{k+1} - H_k>: mean", low=FINITE),
                real("radial_p50", "median", low=FINITE),
                real("radial_std", "standard deviation over tokens"),
                real("update_mean", "|H_{k+1} - H_k|", low=0),
                real("angular_step_mean", "|u_{k+1} - u_k|: mean", low=0),
                real("angular_step_p50", "median"),
                real("angle_mean", "angle between H_k and H_{k+1}", "rad", low=0),
                real("angular_step_norm_mean", "angular step x s_k: mean", low=0),
                real("angular_step_norm_p50", "median"),
                real("angular_step_norm_std", "standard deviation over tokens"),
                real(
                    "cos_successive_mean",
                    "cosine of this update and the one before; empty at k = 0",
                ),
                real(
                    "angle_from_first_mean",
                    "angle between H_1 and H_{k+1}; empty at k = 0",
                    "rad",
                ),
            ),
            ("split", "k"),
            depths=0,
            note="In float64, along k in the trained model, where norm and direction change "
            "together. In cells with an inter-loop norm the loop sees H_k / rms(H_k): the "
            "activity lemma does not speak of their updates.",
        ),
        File(
            "update_fixed",
            "a depth x norm",
            (
                VALIDATION,
                integer("k", "the depth whose directions u are taken, 1 or K"),
                real("norm", "the norm s that all tokens are given", low=0),
                TOKENS,
                real("radial_mean", "radial increment at s", low=FINITE),
                real("radial_limit_mean", "its limit a(u) = <u, b(u)>", low=FINITE),
                real("radial_rest_mean", "mean of |difference|; falls as 1 / norm", low=0),
                real("angular_step_norm_mean", "angular step x s"),
                real("angular_limit_mean", "its limit |b_perp(u)|"),
                real("angular_rest_mean", "mean of |difference|; falls as 1 / norm", low=0),
            ),
            ("split", "k", "norm"),
            note="At fixed directions and growing norm, in float64 with eps 0 and without an "
            "inter-loop norm: a check of the instrument, not a finding. b(u) is the sum of the "
            "branches at u itself.",
        ),
    ),
    revision=4,
    settings=("probe_tokens", "update_loops"),
    sample=Sample("Updates (float64)", "probe_tokens"),
)
