"""Where the files of a study's runs are, and which runs can still be measured.

Imports neither torch nor pandas: Snakemake parses this at the start of every job.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from blindspot import declared
from blindspot.config.study import Study
from blindspot.declared.measurement import RECORD

#: The file of final weights in a run's state folder.
WEIGHTS = "weights.safetensors"

#: What a running training tells of itself there, for `blindspot status`.
PROGRESS = "progress.json"

#: Which tracked run is its own, and the steps that this has (training/tracking.py).
TRACKED = "tracking.json"


def checkpoints(state: Path) -> list[Path]:
    """Checkpoint files of a state folder, newest first."""
    return [path for path in _named_as_checkpoints(state) if path.is_file()]


def stray_checkpoints(state: Path) -> list[Path]:
    """What has a checkpoint's name and is no file: a folder, a link that leads nowhere."""
    return [path for path in _named_as_checkpoints(state) if not path.is_file()]


def _named_as_checkpoints(state: Path) -> list[Path]:
    found = [p for p in state.glob("step-*.safetensors") if re.fullmatch(r"step-\d{8}", p.stem)]
    return sorted(found, reverse=True)


@dataclass(frozen=True)
class RunFiles:
    """Files of runs, which are given by name."""

    study: Study

    def finished(self, name: str) -> Path:
        """The record of a finished training."""
        return self.study.results / "runs" / name / "run.json"

    def measurements(self, name: str) -> Path:
        """The folder of a run's measurements."""
        return self.study.results / "runs" / name / "measure"

    def measured(self, name: str) -> Path:
        """The file that a measuring job writes last: with today's settings all are made."""
        return self.measurements(name) / self._complete

    def record(self, name: str, measurement: str) -> Path:
        """The record of one measurement with today's settings."""
        return self.measurements(name) / self._folders[measurement] / RECORD

    def unmeasured(self, name: str) -> list[str]:
        """The measurements that a run lacks, by name."""
        at = self.measurements(name)
        return [m for m, folder in self._folders.items() if not (at / folder / RECORD).exists()]

    def is_measured(self, name: str) -> bool:
        """Whether nothing is left to measure."""
        return self.measured(name).exists() and not self.unmeasured(name)

    def weights(self, name: str) -> Path:
        """The trained weights, which may be lost."""
        return self.study.work / "runs" / name / WEIGHTS

    def throughput(self, size: str) -> Path:
        """The throughput table of a size."""
        name = f"{size}-{self.study.throughput_hash(size)}.csv"
        return self.study.results / "throughput" / name

    def published(self) -> list[str]:
        """Runs that are trained and measured."""
        names = [run.name for run in self.study.runs]
        return [n for n in names if self.finished(n).exists() and self.is_measured(n)]

    def impossible(self, remade: Collection[str] = ()) -> list[str]:
        """Runs that have results but neither all measurements nor the weights to make them; those
        that are `remade` get weights."""
        return [
            run.name
            for run in self.study.runs
            if run.name not in remade
            and self.finished(run.name).exists()
            and not self.weights(run.name).exists()
            and self.unmeasured(run.name)
        ]

    @cached_property
    def _folders(self) -> dict[str, str]:
        return declared.folders(self.study.config.measurement)

    @cached_property
    def _complete(self) -> str:
        return declared.complete(self._folders)
