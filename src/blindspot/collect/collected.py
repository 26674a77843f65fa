"""Reading what `collect` wrote, and the sentences that every caption and table note shares."""

from collections.abc import Container, Mapping, Sequence
from functools import cached_property
from math import exp, nan
from pathlib import Path
from typing import Any

import pandas as pd

from blindspot import declared
from blindspot.collect.csvfile import refuse
from blindspot.collect.stats import OUTLYING, t_factor
from blindspot.config.cells import but_initialization
from blindspot.declared import gathered
from blindspot.declared.columns import TEXT
from blindspot.errors import BlindspotError
from blindspot.files import read_json

#: What reads no context, and what it knows.
BASELINES = {"uniform": "all tokens alike", "unigram": "token frequencies of the training split"}
#: Columns of collected files that are text, whatever stands in them: a cell may be named `1e5`, a
#: commit be all digits.
TEXT_COLUMNS = {
    column.name
    for file in declared.COLLECTED.values()
    for column in (*gathered.LEAD, *file.columns)
    if column.type == TEXT
}
#: Files that have rows of some runs alone.
PARTIAL = {file.name for file in declared.COLLECTED.values() if file.partial}


def _condition(run: str) -> tuple[str, str, int]:
    """Size, cell and seed of a run, from its name."""
    size, cell, seed = run.split("/")
    return size, cell, int(seed.removeprefix("seed").split("-")[0])


def _by_cell(entries: Sequence[Mapping[str, str]]) -> dict[tuple[str, str], dict[int, str]]:
    """Reasons (up to a colon) by (size, cell) and seed."""
    found: dict[tuple[str, str], dict[int, str]] = {}
    for entry in entries:
        size, cell, seed = _condition(entry["run"])
        found.setdefault((size, cell), {})[seed] = entry["reason"].partition(":")[0]
    return found


def _named(conditions: set[tuple[str, str, int]]) -> str:
    size, cell, seed = min(conditions)
    rest = f" and {len(conditions) - 1} more" if len(conditions) > 1 else ""
    return f"{cell} at {size}, seed {seed}{rest}"


