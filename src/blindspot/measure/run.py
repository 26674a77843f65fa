"""`blindspot measure`: all measurements of one run, from one load of its weights.

Each measurement is a module with `FILES` (name of a CSV to its columns, which the module's
docstring explains) and `measure(subject)`, which gives the rows of each.
"""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from blindspot import provenance
from blindspot.config.revisions import MEASUREMENT_REVISION
from blindspot.config.runfiles import WEIGHTS
from blindspot.config.spec import Measurement, RunSpec
from blindspot.data.tokens import Tokens
from blindspot.files import sha256_file, to_csv, write_record, write_text
from blindspot.lm import device as devices
from blindspot.measure import baselines, clamp, exits, gradients, halting, load, norms, updates
from blindspot.measure.subject import Subject

MEASUREMENTS = (baselines, exits, norms, gradients, updates, clamp, halting)


@dataclass
class Job:
    """What to measure, with what settings, and where the results belong."""

    name: str
    spec: RunSpec
    settings: Measurement
    tokens: Path
    state: Path
    #: Folder of the CSVs (`names.FILES`) and, last, measure.json.
    out: Path
    device: str = "auto"
    threads: int = 1


def measure(job: Job) -> None:
    """Measure a run, whatever its training precision in float32 or better, and write the results.

    `measure.json` pins each CSV by its SHA-256 and says how many seconds each measurement took.
    """
    begun = provenance.now()
    torch.set_num_threads(job.threads)
    # TensorFloat would put ten bits where float32 is promised.
    torch.set_float32_matmul_precision("highest")
    device = devices.resolve(job.device)
    tokens = Tokens.open(job.tokens)
    model = load.model(job.spec, job.state / WEIGHTS, device, tokens)
    subject = Subject(model, job.spec, job.settings, tokens)
    seconds: dict[str, float] = {}
    digests: dict[str, str] = {}
    for module in MEASUREMENTS:
        name = module.__name__.rpartition(".")[2]
        started = time.perf_counter()
        for file, rows in module.measure(subject).items():
            path = job.out / f"{file}.csv"
            write_text(path, to_csv(module.FILES[file], rows))
            digests[path.name] = sha256_file(path)
        seconds[name] = round(time.perf_counter() - started, 3)
        print(f"{job.name}: measured {name} in {seconds[name]:.1f} s", file=sys.stderr, flush=True)
    write_record(
        job.out / "measure.json",
        {
            "run": job.name,
            "hash": job.spec.hash,
            "revision": MEASUREMENT_REVISION,
            "settings": job.settings.identity(),
            "tokens_sha256": tokens.digest,
            "files": digests,
            "provenance": provenance.collect()
            | {
                "device": provenance.device_name(device),
                "threads": job.threads,
                "precision": "float32, float64 for gradients and updates",
                "seconds": seconds,
                "started": begun,
                "finished": provenance.now(),
            },
        },
    )
