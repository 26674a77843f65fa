"""The files that runs leave behind: their columns, and what their numbers must fulfil.

One `Source` a file. A new measurement that writes a CSV adds its entry here (or in `probes.py`,
for diagnostics) and nothing else in the collecting: its rows then arrive, checked, as `<name>.csv`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from blindspot.collect.collected import refuse
from blindspot.config.study import Run


@dataclass(frozen=True)
class Context:
    """What a file is checked against."""

    path: Path
    run: Run
    steps: int

    @property
    def loops(self) -> int:
        return self.run.spec.model.loops


@dataclass(frozen=True)
class Source:
    """A CSV that a run leaves behind: where, its columns with their types, its keys, its rules."""

    file: str
    measured: bool
    columns: dict[str, str]
    keys: list[str]
    check: Callable[[pd.DataFrame, Context], None]


def finite(frame: pd.DataFrame, path: Path, columns: list[str], above: float = -math.inf) -> None:
    """Refuse a column of `frame` that holds a non-number or one below `above`."""
    for column in columns:
        values = frame[column].to_numpy()
        bad = ~np.isfinite(values) | (values < above)
        if bad.any():
            raise refuse(path, f"has {column} {values[bad][0]} in row {int(bad.argmax()) + 2}")


def depths(frame: pd.DataFrame, at: Context, by: list[str], first: int) -> None:
    """Each group has k = first..K without a gap; deeper ones (extrapolation) may follow."""
    expected = list(range(first, at.loops + 1))
    for key, group in frame.groupby(by):
        found = sorted(group["k"])
        if found[: len(expected)] != expected:
            raise refuse(at.path, f"has k = {found} for {key}, expected {expected}")


def _splits(frame: pd.DataFrame, at: Context, expected: set[str]) -> None:
    found = set(frame["split"])
    if found != expected:
        raise refuse(at.path, f"has splits {sorted(found)}, expected {sorted(expected)}")


def _check_trajectory(frame: pd.DataFrame, at: Context) -> None:
    spec = at.run.spec
    _splits(frame, at, {"train", "validation"})
    depths(frame, at, ["split", "step"], 0)
    for split, every in (
        ("train", spec.training.log_every),
        ("validation", spec.training.validate_every),
    ):
        steps = set(frame.loc[frame["split"] == split, "step"])
        lost = ({*range(every, at.steps + 1, every)} | {at.steps}) - steps
        if lost or max(steps) > at.steps or min(steps) < 0:
            raise refuse(
                at.path,
                f"has no {split} row of step {min(lost)}"
                if lost
                else f"has steps beyond the run's {at.steps}",
            )
    if (frame["tokens"] != frame["step"] * spec.batch * spec.windows.length).any():
        raise refuse(at.path, f"has tokens that are not step x {spec.batch} x window length")
    finite(frame, at.path, ["norm_mean", "norm_p50", "norm_p99", "norm_max"], above=0)
    # A terminal cell's training step need not compute the losses of the earlier loops.
    scored = frame["k"] > 0
    if spec.objective.loss == "terminal":
        scored &= (frame["split"] == "validation") | (frame["k"] == at.loops)
    finite(frame[scored], at.path, ["ce"], above=0)
    finite(frame[(frame["split"] == "train") & (frame["k"] == 0)], at.path, ["grad_norm"], 0)


def _check_timing(frame: pd.DataFrame, at: Context) -> None:
    finite(frame, at.path, ["seconds", "tokens_per_s"], above=0)
    if not len(frame) or frame["step"].max() > at.steps:
        raise refuse(at.path, f"has no rows, or rows beyond the run's {at.steps} steps")


def _check_exits(frame: pd.DataFrame, at: Context) -> None:
    _splits(frame, at, {"validation", "test"})
    depths(frame, at, ["split", "protocol"], 1)
    if "full" not in set(frame["protocol"]):
        raise refuse(at.path, "has no rows of protocol full")
    if (frame["trained_k"] != at.loops).any():
        raise refuse(at.path, f"says trained_k {frame['trained_k'].max()}, the run has {at.loops}")
    counts = {name: frame[name].astype("float64") for name in ("tokens", "words", "bytes")}
    if any((count < 1).any() for count in counts.values()):
        raise refuse(at.path, "scores no tokens")
    with np.errstate(over="ignore"):
        # One sum of nats; every other number is that sum over its own count (E-03).
        derived = {
            "ce": frame["nll"] / frame["tokens"],
            "ppl": np.exp(frame["nll"] / frame["tokens"]),
            "word_ppl": np.exp(frame["nll"] / counts["words"]),
            "bits_per_byte": frame["nll"] / counts["bytes"] / math.log(2),
        }
    if frame["nll"].isna().any() or (frame["nll"] < 0).any():
        raise refuse(at.path, "has an nll that is not a number of nats")
    for column, expected in derived.items():
        wrong = ~np.isclose(frame[column], expected, rtol=1e-5, equal_nan=True)
        if wrong.any():
            row = int(wrong.argmax())
            raise refuse(
                at.path,
                f"has {column} {frame[column].iloc[row]} in row {row + 2}, where its nll gives "
                f"{expected.iloc[row]:.6g}",
            )


def _check_baselines(frame: pd.DataFrame, at: Context) -> None:
    found = set(zip(frame["split"], frame["baseline"], strict=True))
    if found != {(s, b) for s in ("validation", "test") for b in ("uniform", "unigram")}:
        raise refuse(at.path, f"has splits and baselines {sorted(found)}")
    finite(frame, at.path, ["nll", "ce", "ppl"], above=0)
    expected = {"ce": frame["nll"] / frame["tokens"]}
    expected["ppl"] = np.exp(expected["ce"])
    for column, values in expected.items():
        if not np.allclose(frame[column], values, rtol=1e-5):
            raise refuse(at.path, f"has {column} that is not what its nll gives")


def _check_norms(frame: pd.DataFrame, at: Context) -> None:
    depths(frame, at, ["split"], 0)
    if "validation" not in set(frame["split"]):
        raise refuse(at.path, "has no rows of split validation")
    ordered = ["l2_p50", "l2_p90", "l2_p99", "l2_p999", "l2_max"]
    finite(frame, at.path, ["l2_mean", "l2_std", *ordered, "rms_mean"], above=0)
    values = frame[ordered].to_numpy()
    slack = 1 + 1e-6  # quantiles are stored in float32
    if (values[:, :-1] > values[:, 1:] * slack).any():
        raise refuse(at.path, "has quantiles out of order")
    if (frame["l2_mean"] > frame["l2_max"] * slack).any():
        raise refuse(at.path, "has a mean above the maximum")


#: COUNT is an integer that may be empty: not known.
INT, COUNT, FLOAT, TEXT = "int64", "Int64", "float64", "str"


def floats(names: str) -> dict[str, str]:
    """Columns of real numbers, from their names in one string."""
    return dict.fromkeys(names.split(), FLOAT)


SOURCES: dict[str, Source] = {
    "trajectory": Source(
        "trajectory.csv",
        False,
        {"step": INT, "tokens": INT, "split": TEXT, "k": INT}
        | floats("ce norm_mean norm_p50 norm_p99 norm_max grad_norm"),
        ["step", "split", "k"],
        _check_trajectory,
    ),
    "timing": Source(
        "timing.csv",
        False,
        {"step": INT} | floats("seconds tokens_per_s"),
        ["step"],
        _check_timing,
    ),
    "baselines": Source(
        "baselines.csv",
        True,
        {"split": TEXT, "baseline": TEXT, "tokens": INT} | floats("nll ce ppl"),
        ["split", "baseline"],
        _check_baselines,
    ),
    "exits": Source(
        "exits.csv",
        True,
        {"split": TEXT, "protocol": TEXT, "k": INT, "tokens": INT, "words": COUNT, "bytes": COUNT}
        | floats("nll ce ppl word_ppl bits_per_byte")
        | {"trained_k": INT, "unk_rate": FLOAT, "comparable": INT},
        ["split", "protocol", "k"],
        _check_exits,
    ),
    "norms": Source(
        "norms.csv",
        True,
        {"split": TEXT, "k": INT, "tokens": INT}
        | floats("l2_mean l2_std l2_p50 l2_p90 l2_p99 l2_p999 l2_max rms_mean")
        | floats("log_kurtosis hill mass_top1 half_mass"),
        ["split", "k"],
        _check_norms,
    ),
}

THROUGHPUT = (
    {"architecture": TEXT, "k": INT, "batch": INT, "context": INT, "precision": TEXT}
    | {"device": TEXT, "threads": INT, "repeats": INT}
    | floats("tokens_per_s tokens_per_s_q25 tokens_per_s_q75 flops_per_token")
)
