"""The result folder of a finished run: trajectory.csv, timing.csv and, last, run.json."""

from typing import Any

import torch

from blindspot import provenance
from blindspot.config.flops import parameters
from blindspot.data.tokens import Tokens
from blindspot.declared.training import TIMING, TRAJECTORY
from blindspot.files import sha256_text, to_csv, write_record, write_text
from blindspot.lm.device import resolve
from blindspot.training.job import Job

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]


def peak_memory(device: torch.device) -> int | None:
    """Peak memory of this process in bytes: of the GPU, or of the machine."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 if resource else None


def where(job: Job, ranks: int) -> dict[str, Any]:
    """What a run is trained on: `device`, `threads`, `execution`."""
    return {
        "device": provenance.device_name(resolve(job.device)),
        "threads": torch.get_num_threads(),
        "execution": job.execution.identity() | {"ranks": ranks},
    }


def publish(job: Job, meta: dict[str, Any], ranks: int) -> None:
    """Write the result folder from `meta`, which is saved beside the weights."""
    spec, out = job.spec, job.out
    data = Tokens.open(job.tokens, verify=False)
    # Of weights from before it was saved with them, what writes the results is the best guess.
    trained_on = meta.get("where") or where(job, ranks)
    execution = trained_on["execution"] | {"compiled": meta.get("compiled")}
    texts = {
        "trajectory.csv": to_csv(TRAJECTORY.header, meta["rows"]),
        "timing.csv": to_csv(TIMING.header, meta["timing"]),
    }
    for file, text in texts.items():
        write_text(out / file, text)
    seen = meta["step"] * spec.batch * spec.windows.length
    write_record(
        out / "run.json",
        {
            "name": job.name,
            "hash": spec.hash,
            "revision": spec.revision,
            "spec": spec.identity(),
            "steps": meta["step"],
            "skipped_steps": meta["skipped"],
            "tokens_seen": seen,
            "parameters": parameters(spec.model),
            "data": data.meta,
            "tokens_sha256": data.digest,
            "files": {file: sha256_text(text) for file, text in texts.items()},
            "provenance": provenance.collect()
            | {
                "device": trained_on["device"],
                "threads": trained_on["threads"],
                "precision": spec.training.precision,
                "execution": execution,
                "started": meta["started"],
                "finished": provenance.now(),
                "resumes": meta["resumes"],
                "started_over": meta.get("started_over"),
                "seconds": meta["seconds"],
                "compile_seconds": round(meta.get("compile_seconds", 0.0), 3),
                "peak_memory_bytes": meta["peak_memory"],
                "tokens_per_s": round(seen / max(meta["seconds"], 1e-9), 1),
            },
        },
    )
