"""Every benchmark of a machine without a GPU, one after the other, into tables: `make bench`.

Writes the tables (CSV) beside this file, and a Markdown report with the machine stated into
`results.md`. Nothing else should run meanwhile. `benchmarks/kills.py`, `slurm.py` and `gpu.sh` are
started by hand.
"""

import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
RUNS = {
    "Training steps, d 256, 4 layers, V 8,192, T 256, B 4, K 4, per-loop": (
        "train.py --shape cpu --variants engine,recompute --out train.csv"
    ),
    "Training steps, 44M, B 8": (
        "train.py --shape 44m --variants engine,recompute --rounds 3 --steps 1 --out train.csv"
    ),
    "All depths of one pass against K passes": "evaluate.py --out evaluate.csv",
    "Checkpoints, 44M": "checkpoint.py --size 44m --out checkpoint.csv",
    "Checkpoints, 129M": "checkpoint.py --size 129m --out checkpoint.csv",
    "Where the time of a step goes": "profile_step.py --shape cpu",
    "Tokenization": "tokens.py",
    "Planning": "dryrun.py",
}


def machine() -> str:
    """Processor, cores and versions in one line."""
    import torch

    from blindspot.provenance import cores, processor

    load = f"load {os.getloadavg()[0]:.1f} at the start" if hasattr(os, "getloadavg") else ""
    return (
        f"{processor()}, {cores()} cores, {platform.system()} {platform.machine()}, Python "
        f"{platform.python_version()}, torch {torch.__version__}, {load}"
    )


def main() -> None:
    for old in ("train.csv", "evaluate.csv", "checkpoint.csv"):
        (HERE / old).unlink(missing_ok=True)
    parts = ["# What `make bench` measured", "", f"{datetime.now(UTC):%Y-%m-%d}, {machine()}.", ""]
    failed = []
    for title, words in RUNS.items():
        print(f"==> {title}", flush=True)
        started = time.monotonic()
        done = subprocess.run(
            [sys.executable, *words.split()], cwd=HERE, stdout=subprocess.PIPE, text=True
        )
        print(done.stdout, flush=True)
        if done.returncode:
            failed.append(title)
            continue
        command = f"python benchmarks/{words}"
        parts += [f"## {title}", "", f"`{command}`, {time.monotonic() - started:.0f} s", ""]
        parts += [done.stdout.strip(), ""]
    (HERE / "results.md").write_text("\n".join(parts), encoding="utf-8")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
