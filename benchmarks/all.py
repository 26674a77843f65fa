"""Every benchmark of a machine without a GPU, one after the other, into tables: `make bench`.

Writes the tables (CSV) beside this file, and a Markdown report with the machine stated into
`results.md`; one that fails is said to have failed, and the others run. Nothing else should run
meanwhile. `benchmarks/kills.py`, `slurm.py` and `gpu.sh` are
started by hand.
"""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
#: What is run, and the CSV that it adds to, where it does not write its own.
RUNS = {
    "Training steps, d 256, 4 layers, V 8,192, T 256, B 4, K 4, per-loop": (
        "train.py --shape cpu --variants batched,engine,recompute",
        "train.csv",
    ),
    "Training steps, 44M, B 8": (
        "train.py --shape 44m --variants engine,recompute --warmup 1 --rounds 2 --steps 1",
        "train.csv",
    ),
    "What pays on a CPU: compiled, and two threads": (
        "train.py --shape cpu --variants engine,compiled,engine:2,compiled:2 --rounds 6",
        "train.csv",
    ),
    "All depths of one pass against K passes": ("evaluate.py", "evaluate.csv"),
    "Checkpoints, 44M": ("checkpoint.py --size 44m", "checkpoint.csv"),
    "Checkpoints, 129M": ("checkpoint.py --size 129m", "checkpoint.csv"),
    "Watching the norms of a training": ("watch.py", "watch.csv"),
    "Where the time of a step goes": ("profile_step.py --shape cpu", None),
    "Tokenization": ("tokens.py", None),
    "Planning": ("dryrun.py", None),
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


def run(title: str, words: str, csv: str | None, folder: Path) -> tuple[list[str], bool]:
    """One benchmark: its part of the report, and whether it ended well."""
    print(f"==> {title}", flush=True)
    started = time.monotonic()
    out = ["--out", str(folder / csv)] if csv else []
    done = subprocess.run(
        [sys.executable, *words.split(), *out], cwd=HERE, stdout=subprocess.PIPE, text=True
    )
    print(done.stdout, flush=True)
    if csv and (folder / csv).exists():
        # A table that was made before stays until there is a new one.
        shutil.copy(folder / csv, HERE / csv)
    failed = f", **failed: exit code {done.returncode}**" if done.returncode else ""
    part = [f"## {title}", "", f"`python benchmarks/{words}`"]
    part[-1] += f", {time.monotonic() - started:.0f} s{failed}"
    return [*part, "", done.stdout.strip(), ""], done.returncode == 0


def main() -> None:
    parts = ["# What `make bench` measured", "", f"{datetime.now(UTC):%Y-%m-%d}, {machine()}.", ""]
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        for title, (words, csv) in RUNS.items():
            part, well = run(title, words, csv, Path(folder))
            parts += part
            failed += [] if well else [title]
            # After each, so that one that is stopped costs the others nothing.
            (HERE / "results.md").write_text("\n".join(parts), encoding="utf-8")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
