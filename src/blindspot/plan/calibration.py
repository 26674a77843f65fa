"""Calibrations that are kept in `work/calibration/`: what `blindspot calibrate` found out."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from blindspot.plan import inventory

#: Files that decide how long a step takes.
STEP = ("lm/[!_]*.py", "training/engine.py", "training/optimizer.py")


def code() -> str:
    """A digest of the source of a training step: what a calibration was of."""
    total = hashlib.sha256()
    for path in (p for name in STEP for p in sorted(Path(__file__).parent.parent.glob(name))):
        total.update(path.read_bytes())
    return total.hexdigest()[:8]


@dataclass(frozen=True)
class Calibration:
    """What `blindspot calibrate` found out on a device."""

    code: str
    device: str
    threads: int
    start: float
    #: Processes that wanted to run when it began, for each core: above 1, the machine was busy.
    load: float
    made: str
    #: Class to seconds a step, FLOPs a step and seconds of a validated token.
    steps: dict[str, dict[str, float]]
    #: Whether the steps were compiled, and the seconds that took, at most.
    compiled: bool
    compile_seconds: float


def calibrations(work: Path) -> list[Calibration]:
    """All of today's code that are saved under a work folder, newest first."""
    found, now = [], code()
    for path in (work / "calibration").glob("*.json"):
        value = inventory.parse(path)
        try:
            found.append(Calibration(**(value or {})))
        except TypeError:
            continue
    return sorted((c for c in found if c.code == now), key=lambda c: c.made, reverse=True)
