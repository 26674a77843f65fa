"""`blindspot forecast`: what would run and why, its FLOPs, hours, price and wall time.

Hours are those of one device (a GPU; a core where the study runs on the CPU) and hold everything a
job does: start of the process, training with its validation passes, measurement, throughput.
Imports neither torch nor pandas.
"""

import importlib.util
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path

from rich.console import Group, RenderableType
from rich.markup import escape

from blindspot import provenance
from blindspot.config.study import Study
from blindspot.files import to_csv, write_text
from blindspot.plan import show
from blindspot.plan.estimate import Estimator
from blindspot.plan.planning import Plan, Planned
from blindspot.plan.show import duration, hours
from blindspot.publish import catalogue

#: Core-seconds of a table, figure or the like, in starts of a training process (both are imports,
#: for the most part), and seconds of the report.
PUBLISH, REPORT = 1.4, 10.0
#: Seconds before the first training where there are no token files: corpus and tokens of the demo.
DATA = 15.0

#: In the table, what needs the number of tokens before it is known.
UNKNOWN = show.UNKNOWN
#: Shares of the peak that hours are given for beside the assumed one.
SHARES = (0.2, 0.5)

COLUMNS = ("size", "cell", "runs", "cached", "to_train", "to_measure", "impossible", "why",
           "flops_per_run", "flops", "train_hours", "measure_hours", "cost")  # fmt: skip


@dataclass
class Row:
    """Runs of one size and cell. None: what needs the number of tokens, before it is known."""

    size: str
    cell: str
    planned: Sequence[Planned]
    why: str
    flops_per_run: float | None
    flops: float | None
    train: float | None
    measure: float

    def count(self, action: str) -> int:
        return sum(p.action == action for p in self.planned)

    @property
    def seconds(self) -> float | None:
        return None if self.train is None else self.train + self.measure


