"""The files of the diagnostics (tails, gradients, updates, clamps, halting), as `sources.py` has
those of training, exits and norms: columns, keys, and what their numbers must fulfil.

What a column means stands in the docstring of the module in `measure/` that writes it.
"""

import numpy as np
import pandas as pd

from blindspot.collect.collected import refuse
from blindspot.collect.sources import FLOAT, INT, TEXT, Context, Source, depths, finite, floats


def _measured_on(frame: pd.DataFrame, at: Context) -> None:
    """All but halting read the validation split alone."""
    if set(frame["split"]) - {"validation"}:
        raise refuse(at.path, f"has splits {sorted(set(frame['split']))}, expected validation")


def _trained(frame: pd.DataFrame, at: Context) -> None:
    if (frame["trained_k"] != at.loops).any():
        raise refuse(at.path, f"says trained_k {frame['trained_k'].max()}, the run has {at.loops}")


def _equal(frame: pd.DataFrame, at: Context, column: str, expected: pd.Series) -> None:
    """A column that follows from others does follow from them, to the digits that are written."""
    wrong = ~np.isclose(frame[column], expected, rtol=1e-5, atol=1e-6, equal_nan=True)
    if wrong.any():
        row = int(wrong.argmax())
        raise refuse(
            at.path,
            f"has {column} {frame[column].iloc[row]} in row {row + 2}, where its other columns "
            f"give {expected.iloc[row]:.6g}",
        )


def _check_hist(frame: pd.DataFrame, at: Context) -> None:
    _measured_on(frame, at)
    depths(frame.drop_duplicates(["split", "k"]), at, ["split"], 0)
    finite(frame, at.path, ["low", "high", "count"], above=0)
    for k, group in frame.groupby("k"):
        if group["count"].sum() != group["tokens"].iloc[0] or group["tokens"].nunique() != 1:
            raise refuse(
                at.path,
                f"counts {group['count'].sum()} tokens at k = {k}, of {group['tokens'].iloc[0]}",
            )


def _check_groups(frame: pd.DataFrame, at: Context) -> None:
    _measured_on(frame, at)
    finite(frame, at.path, ["l2_mean", "l2_p50", "l2_p99"], above=0)
    totals = frame.groupby(["group", "k"])["tokens"].sum()
    if totals.nunique() != 1:
        raise refuse(at.path, f"has groups of different totals: {sorted(set(totals))} tokens")


def _check_growth(frame: pd.DataFrame, at: Context) -> None:
    _measured_on(frame, at)
    _trained(frame, at)
    finite(frame, at.path, ["l2_0", "l2_1", "l2_k"], above=0)
    # Of two numbers of nine digits the difference has fewer.
    slack = frame["l2_k"].max() * 1e-7
    for column, expected in (
        ("growth_1", frame["l2_1"] - frame["l2_0"]),
        ("growth_rest", frame["l2_k"] - frame["l2_1"]),
    ):
        if not np.allclose(frame[column], expected, rtol=1e-5, atol=slack):
            raise refuse(at.path, f"has {column} {frame[column].iloc[0]}, not a difference of l2_*")


def _check_gradients(frame: pd.DataFrame, at: Context) -> None:
    _measured_on(frame, at)
    chosen = frame[(frame["source"] == "ce") & (frame["path"] == "immediate")]
    for dtype in ("float64", "float32"):
        depths(chosen[chosen["dtype"] == dtype], at, ["dtype"], 1)
    if set(frame["dtype"]) != {"float64", "float32"}:
        raise refuse(at.path, f"has dtypes {sorted(set(frame['dtype']))}")
    # Where no token has a gradient there is no angle; then the count says so.
    some = frame[frame["tokens"] > 0]
    cosines = ["cos_abs_mean", "cos_abs_p50", "cos_abs_p90"]
    finite(some, at.path, [*cosines, "cos2_mean", "grad_norm_mean"], above=0)
    if (some[cosines] > 1 + 1e-6).any(axis=None):
        raise refuse(at.path, "has a cosine above 1")
    if (frame["width"] != at.run.spec.model.d_model).any():
        raise refuse(at.path, f"is of another width than {at.run.spec.model.d_model}")


def _check_eps(frame: pd.DataFrame, at: Context) -> None:
    _measured_on(frame, at)
    finite(frame, at.path, ["cos_abs_mean", "cos_abs_mean_eps0"], above=0)


def _check_updates(frame: pd.DataFrame, at: Context) -> None:
    _measured_on(frame, at)
    _trained(frame, at)
    depths(frame, at, ["split"], 0)
    numbers = ["angular_step_mean", "angle_mean", "angular_step_norm_mean", "update_mean"]
    finite(frame, at.path, ["norm_mean", "norm_p50", *numbers], above=0)
    finite(frame, at.path, ["increment_mean", "radial_mean", "radial_p50"])


def _check_fixed(frame: pd.DataFrame, at: Context) -> None:
    _measured_on(frame, at)
    finite(frame, at.path, ["norm", "radial_rest_mean", "angular_rest_mean"], above=0)
    finite(frame, at.path, ["radial_mean", "radial_limit_mean"])


def _check_clamp(frame: pd.DataFrame, at: Context) -> None:
    _measured_on(frame, at)
    depths(frame, at, ["intervention"], 1)
    if set(frame["intervention"]) != {"norm", "radial"}:
        raise refuse(at.path, f"has interventions {sorted(set(frame['intervention']))}")
    finite(frame, at.path, ["ce", "ce_edited", "norm", "norm_edited"], above=0)
    _equal(frame, at, "change_mean", frame["ce_edited"] - frame["ce"])
    if (frame.loc[frame["k"] == 1, "change_mean"].abs() > 1e-6).any():
        raise refuse(at.path, "has a change at depth 1, which no intervention touches")


