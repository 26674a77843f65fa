"""A maker of result folders, as runs and measurements leave them, with chosen values.

`PAPER` holds the study's published values (and plausible ones where nothing is published);
`TOY` what a very small model shows, with dead exits of perplexity 2e6. Noise over seeds is drawn
from a generator that is a function of the run's name.
"""

import itertools
import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import synthetic_probes as probes
from blindspot import declared
from blindspot.config.flops import parameters
from blindspot.config.revisions import THROUGHPUT_REVISION
from blindspot.config.runfiles import RunFiles
from blindspot.config.study import Run, Study
from blindspot.declared.columns import COUNT, INT, TEXT, File
from blindspot.files import sha256_file, write_record
from synthetic_probes import Probe

ROOT = Path(__file__).parent.parent
CELLS = (
    "terminal-rms",
    "terminal-raw",
    "perloop-rms",
    "perloop-raw",
    "perloop-finalnorm",
    "terminal-rms-penalty",
    "perloop-rms-penalty",
)
PENALTY = {"kind": "mean-square", "weight": 0.01}
SMALL_INIT = {
    "perloop-rms-std0.02": {"loss": "per-loop", "readout": "rms", "init_std": 0.02},
    "perloop-raw-std0.02": {"loss": "per-loop", "readout": "raw", "init_std": 0.02},
    "perloop-rms-penalty-std0.02": {
        "loss": "per-loop", "readout": "rms", "penalty": PENALTY, "init_std": 0.02
    },
    "terminal-rms-std0.02": {"loss": "terminal", "readout": "rms", "init_std": 0.02},
}  # fmt: skip
#: Cells of studies/init.yaml.
INIT = [name for cell in SMALL_INIT for name in (cell.removesuffix("-std0.02"), cell)]
EXTRA = SMALL_INIT | {
    "perloop-rms-interloop": {"loss": "per-loop", "readout": "rms", "interloop": "rms"},
}
COUNTS = {"validation": (240_000, 110_000, 560_000), "test": (270_000, 124_000, 630_000)}
PROVENANCE = {
    "commit": "0123abc",
    "dirty": False,
    "versions": {"torch": "2.13.0"},
    "device": "NVIDIA H200",
    "threads": 1,
    "started": "2026-01-01T00:00:00+00:00",
    "finished": "2026-01-01T01:00:00+00:00",
    "seconds": 3600.0,
    "tokens_per_s": 1e5,
    "command": "blindspot train",
}


@dataclass(frozen=True)
class Values:
    """Perplexity at k = 1.., norm at k = 0.., tokens/s at k = 1.., by cell; and the spreads."""

    ppl: Mapping[str, Sequence[float]]
    norm: Mapping[str, Sequence[float]]
    speed: Sequence[float]
    #: Factor on (perplexity, norm) by size.
    scale: Mapping[str, tuple[float, float]]
    ppl_sd: float = 0.004
    norm_sd: float = 0.03
    #: Of each exit by itself, nats.
    exit_sd: float = 2e-4
    #: Factor on perplexities under protocol `paper`.
    table: float = 5.35 / 4.97
    #: Perplexity of a unigram model on validation.
    unigram: float = 420.0
    probes: Mapping[str, Probe] = field(default_factory=lambda: probes.PAPER)


