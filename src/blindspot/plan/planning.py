"""What a study would run, and why: new, changed (which keys), revision raised, measured anew.

Imports neither torch nor pandas.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from blindspot.config.runfiles import RunFiles, checkpoints
from blindspot.config.study import Run, Study
from blindspot.declared import MEASUREMENTS
from blindspot.declared.measurement import RECORD
from blindspot.plan import inventory
from blindspot.plan.diff import differences, shown
from blindspot.plan.inventory import Record
from blindspot.plan.progress import Progress, progress
from blindspot.settings import canonical

Action = Literal["cached", "measure", "train", "impossible"]

#: Keys that say which code made something, and how to call that.
REVISIONS = {"revision": "training revision", "data.revision": "data revision"}


@dataclass(frozen=True)
class Planned:
    """What happens to a run. `left` is the share of its training that is still to do."""

    run: Run
    action: Action
    left: float
    #: Measurements to make.
    measurements: tuple[str, ...] = ()

    @property
    def measures(self) -> bool:
        """Whether a job measures it."""
        return self.action in ("train", "measure") and bool(self.measurements)


class Plan:
    """What is to be done for a study, and the records that reasons and times are drawn from."""

    def __init__(self, study: Study) -> None:
        self.study, self.files = study, RunFiles(study)
        self._near: dict[str, tuple[Record | None, dict[str, tuple[Any, Any]]]] = {}

    @cached_property
    def _by_hash(self) -> dict[str, Record]:
        return {record.hash: record for record in reversed(self.records)}

    @cached_property
    def _by_place(self) -> dict[str, list[Record]]:
        """Records of this study by size, cell and seed."""
        found: dict[str, list[Record]] = {}
        for record in self.records:
            if record.study == self.study.config.study:
                found.setdefault(record.name.rpartition("-")[0], []).append(record)
        return found

    @cached_property
    def records(self) -> list[Record]:
        """Finished runs of every study under the same results root, this study's first."""
        found = inventory.finished(Path(self.study.config.results))
        return sorted(found, key=lambda r: r.study != self.study.config.study)

    @cached_property
    def runs(self) -> list[Planned]:
        remade = {run.name for run in self.study.remade}
        todo = [
            run
            for run in self.study.runs
            if run.name not in remade and not self.files.finished(run.name).exists()
        ]
        # All together: Slurm is asked once, if at all.
        started = {found.run.name: found for found in progress(self.study, todo)}
        return [self._planned(run, started.get(run.name), remade) for run in self.study.runs]

    def _planned(self, run: Run, started: Progress | None, remade: Collection[str]) -> Planned:
        every = tuple(MEASUREMENTS)
        if run.name in remade:
            return Planned(run, "train", 1.0, every)
        lacking = tuple(self.files.unmeasured(run.name))
        if started is None:
            if self.files.is_measured(run.name):
                return Planned(run, "cached", 0.0)
            possible = not lacking or self.files.weights(run.name).exists()
            return Planned(run, "measure" if possible else "impossible", 0.0, lacking)
        if started.state == "trained":
            return Planned(run, "train", 0.0, lacking)
        saved = checkpoints(self.study.work / "runs" / run.name)
        done = int(saved[0].stem[5:]) / started.steps if saved and started.steps else 0.0
        return Planned(run, "train", 1.0 - min(done, 1.0), lacking)

    def untimed(self) -> list[str]:
        """Sizes whose throughput is to be timed."""
        return [
            size
            for size in self.study.config.sizes
            if self.study.config.reuse is False or not self.files.throughput(size).exists()
        ]

    # Reasons.

    def why(self, planned: Sequence[Planned]) -> str:
        """Why the runs of one size and cell are made, in a phrase; empty where none is."""
        reasons: dict[str, list[Planned]] = {}
        for one in planned:
            if one.action != "cached":
                reasons.setdefault(self._why(one), []).append(one)
        if len(reasons) < 2:
            return next(iter(reasons), "")
        return "; ".join(
            f"seed {', '.join(str(p.run.seed) for p in group)}: {reason}"
            for reason, group in reasons.items()
        )

    def _why(self, one: Planned) -> str:
        if one.run in self.study.remade:
            return "to be made anew (reuse: false)"
        if one.action in ("measure", "impossible"):
            reason = self._why_measured(one)
            return reason + ("; its weights are gone" if one.action == "impossible" else "")
        reason = self._why_trained(one.run)
        if one.left == 0.0:
            return f"{reason}; trained already, results to be written"
        return reason + (f"; goes on at {1 - one.left:.0%}" if one.left < 1.0 else "")

    def _why_measured(self, one: Planned) -> str:
        reasons: dict[str, list[str]] = {}
        for name in one.measurements:
            reasons.setdefault(self._why_made(one.run, name), []).append(name)
        if len(reasons) == 1 and len(one.measurements) == len(MEASUREMENTS):
            return next(iter(reasons))
        said = [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()]
        return "; ".join(said) or "measured; the file that says so is lost"

    def _why_made(self, run: Run, name: str) -> str:
        """Why one measurement is made: against the nearest one that is there."""
        measurement = MEASUREMENTS[name]
        new = measurement.chosen(self.study.config.measurement)
        nearest: dict[str, tuple[Any, Any]] | None = None
        for path in self.files.measurements(run.name).glob(f"{name}-*/{RECORD}"):
            record = inventory.parse(path) or {}
            found = differences(dict(record.get("settings", {})), new)
            if record.get("revision") != measurement.revision:
                found["revision"] = (record.get("revision"), measurement.revision)
            if nearest is None or len(found) < len(nearest):
                nearest = found
        if nearest is None:
            return "not measured yet"
        return _named(nearest, {"revision": "revision"}, "")

    def _why_trained(self, run: Run) -> str:
        own = self._by_place.get(f"{run.size}/{run.cell}/seed{run.seed}")
        if own:
            return _named(self._nearest(run, own)[1], REVISIONS, "changed: ")
        if same := self._by_hash.get(run.spec.hash):
            return f"new here; finished as {same.path.parent}"
        # All seeds of a cell are as near; a thousand runs are not compared with a thousand records.
        key = canonical(run.spec.identity() | {"seed": None})
        if key not in self._near:
            self._near[key] = self._nearest(run, self.records)
        nearest, found = self._near[key]
        if nearest is None:
            return "new"
        if found.keys() <= {"seed"}:
            return "new seed"
        found = {k: values for k, values in found.items() if k != "seed"}
        # The nearest of them all shares little with a run of another size or corpus.
        near = f"nearest {nearest.name.rpartition('/')[0]}: "
        return f"new ({_named(found, REVISIONS, near)})" if len(found) <= 4 else "new"

    def _nearest(
        self, run: Run, records: Sequence[Record]
    ) -> tuple[Record | None, dict[str, tuple[Any, Any]]]:
        """The finished run that differs in the fewest keys, and those keys (old, new)."""
        best: Record | None = None
        found: dict[str, tuple[Any, Any]] = {}
        spec = run.spec.identity()
        for record in records:
            keys = differences(record.spec, spec)
            # The seed tells runs of a cell apart, not cells.
            if best is None or len(keys.keys() - {"seed"}) < len(found.keys() - {"seed"}):
                best, found = record, keys
        return best, found


def _named(found: dict[str, tuple[Any, Any]], revisions: dict[str, str], lead: str) -> str:
    """Differences, with raised revisions in words."""
    raised = [
        f"{word} raised {old} -> {new}"
        for key, word in revisions.items()
        if key in found
        for old, new in [found[key]]
    ]
    rest = {key: values for key, values in found.items() if key not in revisions}
    return "; ".join(raised + ([lead + shown(rest)] if rest else [])) or "its record is unreadable"
