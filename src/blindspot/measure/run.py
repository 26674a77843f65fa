"""`blindspot measure`: all measurements of one run, from one load of its weights."""

from dataclasses import dataclass
from pathlib import Path

import torch

from blindspot import device as devices
from blindspot import provenance
from blindspot.checkpoint import WEIGHTS
from blindspot.files import write_json, write_text
from blindspot.measure import exits, load, norms
from blindspot.revisions import MEASUREMENT_REVISION
from blindspot.spec import Measurement, RunSpec
from blindspot.tokens import Tokens
from blindspot.trajectory import to_csv

SPLITS = ("validation", "test")


@dataclass
class Job:
    """What to measure, with what settings, and where the results belong."""

    name: str
    spec: RunSpec
    settings: Measurement
    tokens: Path
    state: Path
    #: Folder of exits.csv, norms.csv and, last, measure.json.
    out: Path
    device: str = "auto"
    threads: int = 1


def measure(job: Job) -> None:
    """Measure a run in float32, whatever its training precision, and write the results."""
    torch.set_num_threads(job.threads)
    device = devices.resolve(job.device)
    model = load.model(job.spec, job.state / WEIGHTS, device)
    data = Tokens.open(job.tokens)
    loops, size = job.spec.model.loops, job.spec.batch
    exit_rows: list[list] = []
    for split in SPLITS:
        counts = data.meta["splits"][split]
        nll, tokens = exits.nll_by_depth(
            model, data.split(split), loops, job.settings.min_context, size
        )
        exit_rows += [
            exits.row(split, "full", k, nll[k - 1], tokens, counts["words"], counts["bytes"])
            for k in range(1, loops + 1)
        ]
    found = norms.token_norms(
        model, data.split("validation"), loops, job.settings.norm_tokens, size
    )
    norm_rows = norms.rows("validation", found, job.spec.model.d_model)
    write_text(job.out / "exits.csv", to_csv(exits.COLUMNS, exit_rows))
    write_text(job.out / "norms.csv", to_csv(norms.COLUMNS, norm_rows))
    write_json(
        job.out / "measure.json",
        {
            "run": job.name,
            "hash": job.spec.hash,
            "revision": MEASUREMENT_REVISION,
            "settings": job.settings.identity(),
            "provenance": provenance.collect()
            | {
                "device": provenance.device_name(device),
                "threads": job.threads,
                "precision": "float32",
                "finished": provenance.now(),
            },
        },
    )
