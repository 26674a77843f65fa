"""Collected results of studies of causes and laws, with chosen values, without any file.

    collected(study, made)      `made(run)` says what a run comes to

Noise is added by whoever makes the values.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
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
        rows["norms"] += [
            at | {"k": k, "l2_mean": s, "rms_mean": s / 8} for k, s in enumerate(value.norm)
        ]
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


# --- studies as they may come out ----------------------------------------------------------------


def noise(run: Run, scale: float = 1.0) -> float:
    """Of a run: the same in each test."""
    rng = np.random.default_rng([run.seed, crc32(run.cell.encode())])
    return float(rng.normal(0, scale))


def dose_study(exponent: float = -1.0, gain: float = -0.01) -> Fake:
    """Five doses of a scale (a penalty's weight stands for it), and four that only steer it.
    `exponent` is that of the angle, `gain` the change of CE_1 - CE_K a doubling, nats."""
    base = {"loss": "per-loop", "readout": "rms"}
    slope = {"quantity": "slope", "sweep": "dose", "cell": "perloop-rms-reset"}
    study = Study.load(
        ROOT / "config.yaml",
        override={
            "study": "dose",
            "sizes": {"44m": None},
            "training": {"steps": 500, "epochs": None},
            "grid": {"seeds": [42, 101, 202, 303, 404]},
            "cells": {
                "perloop-rms-reset": base | {"penalty": {"weight": 1}},
                "perloop-rms-target": base
                | {"penalty": {"kind": "sum-square", "weight": 1}, "seeds": [42, 101, 202]},
            },
            "sweeps": {
                "dose": {
                    "cells": ["perloop-rms-reset"],
                    "over": {"penalty.weight": [1, 4, 16, 64, 256]},
                },
                "target": {
                    "cells": ["perloop-rms-target"],
                    "over": {"penalty.weight": [1, 4, 16, 64]},
                },
            },
            "claims": {
                "cause": {
                    "claim": "The scale is the cause.",
                    "parts": [
                        slope
                        | {"of": "gain", "axes": "linear-log2", "supported": {"below": -0.002}}
                        | {"contradicted": {"within": [-0.002, 0.002], "confidence": 0.9}},
                        slope | {"of": "angle", "supported": {"within": [-1.15, -0.85]}},
                    ],
                }
            },
        },
    )

    def made(run: Run) -> Made:
        penalty = run.spec.objective.penalty
        assert penalty is not None
        steered = "target" in run.cell
        scale = float(penalty.weight) ** (0.8 if steered else 1.0) * exp(noise(run, 0.02))
        angle = 0.6 * scale**exponent * exp(noise(run, 0.03))
        more = 0.08 + gain * np.log2(scale) + noise(run, 0.002)
        last = 2.72 + (0.02 if steered else 0.0) - more / 2
        norm = [10.0, *[scale * 8] * 4]
        return Made([last + more, last + more / 3, last, last], norm, angle, 3 * scale**0.1)

    return collected(study, made)


def laws_study() -> Fake:
    """Power laws in rate, steps and K, and none in the rest; raw readouts depend on little."""

    def made(run: Run) -> Made:
        spec = run.spec
        rate, steps = spec.training.learning_rate / 8e-3, (spec.training.steps or 0) / 400
        K, raw = spec.model.loops, spec.model.readout == "raw"
        last = 9 * rate**0.1 if raw else 60 * rate**0.6 * steps**0.3 * (K / 4) ** 0.9
        last *= exp(noise(run, 0.04)) * (spec.model.d_model / 64) ** 0.4
        last *= 1.6 if "leftout-all" in run.cell and not raw else 1.0
        return Made([2.9] * K, [8.0, *np.linspace(last, last / 2, K)[::-1]])

    return collected(load("laws"), made)


#: Remedies as they may come out: |H_K| / |H_0|, CE_1 - CE_K, CE_K.
REMEDIES = {
    "perloop-rms": (44, 0.003, 2.72), "perloop-raw": (0.7, 0.11, 3.02),
    "perloop-finalnorm": (0.9, 0.12, 2.95), "perloop-rms-penalty": (1.7, 0.03, 2.74),
    "perloop-rms-interloop": (5.5, 0.02, 2.71), "perloop-layernorm": (41, 0.004, 2.73),
    "perloop-power": (3.1, 0.07, 2.84), "perloop-power-learned": (3.6, 0.06, 2.81),
    "perloop-target": (1.0, 0.035, 2.75), "perloop-clamp": (1.3, 0.028, 2.76),
    "perloop-clamp-stopped": (1.3, 0.025, 2.77), "perloop-decay": (2.2, 0.05, 2.76),
    "perloop-scaled": (11, 0.004, 2.72), "perloop-inject": (18, 0.015, 2.70),
    "perloop-sandwich": (9, 0.02, 2.69), "perloop-weights": (39, 0.05, 2.73),
    "perloop-random": (35, 0.006, 2.76), "perloop-untied": (28, 0.12, 2.66),
    "perloop-single": (9.0, 0.0, 2.78), "perloop-zloss": (42, 0.003, 2.72),
    "terminal-rms": (33, 3.1, 2.79), "perloop-rms-std0.02": (200, 0.009, 2.74),
}  # fmt: skip


def remedies_study(**changed: tuple[float, float, float]) -> Fake:
    values = REMEDIES | {name.replace("_", "-"): value for name, value in changed.items()}
    base = {"loss": "per-loop", "readout": "rms"}
    cells = {
        name: base | {"training": {"weight_decay": i / 100}} for i, name in enumerate(REMEDIES)
    }
    held = {
        "claim": "{cell} holds the norm.",
        "each": list(REMEDIES),
        "parts": [
            {"quantity": "value", "of": "growth", "cell": "{cell}"}
            | {"supported": {"below": 2}, "contradicted": {"above": 2}}
        ],
    }
    study = Study.load(
        ROOT / "config.yaml",
        override={
            "study": "remedies",
            "sizes": {"44m": None},
            "training": {"steps": 500, "epochs": None},
            "cells": cells,
            "claims": {"holds": held},
        },
    )

    def made(run: Run) -> Made:
        growth, gain, last = values[run.cell]
        gain, last = gain + noise(run, 0.003), last + noise(run, 0.006)
        norm = np.geomspace(1, growth * exp(noise(run, 0.04)), 5) * 8
        return Made([last + gain * (1 - k / 3) for k in range(4)], list(norm))

    return collected(study, made)


def horizon_study() -> Fake:
    """Normalized readouts hold; raw ones leave once they are read beyond their K."""

    def made(run: Run) -> Made:
        K, raw = run.spec.model.loops, run.spec.model.readout == "raw"
        last = 2.8 - 0.02 * np.log2(K) + (0.2 if raw else 0) + noise(run, 0.01)
        rise = (0.02 if not raw else 0.25) / K
        ce = [last + 0.05 * (1 - k / K) for k in range(1, K + 1)]
        return Made(ce, [8.0] * (K + 1), beyond=lambda k: last + rise * (k - K) ** 0.9)

    return collected(load("horizon"), made)


STUDIES: dict[str, Callable[[], Fake]] = {
    "dose": dose_study,
    "laws": laws_study,
    "remedies": remedies_study,
    "horizon": horizon_study,
}