PAPER = Values(
    ppl={
        "terminal-rms": [249.6, 61.0, 14.2, 4.53],
        "terminal-raw": [231.0, 48.0, 12.1, 4.84],
        "terminal-rms-penalty": [190.0, 40.0, 11.0, 4.80],
        "perloop-rms": [4.98, 4.95, 4.95, 4.97],
        "perloop-raw": [4.68, 4.55, 4.54, 4.55],
        "perloop-finalnorm": [4.70, 4.57, 4.56, 4.55],
        "perloop-rms-penalty": [4.67, 4.52, 4.51, 4.53],
        "perloop-rms-interloop": [4.72, 4.60, 4.58, 4.58],
    },
    norm={
        "terminal-rms": [39, 180, 420, 790, 1250],
        "terminal-raw": [39, 31, 29, 30, 33],
        "terminal-rms-penalty": [39, 33, 27, 24, 22],
        "perloop-rms": [39, 14000, 28100, 42100, 56051],
        "perloop-raw": [39, 22, 19, 18, 17],
        "perloop-finalnorm": [39, 36, 48, 63, 83],
        "perloop-rms-penalty": [39, 41, 38, 36, 34],
        "perloop-rms-interloop": [39, 95, 92, 91, 91],
    },
    speed=[80_000, 41_000, 28_000, 21_000],
    scale={"44m": (1.13, 0.7), "129m": (1.0, 1.0)},
)
TOY = Values(
    ppl={
        "terminal-rms": [2.1e6, 4.2e5, 3.1e3, 61.0],
        "terminal-raw": [5.0e5, 2.0e4, 900.0, 70.0],
        "terminal-rms-penalty": [3.0e4, 1.5e3, 260.0, 66.0],
        "perloop-rms": [59.0, 59.0, 59.2, 59.6],
        "perloop-raw": [73.0, 64.8, 66.0, 68.8],
        "perloop-finalnorm": [77.7, 69.6, 70.8, 73.3],
        "perloop-rms-penalty": [64.2, 63.0, 64.1, 66.6],
        "perloop-rms-interloop": [60.0, 59.5, 59.6, 59.8],
        "perloop-rms-std0.02": [32.2, 30.6, 30.5, 30.9],
        "perloop-raw-std0.02": [31.1, 30.2, 30.4, 31.3],
        "perloop-rms-penalty-std0.02": [32.0, 30.5, 30.4, 30.7],
        "terminal-rms-std0.02": [9.0e4, 2.0e3, 210.0, 33.0],
    },
    norm={
        "terminal-rms": [14, 260, 330, 390, 440],
        "terminal-raw": [14, 9, 6, 4.4, 4.0],
        "terminal-rms-penalty": [14, 26, 23, 20, 18],
        "perloop-rms": [14, 414, 426, 437, 448],
        "perloop-raw": [14, 4.0, 3.9, 4.0, 4.1],
        "perloop-finalnorm": [14, 7.0, 7.1, 7.5, 7.8],
        "perloop-rms-penalty": [14, 23, 22, 21, 19],
        "perloop-rms-interloop": [14, 60, 58, 57, 57],
        "perloop-rms-std0.02": [0.3, 34, 46, 58, 69],
        "perloop-raw-std0.02": [0.3, 34, 36, 39, 41],
        "perloop-rms-penalty-std0.02": [0.3, 21, 20, 20, 19],
        "terminal-rms-std0.02": [0.3, 30, 41, 50, 58],
    },
    speed=[9_000, 4_700, 3_200, 2_400],
    scale={"44m": (1.0, 1.0), "129m": (0.85, 1.4)},
    ppl_sd=0.01,
)


def make_study(
    folder: Path,
    sizes: Sequence[str] = ("44m", "129m"),
    cells: Sequence[str] = CELLS,
    seeds: Sequence[int] = (42, 101, 202),
    steps: int = 2000,
    **override: Any,
) -> Study:
    """The paper's study, shortened, with its results under `folder`."""
    return Study.load(
        ROOT / "config.yaml",
        override={
            "results": str(folder),
            "sizes": dict.fromkeys(sizes),
            "cells": {name: EXTRA.get(name) for name in cells},
            "grid": {"seeds": list(seeds)},
            "training": {"steps": steps, "epochs": None, "log_every": 50, "validate_every": 200},
            **override,
        },
    )


def write(
    study: Study,
    values: Values = PAPER,
    skip: Callable[[Run], bool] = lambda run: False,
    deeper: Sequence[float] = (),
    untimed: Sequence[str] = (),
) -> None:
    """Write the result folders of every run that `skip` does not leave out.

    `deeper`: factors on the last loop's perplexity for loops beyond the trained ones.
    """
    for run in study.runs:
        if not skip(run):
            write_run(study, run, values, deeper)
    for size in study.config.sizes:
        if size not in untimed:
            write_throughput(study, size, values)
    pin(study.results)


def pin(results: Path) -> None:
    """Let every record below `results` pin the files beside it and seal itself, as they are now."""
    for record in [p for p in results.rglob("*.json") if "collected" not in p.parts]:
        timing = record.parent.name == "throughput"
        files = [record.with_suffix(".csv")] if timing else sorted(record.parent.glob("*.csv"))
        value = json.loads(record.read_text())
        value["files"] = {file.name: sha256_file(file) for file in files}
        write_record(record, value)


