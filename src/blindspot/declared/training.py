"""The training log. `trajectory.csv` is a function of the specification, `timing.csv` is not."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from blindspot.declared.columns import Context, File, gaps, integer, not_above, real, word
from blindspot.declared.common import K

if TYPE_CHECKING:
    import pandas as pd


def _trajectory(frame: "pd.DataFrame", at: Context) -> Iterator[str]:
    spec = at.spec
    random = spec.objective.random_loops
    whole = frame[frame["split"] == "validation"] if random else frame
    yield from gaps(whole, ["split", "step"], 0, at.loops)
    if random:
        # A step has the loops that were drawn for it.
        for step, drawn in frame[frame["split"] == "train"].groupby("step"):
            if sorted(drawn["k"]) != [*range(len(drawn))] or not 1 < len(drawn) <= at.loops + 1:
                yield f"has k = {sorted(drawn['k'])} in step {step}, of 1 to {at.loops} loops"
    for split, every in (
        ("train", spec.training.log_every),
        ("validation", spec.training.validate_every),
    ):
        steps = set(frame.loc[frame["split"] == split, "step"])
        if lost := ({*range(every, at.steps + 1, every)} | {at.steps}) - steps:
            yield f"has no {split} row of step {min(lost)}"
        elif max(steps) > at.steps or min(steps) < 0:
            yield f"has steps beyond the run's {at.steps}"
    if (frame["tokens"] != frame["step"] * spec.batch * spec.windows.length).any():
        yield f"has tokens that are not step x {spec.batch} x window length"
    # A terminal cell's training step need not compute the losses of the earlier loops.
    scored = frame["k"] > 0
    if spec.objective.loss == "terminal":
        scored &= (frame["split"] == "validation") | ((frame["k"] == at.loops) & (not random))
    yield from not_above(frame[scored], ["ce"], 0)
    yield from not_above(frame[(frame["split"] == "train") & (frame["k"] == 0)], ["grad_norm"], 0)


def _timing(frame: "pd.DataFrame", at: Context) -> Iterator[str]:
    if not len(frame) or frame["step"].max() > at.steps:
        yield f"has no rows, or rows beyond the run's {at.steps} steps"


STEP = integer("step", "optimizer steps done")
NORM = "L2 norm of H_k over the width, over the batch's tokens"

TRAJECTORY = File(
    "trajectory",
    "a step x split x k",
    (
        STEP,
        integer("tokens", "tokens trained on by then", "tokens"),
        word(
            "split",
            "train (the step's batch, dropout on) or validation (dropout off)",
            *("train", "validation"),
        ),
        K,
        real("ce", "cross-entropy, read at depth k; empty at k = 0", "nats/token"),
        real("norm_mean", f"{NORM}: mean", low=0),
        real("norm_p50", f"{NORM}: median", low=0),
        real("norm_p99", f"{NORM}: 99th percentile", low=0),
        real("norm_max", f"{NORM}: maximum", low=0),
        real(
            "grad_norm",
            "norm of the step's gradient before clipping; on row k = 0 of split train",
        ),
    ),
    ("step", "split", "k"),
    check=_trajectory,
)

TIMING = File(
    "timing",
    "a logged step",
    (
        STEP,
        real("seconds", "seconds of training, over all attempts", "s", low=0),
        real("tokens_per_s", "speed since the row before", "tokens/s", low=0),
    ),
    ("step",),
    check=_timing,
)

FILES = (TRAJECTORY, TIMING)
