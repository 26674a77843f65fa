"""A finished run by its name: its record, its weights, the tokens that it was trained on."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from blindspot.config.runfiles import WEIGHTS
from blindspot.config.spec import RunSpec
from blindspot.data.tokens import Tokens
from blindspot.errors import BlindspotError
from blindspot.files import read_json
from blindspot.lm.model import LoopedLM
from blindspot.measure import load
from blindspot.settings import canonical

#: size/cell/seedN-hash.
NAME = re.compile(r"[^/]+/[^/]+/seed\d+-[0-9a-f]{8}")


@dataclass(frozen=True)
class Finished:
    """`results` holds studies' folders (or is one), `work` the weights and tokens."""

    name: str
    results: Path
    work: Path

    @cached_property
    def folder(self) -> Path:
        """The run's results. Raises `BlindspotError` naming those that there are."""
        for folder in (*sorted(self.results.glob(f"*/runs/{self.name}")), self._alone):
            if (folder / "run.json").exists():
                return folder
        records = self.results.glob("*/runs/*/*/*/run.json")
        known = sorted(path.parent.as_posix().partition("runs/")[2] for path in records)
        beside = [other for other in known if other.split("/")[:2] == self.name.split("/")[:2]]
        raise BlindspotError(
            f"{self.name}: no finished run of that name below {self.results}/; "
            f"{_listed(beside or known) or 'there are none, so give --results and --work'}"
        )

    @property
    def _alone(self) -> Path:
        return self.results / "runs" / self.name

    @cached_property
    def record(self) -> dict[str, Any]:
        """run.json."""
        found: dict[str, Any] = read_json(self.folder / "run.json")
        return found

    @cached_property
    def spec(self) -> RunSpec:
        return RunSpec.parse(canonical(self.record["spec"]))

    @cached_property
    def tokens(self) -> Tokens:
        """The token files of the run's data."""
        for path in sorted((self.work / "tokens").glob("*/tokens.json")):
            if canonical(read_json(path).get("data")) == canonical(self.spec.data):
                return Tokens.open(path.parent, verify=False)
        raise BlindspotError(
            f"{self.name}: no token files of this run's data below {self.work / 'tokens'}; make "
            f"them again (snakemake knows how), or say where they are with --work"
        )

    def model(self, device: torch.device) -> LoopedLM:
        """The run's model, as `load.model` gives it."""
        weights = self.work / "runs" / self.name / WEIGHTS
        return load.model(self.spec, weights, device, self.tokens)


def _listed(names: Sequence[str]) -> str:
    more = f", and {len(names) - 8} more" if len(names) > 8 else ""
    return f"there are {', '.join(names[:8])}{more}" if names else ""
