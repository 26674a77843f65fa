"""`blindspot measure`: what is missing of a run's measurements, from one load of its weights.

Each measurement is declared in `declared/` and computed by the module of its name beside this one,
whose `measure(subject)` gives the rows of its files.
"""

import importlib
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from blindspot import declared, provenance
from blindspot.config.runfiles import WEIGHTS
from blindspot.config.spec import Measurement, RunSpec
from blindspot.data.tokens import Tokens
from blindspot.declared.measurement import RECORD
from blindspot.files import sha256_file, to_csv, write_record, write_text
from blindspot.lm import device as devices
from blindspot.measure import load
from blindspot.measure.subject import Subject


@dataclass
class Job:
    """What to measure, with what settings, and where the results belong."""

    name: str
    spec: RunSpec
    settings: Measurement
    tokens: Path
    state: Path
    #: The run's folder of measurements; each has its own in there.
    out: Path
    device: str = "auto"
    threads: int = 1


def measure(job: Job) -> None:
    """Make the measurements that are missing and, last, the file that says that all are there.

    Whatever the precision of training, in float32 or better. A measurement's record pins each of
    its CSVs by its SHA-256. One that has a record is left as it is.
    """
    folders = declared.folders(job.settings)
    missing = [name for name, at in folders.items() if not (job.out / at / RECORD).exists()]
    if missing:
        _make(job, missing)
    record = {"run": job.name, "hash": job.spec.hash, "folders": sorted(folders.values())}
    write_record(job.out / declared.complete(folders), record)


def _make(job: Job, names: list[str]) -> None:
    torch.set_num_threads(job.threads)
    # TensorFloat would put ten bits where float32 is promised.
    torch.set_float32_matmul_precision("highest")
    device = devices.resolve(job.device)
    tokens = Tokens.open(job.tokens)
    model = load.model(job.spec, job.state / WEIGHTS, device, tokens)
    subject = Subject(model, job.spec, job.settings, tokens)
    origin = provenance.collect() | {
        "device": provenance.device_name(device),
        "threads": job.threads,
        "precision": "float32, float64 for gradients and updates",
    }
    for name in names:
        started, clock = provenance.now(), time.perf_counter()
        tables = compute(name, subject)
        out = job.out / declared.MEASUREMENTS[name].folder(job.settings)
        for file in declared.MEASUREMENTS[name].files:
            write_text(out / file.csv, to_csv(file.header, tables[file.name]))
        seconds = round(time.perf_counter() - clock, 3)
        times = {"seconds": seconds, "started": started, "finished": provenance.now()}
        write_record(out / RECORD, _record(job, name, out, tokens.digest, origin | times))
        print(f"{job.name}: measured {name} in {seconds:.1f} s", file=sys.stderr, flush=True)


def compute(name: str, subject: Subject) -> dict[str, list[list[Any]]]:
    """The rows of each file of a measurement. It may read the settings that it declares."""
    module = importlib.import_module(f"blindspot.measure.{name}")
    return dict(module.measure(subject.limited(name, declared.MEASUREMENTS[name].settings)))


def _record(
    job: Job, name: str, out: Path, tokens: str, origin: Mapping[str, Any]
) -> dict[str, Any]:
    measurement = declared.MEASUREMENTS[name]
    return {
        "measurement": name,
        "run": job.name,
        "hash": job.spec.hash,
        "revision": measurement.revision,
        "settings": measurement.chosen(job.settings),
        "tokens_sha256": tokens,
        "files": {file.csv: sha256_file(out / file.csv) for file in measurement.files},
        "provenance": dict(origin),
    }