class Forecast:
    """All that is said about a study before it runs. `cores` is for studies on the CPU."""

    def __init__(self, study: Study, cores: int) -> None:
        self.study, self.cores = study, cores
        self.plan = Plan(study)
        self.estimator = Estimator(study, self.plan.records)
        self.reasons = True

    @property
    def unit(self) -> str:
        """What hours are of."""
        return "GPU" if self.estimator.kind == "cuda" else "core"

    def rows(self) -> list[Row]:
        """One row a size and cell, in the order of the config."""
        groups: dict[tuple[str, str], list[Planned]] = {}
        for one in self.plan.runs:
            groups.setdefault((one.run.size, one.run.cell), []).append(one)
        return [self._row(size, cell, group) for (size, cell), group in groups.items()]

    def _row(self, size: str, cell: str, group: Sequence[Planned]) -> Row:
        e, spec = self.estimator, group[0].run.spec
        flops = e.flops(spec)
        todo = [p for p in group if p.action == "train"]
        train = _sum([e.train(spec, p.left, self.gpus(p)) for p in todo])
        measure = sum(e.measure(spec, p.measurements) for p in group if p.measures)
        share = sum(p.left for p in todo)
        return Row(
            size,
            cell,
            group,
            self.plan.why(group) if self.reasons else "",
            flops,
            0.0 if not todo else None if flops is None else flops * share,
            train,
            measure,
        )

    def gpus(self, planned: Planned) -> int:
        """Devices that train a run together."""
        return self.study.config.sizes[planned.run.size].gpus

    def wall(self, rows: Sequence[Row], devices: int) -> float | None:
        """Seconds until all is done on so many devices (GPUs or cores), by the better of two
        bounds: the work shared equally, and the longest chain of one run."""
        e = self.estimator
        chains, spent = [], []
        for row in rows:
            for p in row.planned:
                if p.action in ("train", "measure"):
                    spec, gpus = p.run.spec, self.gpus(p)
                    own = [e.train(spec, p.left, gpus)] if p.action == "train" else []
                    shared = [None if s is None else s / gpus for s in own]
                    after = [e.measure(spec, p.measurements)] if p.measures else []
                    spent.append(_sum([*own, *after]))
                    chains.append(_sum([*shared, *after]))
        timings = [e.throughput(size) for size in self.plan.untimed()]
        work, alone = _sum(spent), sum(timings)
        if work is None:
            return None
        # The last job leaves the other devices idle: half of one, on average.
        ragged = 0.5 * max([0.0, *(c for c in chains if c)]) if len(chains) > devices else 0.0
        total = max([work / devices + ragged * (devices - 1) / devices, *(c for c in chains if c)])
        # On a CPU a timing has all cores to itself; on GPUs it is a job like others.
        total += alone if e.kind == "cpu" else alone / devices
        if chains or timings:
            total += self._published()
            if not (self.study.tokens / "tokens.json").exists():
                total += DATA
        return total

    def _published(self) -> float:
        kinds = (catalogue.TABLES, catalogue.FIGURES)
        number = sum(len(catalogue.of(items, self.study.config)) for items in kinds)
        number += 3  # collect, claims, page
        return number * PUBLISH * self.estimator.start / max(1, self.cores) + REPORT

    def cost(self, seconds: float | None) -> float | None:
        """Price of device time at the config's rate; None where either is not known."""
        rate = self.study.config.forecast.rate
        return None if rate is None or seconds is None else rate * seconds / 3600

    # Calibration.

    def wants_calibration(self) -> bool:
        """Whether hours would be surer after a calibration that this machine can do."""
        e = self.estimator
        todo = [p.run.spec for p in self.plan.runs if p.action == "train"]
        if importlib.util.find_spec("torch") is None:
            return False
        # A GPU that is asked for by name need not be the one here.
        asked = self.study.config.forecast.device
        if e.kind == "cuda" and (asked is not None or not provenance.has_gpu()):
            return False
        return not all(e.exact(spec) for spec in todo)

    # What is shown.

    def csv(self, rows: Sequence[Row]) -> str:
        """CSV text with one line a row."""
        table: list[list[object]] = []
        for row in rows:
            times = [None if s is None else s / 3600 for s in (row.train, row.measure)]
            counts = [row.count(a) for a in ("cached", "train", "measure", "impossible")]
            numbers = [row.flops_per_run, row.flops, *times, self.cost(row.seconds)]
            shown = ["" if x is None else f"{x:.10g}" for x in numbers]
            table.append([row.size, row.cell, len(row.planned), *counts, row.why, *shown])
        return to_csv(COLUMNS, table)

    def render(self, rows: Sequence[Row]) -> RenderableType:
        """The table, the total, and what the hours rest on."""
        currency = self.study.config.forecast.currency
        priced = self.study.config.forecast.rate is not None
        numbers = ["Cached", "Train", "Measure", "FLOPs", "Hours", *([currency] if priced else [])]
        table = show.table(("Size", "Cell", *numbers, "Why"), numbers, ("Why",))
        for row in rows:
            impossible = row.count("impossible")
            todo = row.count("train") + row.count("measure") + impossible
            cells = [
                row.size,
                row.cell,
                _count(row.count("cached")),
                _count(row.count("train")),
                _count(row.count("train") + row.count("measure"))
                + (f" ({impossible} impossible)" if impossible else ""),
                _flops(row.flops) if todo else "",
                hours(row.seconds) if todo else "",
            ]
            cells += [_price(self.cost(row.seconds)) if todo else ""] if priced else []
            table.add_row(*cells, row.why)
        # A word in brackets would be read as markup.
        return Group(table, "", *map(escape, (self.total(rows), *self.notes(rows))))

    def total(self, rows: Sequence[Row]) -> str:
        """Two lines: how many jobs and FLOPs; device hours, price, and how long it takes."""
        counts = {a: sum(row.count(a) for row in rows) for a in ("cached", "train", "measure")}
        timings = self.plan.untimed()
        name = f"Forecast for study {self.study.config.study}: "
        if not counts["train"] + counts["measure"] + len(timings):
            return f"{name}nothing to train or to measure, {counts['cached']} runs are there"
        jobs = f"{counts['train']} trainings, {counts['train'] + counts['measure']} measurements"
        what = f"{jobs}, {len(timings)} timings"
        seconds = self.seconds(rows)
        if seconds is None:
            told = "FLOPs and hours are told once the token files are there (snakemake -c1 tokens)"
            return f"{name}{what}\n{told}"
        unit = self.unit
        what += f"; {_flops(_sum([r.flops for r in rows]))} FLOPs"
        parts = [f"{hours(seconds)} {unit}-hours{self._assumption()}"]
        if (cost := self.cost(seconds)) is not None:
            parts.append(f"{_price(cost)} {self.study.config.forecast.currency}")
        devices = self.study.config.forecast.gpus if unit == "GPU" else (self.cores,)
        walls = [(n, self.wall(rows, n)) for n in devices]
        times = [f"{duration(w)} on {n} {unit}{'s' if n > 1 else ''}" for n, w in walls if w]
        return f"{name}{what}\n" + "; ".join([*parts, f"about {', '.join(times)}"])

    def seconds(self, rows: Sequence[Row]) -> float | None:
        """Device-seconds of all that is to do."""
        timings = [self.estimator.throughput(size) for size in self.plan.untimed()]
        return _sum([*(row.seconds for row in rows), *timings])

    def _assumption(self) -> str:
        """What hours of a GPU rest on where none was timed, and what they would be at other shares
        of its peak."""
        e = self.estimator
        if e.kind == "cpu" or not e.assumes:
            return ""
        others = []
        for share in SHARES:
            other = copy(self)
            other.estimator = Estimator(self.study, self.plan.records, share)
            others.append(f"{hours(other.seconds(other.rows()))} at {share:.0%}")
        share = self.study.config.forecast.share
        return f" at an assumed {share:.0%} of an {e.gpu}'s peak ({', '.join(others)})"

    def notes(self, rows: Sequence[Row]) -> list[str]:
        """What the numbers rest on, and why some are not there."""
        e, notes = self.estimator, []
        if e.bases:
            notes.append(f"Hours rest on {'; '.join(e.bases)}.")
        if e.bases and e.assumes:
            where = "a machine with the study's GPU" if e.kind == "cuda" else "this machine"
            notes.append(
                f"Nothing was timed on such a device at this precision. To time it, on {where} "
                f"with blindspot[train]: `blindspot calibrate` (same --configfile), then forecast "
                f"again."
            )
        if any(row.flops_per_run is None for row in rows):
            notes.append(
                "No FLOPs and hours: the number of steps follows from epochs and the number of "
                "tokens, which is known once the token files are there (`snakemake -c1 tokens`)."
            )
        elif "train" in e.splits and set(e.splits) == {"train"}:
            notes.append(
                f"Assumes {e.splits['train']:,} training tokens until the files are there."
            )
        return notes

    def write(self, rows: Sequence[Row]) -> Path:
        """Write `results/<study>/forecast.csv`; returns where."""
        path = self.study.results / "forecast.csv"
        write_text(path, self.csv(rows))
        return path


def _sum(values: Sequence[float | None]) -> float | None:
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def _count(n: int) -> str:
    return str(n) if n else ""


def _flops(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2e}".replace("e+", "e")


def _price(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.2f}"
