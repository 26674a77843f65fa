"""Submission and noticing on a real Slurm, this executor beside Snakemake's official plugin.

    python benchmarks/slurm.py [JOBS]        writes slurm.csv and slurm.md beside this file

Needs root and Debian's Slurm (`make test-slurm` installs it). The official plugin is installed
into a folder of its own for the occasion, and the two are measured in turn, twice.

- submitted: from the controller's start until Slurm has all JOBS (200) jobs, by squeue. They are
  held, so that they cost nothing.
- noticed: from a job's end, as Slurm's epilog on the node writes it down, to the controller's word
  that the job has finished. A controller that looks at results may know it before.
"""

import csv
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).parents[1] / "packages/snakemake-executor-plugin-submitit/tests/slurm")
)

from cluster import Cluster
from study import Study

from blindspot import provenance

#: With its defaults, as it comes.
OFFICIAL = ["snakemake-executor-plugin-slurm==2.8.0", "snakemake-executor-plugin-slurm-jobstep"]
#: Jobs whose end is watched.
WATCHED = 6


def study(cluster: Cluster, folder: Path, executor: str, official: Path, **toy: object) -> Study:
    made = Study(folder, cluster.env, "slurm", **toy)
    made.poll = 30
    if executor == "official":
        made.executor = ["--executor", "slurm"]
        made.env["PYTHONPATH"] = str(official)
    return made


def submission(cluster: Cluster, toy: Study, jobs: int) -> float:
    """Seconds from the controller's start until Slurm has all jobs."""
    begin = time.monotonic()
    toy.start("--until", "train", "--jobs", str(jobs))
    listed = ["squeue", "-h", "-r", "-t", "pending"]
    toy.wait("all jobs", lambda: len(cluster.ask(*listed).splitlines()) >= jobs, 600)
    seconds = time.monotonic() - begin
    toy.end()
    cluster.ask("scancel", "-u", "root")
    return seconds


def noticing(toy: Study, ends: Path) -> list[float]:
    """Seconds from each job's end to the controller's word, in order of ends."""
    for old in ends.glob("*"):
        old.unlink()
    controller = toy.start("--until", "train")
    heard: list[float] = []
    while controller.poll() is None:
        finished = toy.log.count("Finished jobid")
        heard += [time.time()] * (finished - len(heard))
        time.sleep(0.05)
    assert len(heard) == WATCHED, toy.log[-3000:]
    time.sleep(3)
    ended = sorted(float(path.read_text()) for path in ends.glob("*"))
    return [word - end for word, end in zip(heard, ended, strict=True)]


@contextmanager
def known(conf: Path) -> Iterator[None]:
    """The official plugin drops SLURM_CONF inside its jobs, so Slurm must find this by itself."""
    place = Path("/etc/slurm/slurm.conf")
    if place.exists():
        sys.exit(f"error: {place} exists; this measures on a machine without a Slurm of its own")
    place.unlink(missing_ok=True)
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(conf)
    try:
        yield
    finally:
        place.unlink()


def measure(jobs: int, official: Path, folder: Path) -> list[dict[str, object]]:
    cluster, rows = Cluster(9), []
    cluster.up()
    try:
        ends, epilog = cluster.root / "ends", cluster.root / "etc/epilog"
        ends.mkdir()
        epilog.write_text(f"#!/bin/sh\ndate +%s.%N > {ends}/$SLURM_JOB_ID\n")
        epilog.chmod(0o755)
        with (cluster.root / "etc/slurm.conf").open("a") as conf:
            conf.write(f"Epilog={epilog}\n")
        cluster.ask("scontrol", "reconfigure")
        with known(cluster.root / "etc/slurm.conf"):
            for turn, executor in itertools.product((1, 2), ("submitit", "official")):
                where = folder / f"{executor}{turn}"
                held = {"runs": jobs, "steps": 1, "slurm_extra": "--hold"}
                toy = study(cluster, where / "many", executor, official, **held)
                row = {"executor": executor, "turn": turn, "jobs": jobs}
                row["submitted_s"] = round(submission(cluster, toy, jobs), 1)
                print(row, flush=True)
                few = {"runs": WATCHED, "steps": 20, "seconds": 0.3}
                delays = noticing(study(cluster, where / "few", executor, official, **few), ends)
                row["noticed_median_s"] = round(statistics.median(delays), 1)
                row["noticed_max_s"] = round(max(delays), 1)
                print(row, flush=True)
                rows.append(row)
    finally:
        cluster.down()
    return rows


def main(jobs: int) -> None:
    here = Path(__file__).with_suffix("")
    with tempfile.TemporaryDirectory() as name:
        official = Path(name) / "official"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
        subprocess.run([*pip, str(official), *OFFICIAL], check=True)
        rows = measure(jobs, official, Path(name))
    with here.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    slurm = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True).stdout.strip()
    cores, processor = provenance.cores(), provenance.device_name("cpu")
    lines = [
        "# On a real Slurm: this executor and Snakemake's official plugin",
        "",
        f"`python benchmarks/slurm.py` on {cores} cores ({processor}), {slurm}, virtual nodes on "
        "the same machine, both with their default settings, in turn, twice.",
        "",
        f"| executor | {jobs} jobs submitted after | end noticed after, median | at most |",
        "|---|---:|---:|---:|",
    ]
    for executor in ("submitit", "official"):
        turns = [row for row in rows if row["executor"] == executor]
        cells = [
            " and ".join(f"{row[key]} s" for row in turns)
            for key in ("submitted_s", "noticed_median_s", "noticed_max_s")
        ]
        lines.append(f"| {executor} | {' | '.join(cells)} |")
    here.with_suffix(".md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
