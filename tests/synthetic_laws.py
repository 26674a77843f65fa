"""Collected results of studies of causes and laws, with chosen values, without any file.

    collected(study, made)      `made(run)` says what a run comes to

Noise is added by whoever makes the values.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from blindspot.collect.collect import _describe
from blindspot.collect.collected import Collected
from blindspot.config.study import Run, Study
from blindspot.declared.throughput import THROUGHPUT

ROOT = Path(__file__).parent.parent
#: CE of a unigram model, nats.
UNIGRAM = 4.09


@dataclass(frozen=True)
class Made:
    """CE at exits 1, 2, .. K (nats), norms at 0 .. K, and what the last loop does."""

    ce: Sequence[float]
    norm: Sequence[float]
    angle: float = 0.1
    across: float = 3.0
    shared: float = 0.1
    #: CE at exits beyond K, by exit.
    beyond: Callable[[int], float] | None = None


class Fake(Collected):
    """A collected folder that is nowhere."""

    def __init__(self, study: dict[str, Any], frames: dict[str, pd.DataFrame]) -> None:
        super().__init__(Path("nowhere"))
        self.__dict__["study"] = study  # a cached property of the class
        self._frames = frames

    def frame(self, name: str) -> pd.DataFrame:
        return self._frames[name]


def load(name: str, **override: Any) -> Study:
    """A study of the repository."""
    return Study.load(ROOT / "config.yaml", [ROOT / "studies" / f"{name}.yaml"], override)


def collected(
    study: Study, made: Callable[[Run], Made], skip: Callable[[Run], str] = lambda run: ""
) -> Fake:
    """What `collect` would have made of these runs; of those that `skip` gives a reason for it
    says so instead."""
    rows: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("exits", "norms", "updates", "update_fixed", "collapse", "runs")
    }
    records, missing = [], []
    for run in study.runs:
        if reason := skip(run):
            missing.append({"run": run.name, "reason": reason})
            continue
        lead = {"size": run.size, "cell": run.cell, "seed": run.seed, "run": run.name}
        value, K = made(run), run.spec.model.loops
        depths = {*range(1, K + 1), *study.config.measurement.depths_beyond}
        ce = {k: float(x) for k, x in enumerate(value.ce, 1)}
        if value.beyond:
            ce |= {k: value.beyond(k) for k in depths if k > K}
        for split in ("validation", "test"):
            at = lead | {"split": split, "protocol": "full", "trained_k": K}
            rows["exits"] += [at | {"k": k, "ce": x, "ppl": math.exp(x)} for k, x in ce.items()]
        at = lead | {"split": "validation"}
        rows["norms"] += [at | {"k": k, "l2_mean": s} for k, s in enumerate(value.norm)]
        for k in range(K):
            rows["updates"].append(at | {"k": k, "angle_mean": value.angle * (K - k)})
            rows["collapse"].append(at | {"k": k + 1, "shared_direction": value.shared})
        fixed = {"angular_limit_mean": value.across}
        depths = {1, K}
        rows["update_fixed"] += [at | fixed | {"k": k, "norm": s} for k in depths for s in (1, 10)]
        rows["runs"].append(lead)
        steps = run.spec.training.steps
        records.append((run, {"steps": steps, "tokens_seen": 1, "provenance": {}}))
    frames = {name: pd.DataFrame(part) for name, part in rows.items()}
    frames["baselines"] = pd.DataFrame(
        [
            {"size": run.size, "split": split, "baseline": "unigram", "ce": UNIGRAM}
            for run in study.runs
            for split in ("validation", "test")
        ]
    )
    timed = pd.DataFrame(columns=["size", "cell", *THROUGHPUT.header])
    described = _describe(study, records, missing, [], timed) | {"outliers": []}
    return Fake(described, frames)
