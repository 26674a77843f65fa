"""How long a dry run takes, and how much memory: `python benchmarks/dryrun.py`.

Dry-runs `all` of the paper's study (42 runs) and of one with 1,008 runs, in a temporary copy of the
checkout: with nothing finished, and with everything finished. Writes `benchmarks/dryrun.csv` and
prints a Markdown table. The limits are 3 s for 42 runs, 8 s and 300 MB for 1,000.
"""

from __future__ import annotations

import csv
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from blindspot import declared
from blindspot.config.runfiles import RunFiles
from blindspot.config.study import Study
from blindspot.declared.measurement import RECORD

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = ("runs", "state", "seconds", "cpu_s", "mb", "limit_s", "limit_mb")
REPEATS = 3


def dry_run(where: Path, overlay: Path) -> tuple[float, float, float]:
    """Wall seconds, CPU seconds and peak resident MB of one `snakemake -n all`."""
    command = [sys.executable, "-m", "snakemake", "-n", "all", "--configfile", str(overlay)]
    start = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=where, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} in {where} ended with {process.returncode}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024  # Linux counts in KiB


def finish(where: Path, study: Study) -> None:
    """Empty files where results would be: a dry run asks only whether they exist."""
    files = RunFiles(study)
    for run in study.runs:
        folder = where / study.results / "runs" / run.name
        folder.mkdir(parents=True)
        for name in ("run.json", "trajectory.csv", "timing.csv"):
            (folder / name).touch()
        for name, measurement in declared.MEASUREMENTS.items():
            at = where / files.record(run.name, name).parent
            at.mkdir(parents=True)
            for path in (RECORD, *(file.csv for file in measurement.files)):
                (at / path).touch()
        (where / files.measured(run.name)).touch()
    (where / study.results / "throughput").mkdir()
    for size in study.config.sizes:
        name = f"{size}-{study.throughput_hash(size)}.csv"
        (where / study.results / "throughput" / name).touch()


def main() -> None:
    rows = []
    for seeds, limit_s, limit_mb in (([42, 101, 202], 3.0, None), (list(range(72)), 8.0, 300.0)):
        with tempfile.TemporaryDirectory() as folder:
            where = Path(folder)
            for name in ("config.yaml", "workflow", "envs"):
                copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
                copy(ROOT / name, where / name)
            overlay = where / "study.yaml"
            overlay.write_text(yaml.safe_dump({"grid": {"seeds": seeds}}))
            study = Study.load(where / "config.yaml", [overlay])
            for state in ("nothing finished", "everything finished"):
                if state == "everything finished":
                    finish(where, study)
                measured = [dry_run(where, overlay) for _ in range(REPEATS)]
                seconds = statistics.median(m[0] for m in measured)
                cpu = statistics.median(m[1] for m in measured)
                mb = max(m[2] for m in measured)
                rows.append(
                    (
                        len(study.runs),
                        state,
                        f"{seconds:.2f}",
                        f"{cpu:.2f}",
                        f"{mb:.0f}",
                        limit_s,
                        limit_mb,
                    )
                )
    with open(ROOT / "benchmarks" / "dryrun.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows)
    print("| runs | state | seconds (median of 3) | of CPU | peak MB |\n|---:|---|---:|---:|---:|")
    for runs, state, seconds_text, cpu_text, mb_text, *_ in rows:
        print(f"| {runs} | {state} | {seconds_text} | {cpu_text} | {mb_text} |")
    late = [r for r in rows if float(r[2]) > r[5] or (r[6] and float(r[4]) > r[6])]
    sys.exit(f"over the limit: {late}" if late else 0)


if __name__ == "__main__":
    main()