def _loops(frame: pd.DataFrame, at: Context, column: str) -> None:
    finite(frame, at.path, [column], above=1)
    if (frame[column] > at.loops + 1e-6).any():
        raise refuse(at.path, f"has {column} above the {at.loops} loops of training")


def _check_halting(frame: pd.DataFrame, at: Context) -> None:
    _trained(frame, at)
    if (frame["calibrated_on"] == frame["scored_on"]).any():
        raise refuse(at.path, "scores halting on the split that it was calibrated on")
    found = set(zip(frame["score"], frame["variant"], strict=True))
    expected = {(s, v) for s in ("margin", "entropy") for v in ("oracle", "realised")}
    if found != expected:
        raise refuse(at.path, f"has scores and variants {sorted(found)}")
    finite(frame, at.path, ["ce_full", "ce"], above=0)
    _loops(frame, at, "mean_loops")
    _equal(frame, at, "relative_ppl", np.exp((frame["ce"] - frame["ce_full"]).clip(upper=709)))


def _check_curve(frame: pd.DataFrame, at: Context) -> None:
    finite(frame, at.path, ["ce", "relative_ppl"], above=0)
    _loops(frame, at, "mean_loops")


def _check_halting_timing(frame: pd.DataFrame, at: Context) -> None:
    finite(frame, at.path, ["tokens_per_s", "tokens_per_s_full"], above=0)
    _loops(frame, at, "mean_loops")
    _equal(frame, at, "speedup", frame["tokens_per_s"] / frame["tokens_per_s_full"])


_AT = {"split": TEXT, "k": INT}

PROBES: dict[str, Source] = {
    "norm_hist": Source(
        "norm_hist.csv",
        True,
        _AT | {"tokens": INT} | floats("low high") | {"count": INT},
        ["split", "k", "low"],
        _check_hist,
    ),
    "norm_groups": Source(
        "norm_groups.csv",
        True,
        _AT
        | {"group": TEXT, "low": INT, "high": INT, "tokens": INT}
        | floats("l2_mean l2_p50 l2_p99"),
        ["split", "k", "group", "low"],
        _check_groups,
    ),
    "norm_growth": Source(
        "norm_growth.csv",
        True,
        {"split": TEXT, "trained_k": INT, "tokens": INT}
        | floats("l2_0 l2_1 l2_k growth_1 growth_rest share_1 share_rest")
        | floats("log_growth_1 log_growth_rest"),
        ["split"],
        _check_growth,
    ),
    "gradients": Source(
        "gradients.csv",
        True,
        _AT
        | {"source": TEXT, "path": TEXT, "trained": INT, "dtype": TEXT, "tokens": INT, "width": INT}
        | floats("cos_abs_mean cos_abs_p50 cos_abs_p90 cos_mean cos2_mean cos2d_mean")
        | floats("radial_mean grad_norm_mean chance_cos_abs chance_cos2"),
        ["split", "k", "source", "path", "dtype"],
        _check_gradients,
    ),
    "gradient_eps": Source(
        "gradient_eps.csv",
        True,
        _AT
        | floats("eps norm_low norm_high")
        | {"tokens": INT}
        | floats("cos_abs_mean cos_abs_mean_eps0 radial_mean radial_mean_eps0"),
        ["split", "k", "norm_low"],
        _check_eps,
    ),
    "updates": Source(
        "updates.csv",
        True,
        _AT
        | {"trained_k": INT, "tokens": INT}
        | floats("norm_mean norm_p50 increment_mean radial_mean radial_p50 radial_std update_mean")
        | floats("angular_step_mean angular_step_p50 angle_mean angular_step_norm_mean")
        | floats("angular_step_norm_p50 angular_step_norm_std cos_successive_mean")
        | floats("angle_from_first_mean"),
        ["split", "k"],
        _check_updates,
    ),
    "update_fixed": Source(
        "update_fixed.csv",
        True,
        _AT
        | {"norm": FLOAT, "tokens": INT}
        | floats("radial_mean radial_limit_mean radial_rest_mean angular_step_norm_mean")
        | floats("angular_limit_mean angular_rest_mean"),
        ["split", "k", "norm"],
        _check_fixed,
    ),
    "clamp": Source(
        "clamp.csv",
        True,
        {"split": TEXT, "intervention": TEXT, "k": INT, "tokens": INT}
        | floats("ce ce_edited change_mean change_se norm norm_edited"),
        ["split", "intervention", "k"],
        _check_clamp,
    ),
    "halting": Source(
        "halting.csv",
        True,
        {"score": TEXT, "variant": TEXT, "trained_k": INT, "target": FLOAT, "threshold": FLOAT}
        | {"calibrated_on": TEXT, "calibration_tokens": INT}
        | floats("calibration_relative_ppl calibration_mean_loops")
        | {"scored_on": TEXT, "tokens": INT}
        | floats("ce_full ce ppl relative_ppl mean_loops"),
        ["score", "variant"],
        _check_halting,
    ),
    "halting_curve": Source(
        "halting_curve.csv",
        True,
        {"split": TEXT, "score": TEXT, "threshold": FLOAT, "tokens": INT}
        | floats("ce relative_ppl mean_loops"),
        ["split", "score", "threshold"],
        _check_curve,
    ),
    "halting_timing": Source(
        "halting_timing.csv",
        True,
        {"split": TEXT, "score": TEXT, "threshold": FLOAT, "device": TEXT, "threads": INT}
        | {"batch": INT, "context": INT, "tokens": INT, "repeats": INT}
        | floats("mean_loops tokens_per_s tokens_per_s_full speedup"),
        ["split", "score"],
        _check_halting_timing,
    ),
}