class Collected:
    """A folder that `collect` wrote; frames are read when asked for."""

    def __init__(self, folder: Path, only: Container[str] | None = None) -> None:
        self.folder = folder
        #: The cells that count, as if the study had no others; without it all.
        self.only = only

    @cached_property
    def study(self) -> dict[str, Any]:
        study = dict(read_json(self.folder / "study.json"))
        if self.only is None:
            return study
        runs = {
            key: [entry for entry in study.get(key, []) if _condition(entry["run"])[1] in self.only]
            for key in ("missing", "outliers")
        }
        cells = [cell for cell in study["cells"] if cell["name"] in self.only]
        return study | runs | {"cells": cells}

    def frame(self, name: str) -> pd.DataFrame:
        """`<name>.csv`. Sizes and cells are in the order of the config."""
        path = self.folder / f"{name}.csv"
        if not path.exists():
            raise BlindspotError(f"{path}: no such file; run `blindspot collect` first")
        header = pd.read_csv(path, nrows=0).columns
        text = [column for column in header if column in TEXT_COLUMNS]
        frame = pd.read_csv(
            path,
            dtype=dict.fromkeys(text, str),
            keep_default_na=False,
            # A cell may be named `nan`: what is text is missing only where nothing is written.
            na_values={column: [""] if column in text else ["", "nan"] for column in header},
        )
        if "run" in frame:
            if self.only is not None:
                frame = frame[[cell in self.only for cell in frame["cell"]]]
            self._check_runs(path, frame)
        return frame

    def _check_runs(self, path: Path, frame: pd.DataFrame) -> None:
        """Every planned run is in the file or listed as missing; no other one is in it."""
        listed = {entry["run"] for entry in self.study["missing"]}
        present = set(frame["run"].dropna())
        planned = {(*at, seed) for at, seeds in self.planned.items() for seed in seeds}
        expected = set(map(_condition, present | listed))
        if both := present & listed:
            raise refuse(path, f"has rows of {min(both)}, which study.json lists as missing")
        if stray := expected - planned:
            raise refuse(path, f"has rows of a run that is not planned: {_named(stray)}")
        if path.stem not in PARTIAL and (lost := planned - expected):
            raise refuse(path, f"has no rows of {_named(lost)}, and study.json does not say why")

    @cached_property
    def planned(self) -> dict[tuple[str, str], list[int]]:
        """The seeds that the config has by (size, cell): a size may have cells of its own, a cell
        seeds of its own."""
        found: dict[tuple[str, str], list[int]] = {}
        for size in self.study["sizes"]:
            # Results of before say neither.
            every = {cell["name"]: size["seeds"] for cell in self.study["cells"]}
            planned = size.get("planned", every)
            found |= {(size["name"], cell): planned[cell] for cell in every if cell in planned}
        return found

    @cached_property
    def loops_of(self) -> dict[str, int]:
        """The K that the runs of each cell were trained with."""
        shared = self.study["loops"]
        return {cell["name"]: int(cell.get("loops") or shared) for cell in self.study["cells"]}

    @property
    def deepest(self) -> int:
        """The greatest K of a cell."""
        return max(self.loops_of.values())

    @property
    def depth(self) -> str:
        """The K of all cells as a number; `K` where each has its own."""
        return str(self.deepest) if len(set(self.loops_of.values())) == 1 else "K"

    def own(self, frame: pd.DataFrame) -> pd.Series:
        """The K of each row's cell."""
        return frame["cell"].map(self.loops_of).astype("int64")

    def last(self, frame: pd.DataFrame, before: int = 0) -> pd.DataFrame:
        """Rows of the last loop that the row's cell was trained with, or of so many before it."""
        return frame[frame["k"] == self.own(frame) - before]

    def trained(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Rows of loops that the row's cell was trained with; deeper ones are extrapolation."""
        return frame[frame["k"] <= self.own(frame)]

    @cached_property
    def sizes(self) -> list[str]:
        """Sizes with at least one collected run."""
        present = set(self.runs["size"])
        return [size["name"] for size in self.study["sizes"] if size["name"] in present]

    @cached_property
    def cells(self) -> list[str]:
        """All cells of the config, collected or not: styles are given out over all of them."""
        return [cell["name"] for cell in self.study["cells"]]

    def cells_at(self, size: str) -> list[str]:
        """The cells that are planned at a size, collected or not."""
        return [cell for cell in self.cells if (size, cell) in self.planned]

    def rate(self, cell: str) -> float:
        """The learning rate that a cell is trained with."""
        (own,) = [c for c in self.study["cells"] if c["name"] == cell]
        shared = self.study["training"]["learning_rate"]
        return float((own.get("training") or {}).get("learning_rate") or shared)

    @cached_property
    def runs(self) -> pd.DataFrame:
        return self.frame("runs")

    @cached_property
    def failures(self) -> dict[tuple[str, str], dict[int, str]]:
        """By (size, cell) the seeds whose run ended without weights, and at which step."""
        failed = [e for e in self.study["missing"] if e["reason"].startswith("failed")]
        return _by_cell(failed)

    @cached_property
    def outliers(self) -> dict[tuple[str, str], dict[int, str]]:
        """By (size, cell) the seeds whose CE is far from the others', and how far."""
        return _by_cell(self.study.get("outliers", []))  # older ones have none

    @cached_property
    def initializations(self) -> dict[str, dict[str, str]]:
        """Cells that differ in nothing but their initialization and their learning rate: the first
        one's name -> label of the initialization -> cell. Of several cells of one initialization
        (a sweep of rates) the one of the first one's rate is its partner, else the first of them.
        Cells without a partner are left out."""
        shared = self.study["model"].get("init_std")
        groups: dict[str, dict[str, str]] = {}
        for cell in self.study["cells"]:
            group = groups.setdefault(but_initialization(cell), {})
            label, name = str(cell.get("init_std") or shared or "default"), cell["name"]
            partner = group.setdefault(label, name)
            rate = self.rate(next(iter(group.values())))
            if self.rate(name) == rate != self.rate(partner):
                group[label] = name
        return {next(iter(g.values())): g for g in groups.values() if len(g) > 1}

    def rates(self) -> str:
        """Which learning rates cells have beside each other whose initialization differs; empty
        where partners have one rate."""
        pairs = [
            ", ".join(f"{self.rate(cell):g} ({cell})" for cell in options.values())
            for options in self.initializations.values()
            if len({self.rate(cell) for cell in options.values()}) > 1
        ]
        return f"Learning rates differ, too: {'; '.join(pairs)}." if pairs else ""

    def exits(self) -> pd.DataFrame:
        """exits.csv of the validation split, protocol full."""
        e = self.frame("exits")
        return e[(e["split"] == "validation") & (e["protocol"] == "full")]

    @cached_property
    def _baselines(self) -> pd.DataFrame:
        return self.frame("baselines")

    def baseline(self, name: str, split: str = "validation") -> float:
        """CE in nats a token of what reads no context (`uniform`, `unigram`; measure/baselines.py).
        All runs of a study share their tokens, and so it."""
        b = self._baselines
        found = b.loc[(b["baseline"] == name) & (b["split"] == split), "ce"]
        return float(found.iloc[0]) if len(found) else nan

    def terminal(self, cell: str) -> bool:
        """Whether only the last loop of that cell was trained to predict."""
        return any(c["name"] == cell and c["loss"] == "terminal" for c in self.study["cells"])

    # Sentences.

    def about(self) -> str:
        """Study, corpus and tokenizer."""
        names = {"bpe": "byte-level BPE", "words": "word-level", "gpt2": "GPT-2's"}
        kind = names.get(self.study["tokenizer"]["kind"], "given")
        return (
            f"Study {self.study['study']}: corpus {self.study['corpus']}, {kind} tokenizer with "
            f"{self.study['tokenizer']['vocab_size']:,} entries, trained with {self._depths()}."
            + self._chosen()
        )

    def _chosen(self) -> str:
        """Which cells a size has, where it has not all of them."""
        sizes = [size["name"] for size in self.study["sizes"]]
        parts = [
            f" At {size} only {', '.join(self.cells_at(size))}."
            for size in sizes
            if len(self.cells_at(size)) < len(self.cells)
        ]
        return "".join(parts)

    def _depths(self) -> str:
        if self.depth != "K":
            return f"K = {self.depth}"
        by_loops: dict[int, list[str]] = {}
        for cell, loops in self.loops_of.items():
            by_loops.setdefault(loops, []).append(cell)
        parts = {loops: f"K = {loops} ({', '.join(by_loops[loops])})" for loops in sorted(by_loops)}
        # What most cells have goes without their names.
        *_, second, first = sorted(by_loops, key=lambda loops: len(by_loops[loops]))
        if len(by_loops[first]) > len(by_loops[second]):
            parts.pop(first)
            return f"K = {first}, but {', '.join(parts.values())}"
        return ", ".join(parts.values())

    def seeds(self) -> str:
        """How many seeds stand behind the numbers of each size."""
        counts = self.runs.groupby(["size", "cell"], sort=False).size()
        shown = []
        for size in self.sizes:
            low, high = counts[size].min(), counts[size].max()
            number = str(low) if low == high else f"{low} to {high}"
            shown.append(f"{number} at {size}")
        return f"Seeds a cell: {', '.join(shown)}."

    def interval(self) -> str:
        """Which interval is meant, and what it costs at this number of seeds."""
        numbers = self.runs.groupby(["size", "cell"]).size()
        several = sorted({int(n) for n in numbers if n > 1})
        if not several:
            return "One seed a cell: no interval can be given."
        widths = ", ".join(f"{t_factor(n):.2f} at n = {n}" for n in several)
        widths = widths.replace(" at", " standard deviations at", 1)
        text = (
            f"Intervals: 95 % t-interval of the mean over seeds, ± its half-width ({widths}); of "
            f"perplexities, norms and what else is positive and spreads by factors, [low, high], "
            f"mean and interval taken of logarithms."
        )
        return text + (" Where one seed stands alone, none is given." if numbers.min() == 1 else "")

    def scored(self, reads: Sequence[str]) -> list[str]:
        """How the tokens behind the files in `reads` were read, one sentence a way."""
        settings, parts = self.study["measurement"], []
        if "exits" in reads:
            text = (
                f"Protocol full: every token of the split scored once, with at least "
                f"{settings['min_context']} tokens of context but at its start."
            )
            counts = ((self.study.get("data") or {}).get("splits") or {}).get("validation") or {}
            if counts.get("unk"):
                # A tokenizer with an unknown token flatters perplexity: its share stands beside.
                share = counts["unk"] / counts["tokens"]
                text += f" Unknown words: {share:.1%} of validation tokens."
            parts.append(text)
        if "baselines" in reads:
            shown = [f"{exp(self.baseline(name)):,.1f} ({name})" for name in BASELINES]
            parts.append(f"Validation perplexity without any context: {', '.join(shown)}.")
        for measurement in declared.MEASUREMENTS.values():
            sample = measurement.sample
            if sample and {file.name for file in measurement.files} & set(reads):
                parts.append(
                    f"{sample.what} over up to {settings[sample.budget]:,} tokens in windows "
                    f"spread over the {sample.split} split."
                )
        return parts

    def machine(self) -> str:
        """What throughput was timed on."""
        devices = self.study["devices"]["throughput"]
        shown = ", ".join(sorted(set(devices.values())))
        return f"Throughput on {shown} at {self.study['precision']}." if devices else ""

    def untimed(self) -> str:
        """Sizes whose throughput is not there; empty when all are."""
        sizes = ", ".join(self.study["throughput_missing"])
        return f"Throughput is not measured at {sizes}." if sizes else ""

    def missing(self) -> str:
        """Which runs are not shown, and why; empty when none is missing."""
        gaps: dict[tuple[str, str, str], set[str]] = {}
        for entry in self.study["missing"]:
            size, cell, number = _condition(entry["run"])
            seed = str(number)
            # The step tells one failure from another; the whole message is in study.json.
            reason = entry["reason"].partition(":")[0]
            gaps.setdefault((cell, size, reason), set()).add(seed)
        # One phrase for all cells that miss the same: with many gaps a list of runs says nothing.
        phrases: dict[str, list[str]] = {}
        for (cell, size, reason), seeds in gaps.items():
            some = f"seed {', '.join(sorted(seeds, key=int))}"
            every = {str(planned) for planned in self.planned[size, cell]}
            which = "all seeds" if seeds == every else some
            phrases.setdefault(f"at {size} ({which}: {reason})", []).append(cell)
        parts = [f"{', '.join(cells)} {where}" for where, cells in phrases.items()]
        return f"Not shown: {'; '.join(parts)}." if parts else ""

    def outlying(self) -> str:
        """Which runs are far from the other seeds of their cell; empty when none is."""
        parts = [
            f"{cell} at {size} (" + "; ".join(f"seed {n}: {why}" for n, why in seeds.items()) + ")"
            for (size, cell), seeds in self.outliers.items()
        ]
        return (
            f"Outliers, more than {OUTLYING:g} nats apart, are in the means: {', '.join(parts)}."
            if parts
            else ""
        )

    def apart(self) -> list[str]:
        """What every caption ends with: runs that are not there, and those unlike the others."""
        return [self.missing(), self.outlying()]