def _draw(run: Run, values: Values) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(zlib.crc32(f"{run.size}/{run.cell}/{run.seed}".encode()))
    by_ppl, by_norm = values.scale.get(run.size, (1.0, 1.0))
    ppl = np.array(values.ppl[run.cell]) * by_ppl * math.exp(rng.normal(0, values.ppl_sd))
    norm = np.array(values.norm[run.cell], dtype=float)
    norm[1:] *= by_norm * math.exp(rng.normal(0, values.norm_sd))
    return np.log(ppl) + rng.normal(0, values.exit_sd, len(ppl)), norm


def write_run(study: Study, run: Run, values: Values, deeper: Sequence[float] = ()) -> None:
    """One run's folder: run.json, trajectory.csv, timing.csv, measure/<name>-<hash8>/."""
    folder = study.results / "runs" / run.name
    folder.mkdir(parents=True)
    ce, norm = _draw(run, values)
    spec = run.spec
    steps = spec.training.steps or 2000
    per_step = spec.batch * spec.windows.length
    record = {
        "name": run.name,
        "hash": spec.hash,
        "revision": spec.revision,
        "spec": spec.identity(),
        "steps": steps,
        "tokens_seen": steps * per_step,
        "parameters": parameters(spec.model),
        "data": {"tokens": {"train": 1}},
        "tokens_sha256": "a" * 64,
        "provenance": PROVENANCE | {"precision": spec.training.precision},
    }
    (folder / "run.json").write_text(json.dumps(record))
    _trajectory(run, ce, norm, steps, per_step).to_csv(folder / "trajectory.csv", index=False)
    at = np.arange(200, steps + 1, 200)
    timing = pd.DataFrame({"step": at, "seconds": at * 0.1, "tokens_per_s": 1e5})
    timing.to_csv(folder / "timing.csv", index=False)

    tables = {"baselines": _baselines(spec.model.vocab_size, values.unigram)}
    exits = []
    last = {"trained_k": len(ce), "unk_rate": 0.0, "comparable": 1}
    for split, (tokens, words, size) in COUNTS.items():
        extended = [*ce, *(ce[-1] + math.log(factor) for factor in deeper)]
        for k, value in enumerate(extended, start=1):
            nll = (value + (0.01 if split == "test" else 0.0)) * tokens
            lead = {"split": split, "protocol": "full", "k": k}
            exits.append(lead | derived(nll, tokens, words, size) | last)
            if k <= len(ce):
                # Words and bytes are not known. Values are those of Figure 4; Table 2's are higher.
                empty = dict.fromkeys(["words", "bytes", "word_ppl", "bits_per_byte"], "")
                for protocol, more in (("paper", values.table), ("release-figure", 1.0)):
                    part = derived((value + math.log(more)) * 40_960, 40_960, 1, 1)
                    lead = {"split": split, "protocol": protocol, "k": k}
                    exits.append(lead | part | empty | last)
    tables["exits"] = pd.DataFrame(exits)

    quantiles = {"p50": 0.95, "p90": 1.3, "p99": 1.9, "p999": 2.6, "max": 4.0}
    probe = values.probes.get(run.cell, Probe())
    rows = [
        {"split": "validation", "k": k, "tokens": 65536, "l2_mean": s, "l2_std": 0.3 * s}
        | {f"l2_{name}": factor * s for name, factor in quantiles.items()}
        | {"rms_mean": s / math.sqrt(spec.model.d_model)}
        | {"log_kurtosis": 0.5, "hill": probe.hill, "mass_top1": 0.05, "half_mass": 0.4}
        for k, s in enumerate(norm)
    ]
    tables["norms"] = pd.DataFrame(rows)
    tables |= probes.tables(run, probe, ce, norm)
    for measurement in declared.MEASUREMENTS.values():
        path = RunFiles(study).record(run.name, measurement.name)
        path.parent.mkdir(parents=True)
        for file in measurement.files:
            table = tables[file.name] if file.name in tables else plausible(file, run)
            table.to_csv(path.with_name(file.csv), index=False, float_format="%.17g")
        done = {"measurement": measurement.name, "run": run.name, "hash": spec.hash}
        done |= {"revision": measurement.revision, "provenance": PROVENANCE}
        done |= {"settings": measurement.chosen(study.config.measurement)}
        path.write_text(json.dumps(done))


