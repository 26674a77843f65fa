"""Cells compared at equal optimizer steps, equal training FLOPs and equal device time (of training:
compiling is counted apart).

Per-loop losses cost more a step than terminal ones, so a comparison can turn with its budget. At
each budget a run's validation CE at the last loop is read off its trajectory, linearly between the
validation points, and set against the reference cell's, paired by seed.
"""

import numpy as np
import pandas as pd

from blindspot.collect.collected import Collected
from blindspot.collect.stats import over_seeds, paired, summarize

REFERENCE = "perloop-rms"
BUDGETS = ("steps", "FLOPs", "seconds")


def points_of_training(c: Collected) -> pd.DataFrame:
    """Rows of the training log on the validation split at each run's last loop, with `FLOPs`, of
    training by then."""
    t = c.frame("trajectory")
    t = c.last(t[t["split"] == "validation"])
    flops = c.runs.set_index("run")["train_flops_per_token"]
    return t.assign(FLOPs=t["tokens"] * t["run"].map(flops))


def costs(c: Collected) -> pd.DataFrame:
    """Validation points of each run: size, cell, seed, step, ce at loop K, FLOPs, seconds.

    Seconds are NaN at sizes whose runs were not all trained on the same device and threads.
    """
    t = points_of_training(c)
    t = t[["size", "cell", "seed", "run", "step", "ce", "FLOPs"]].assign(seconds=np.nan)
    timing = dict(list(c.frame("timing").groupby("run")))
    for size in alike(c):
        for run, rows in t[t["size"] == size].groupby("run"):
            clock = timing[run]
            seconds = np.interp(rows["step"], [0, *clock["step"]], [0, *clock["seconds"]])
            t.loc[rows.index, "seconds"] = seconds
    return t.assign(steps=t["step"]).reset_index(drop=True)


def alike(c: Collected) -> list[str]:
    """Sizes whose runs all say the same device and number of threads."""
    machines = c.runs.fillna({"device": "", "threads": 0}).groupby("size", sort=False)
    return [
        str(size)
        for size, rows in machines
        if len(rows[["device", "threads"]].drop_duplicates()) == 1 and rows["device"].iloc[0]
    ]


def matched(c: Collected) -> pd.DataFrame:
    """One row a size, budget and cell: `at` (the budget, the least that a run of the size used in
    all), ce and its interval, difference from perloop-rms with its interval and how many seeds it
    pairs, and `noise_sd`: standard deviation over seeds pooled over cells, the replicates' noise.
    """
    points = costs(c)
    rows = []
    for size, own in points.groupby("size", sort=False):
        for budget in BUDGETS:
            if own[budget].isna().any():
                continue
            at, frame = readings(own, budget)
            mean = over_seeds(frame, ["cell"], ["ce"])
            by_cell = {
                name: dict(zip(p["seed"], p["ce"], strict=True))
                for name, p in frame.groupby("cell")
            }
            noise = noise_sd(frame)
            for _, row in mean.iterrows():
                pair = None
                ours, theirs = by_cell[row["cell"]], by_cell.get(REFERENCE, {})
                if row["cell"] != REFERENCE and set(ours) & set(theirs):
                    pair = paired(ours, theirs)
                rows.append(
                    {"size": size, "budget": budget, "at": at, "cell": row["cell"]}
                    | {"seeds": row["seeds"], "ce": row["ce"], "ce_ci": row["ce_ci"]}
                    | {"difference": pair.mean if pair else np.nan}
                    | {"difference_ci": pair.ci if pair else np.nan}
                    | {"pairs": pair.n if pair else 0, "noise_sd": noise}
                )
    columns = ["size", "budget", "at", "cell", "seeds", "ce", "ce_ci", "difference",
               "difference_ci", "pairs", "noise_sd"]  # fmt: skip
    return pd.DataFrame(rows, columns=columns)


def readings(points: pd.DataFrame, budget: str) -> tuple[float, pd.DataFrame]:
    """Of one size's `costs`: the budget, the least that a run used in all, and cell, seed and ce of
    each run there."""
    at = points.groupby("run")[budget].max().min()
    values = [
        {
            "cell": part["cell"].iloc[0],
            "seed": part["seed"].iloc[0],
            "ce": _read(part, budget, at),
        }
        for _, part in points.groupby("run", sort=False)
    ]
    return at, pd.DataFrame(values)


def _read(part: pd.DataFrame, budget: str, at: float) -> float:
    part = part.sort_values("step")
    return float(np.interp(at, part[budget], part["ce"]))


def noise_sd(frame: pd.DataFrame) -> float:
    """A replicate's noise, of `readings`: standard deviation over seeds, pooled over the cells with
    two or more; NaN without any."""
    parts = [summarize(values) for _, values in frame.groupby("cell")["ce"]]
    freedom = sum(p.n - 1 for p in parts)
    if not freedom:
        return float("nan")
    return float(np.sqrt(sum((p.n - 1) * p.sd**2 for p in parts if p.n > 1) / freedom))