def plausible(file: File, run: Run) -> pd.DataFrame:
    """Rows of a file that this module knows nothing of but its declaration: each combination of its
    words, each depth, and numbers between 0 and 1 that differ by depth."""
    loops = run.spec.model.loops
    values = {c.name: c.values for c in file.columns if c.name in file.keys and c.values}
    if "k" in file.keys:
        values["k"] = tuple(range(file.depths or 0, loops + 1))
    rows = []
    for combination in itertools.product(*values.values()):
        row: dict[str, Any] = dict(zip(values, combination, strict=True))
        for at, column in enumerate(c for c in file.columns if c.name not in row):
            number = max(column.low or 0, 0) + (1 + at) / (2 + at + row.get("k", 0))
            whole = loops if column.name == "trained_k" else 1
            row[column.name] = whole if column.type in (INT, COUNT) else number
            if column.type == TEXT:
                row[column.name] = (column.values or ("some",))[0]
        rows.append(row)
    return pd.DataFrame(rows)[list(file.header)]


def _baselines(vocab: int, unigram: float) -> pd.DataFrame:
    rows = []
    for split, (tokens, _, _) in COUNTS.items():
        for name, ppl in (("uniform", vocab), ("unigram", unigram)):
            nll = math.log(ppl) * tokens
            rows.append(
                {"split": split, "baseline": name, "tokens": tokens, "nll": nll}
                | {"ce": nll / tokens, "ppl": math.exp(nll / tokens)}
            )
    return pd.DataFrame(rows)


def derived(nll: float, tokens: int, words: int, size: int) -> dict[str, float]:
    """The columns of exits.csv that follow from one sum of nats and the counts."""

    def ppl(x: float) -> float:
        return math.exp(x) if x < 709 else math.inf

    return {
        "tokens": tokens,
        "words": words,
        "bytes": size,
        "nll": nll,
        "ce": nll / tokens,
        "ppl": ppl(nll / tokens),
        "word_ppl": ppl(nll / words),
        "bits_per_byte": nll / size / math.log(2),
    }


def _trajectory(
    run: Run, ce: np.ndarray, norm: np.ndarray, steps: int, per_step: int
) -> pd.DataFrame:
    rng = np.random.default_rng(run.seed)
    rows = []
    spec = run.spec.training
    for split, every in (("train", spec.log_every), ("validation", spec.validate_every)):
        for step in range(every, steps + 1, every):
            done = step / steps
            noise = rng.normal(0, 0.02) if split == "train" else 0.0
            for k, s in enumerate(norm):
                start = 30.0 + 4 * k
                state = norm[0] if k == 0 else start + (s - start) * done**0.8
                loss: Any = ""
                if k:
                    last = ce[k - 1]
                    loss = max(last + (9.9 - last) * math.exp(-9 * done**0.5) + noise, 0.01)
                    if split == "train" and run.spec.objective.loss == "terminal" and k < len(ce):
                        loss = ""
                rows.append(
                    {
                        "step": step,
                        "tokens": step * per_step,
                        "split": split,
                        "k": k,
                        "ce": loss,
                        "norm_mean": state,
                        "norm_p50": 0.95 * state,
                        "norm_p99": 1.9 * state,
                        "norm_max": 3 * state,
                        "grad_norm": 0.8 if split == "train" and k == 0 else "",
                    }
                )
    return pd.DataFrame(rows)


def write_throughput(study: Study, size: str, values: Values) -> None:
    """`throughput/<size>-<hash8>.csv`; architectures differ by a percent or less."""
    c = study.config
    rows = []
    for i, (label, spec) in enumerate(study.architectures(size).items()):
        for k, speed in enumerate(values.speed[: spec.loops], start=1):
            speed = speed * (2.4 if size == "44m" else 1.0) * (1 - 0.004 * i)
            rows.append(
                {
                    "architecture": label,
                    "k": k,
                    "batch": c.throughput.batch,
                    "context": c.windows.length,
                    "precision": c.training.precision,
                    "device": "NVIDIA H200",
                    "threads": 1,
                    "repeats": c.throughput.repeats,
                    "tokens_per_s": speed,
                    "tokens_per_s_q25": 0.985 * speed,
                    "tokens_per_s_q75": 1.01 * speed,
                    "flops_per_token": 1e8 * k + 2e7,
                }
            )
    path = study.results / "throughput" / f"{size}-{study.throughput_hash(size)}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(path, index=False)
    record = {"revision": THROUGHPUT_REVISION, "provenance": PROVENANCE}
    path.with_suffix(".json").write_text(json.dumps(record))
