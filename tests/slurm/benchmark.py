"""How long submissions take, and how soon ends are noticed: python tests/slurm/benchmark.py [JOBS]

Needs the cluster up (`cluster.py up`). Submitted jobs are held, then cancelled, so that they cost
nothing; ends are those of four jobs that run.
"""

import sys
import tempfile
import time
from pathlib import Path

from cluster import Cluster
from study import Study


def submission(cluster: Cluster, folder: Path, jobs: int) -> float:
    """Seconds from the controller's start until Slurm has all jobs."""
    toy = Study(folder, cluster.env, "slurm", runs=jobs, steps=1, slurm_extra="--hold")
    begin = time.monotonic()
    toy.start("--until", "train", "--jobs", str(jobs))
    toy.wait("all submitted", lambda: toy.log.count("submitted as") == jobs, 300)
    seconds = time.monotonic() - begin
    toy.end()
    cluster.ask("scancel", "-u", "root")
    return seconds


def noticing(cluster: Cluster, folder: Path) -> list[float]:
    """Seconds from a job's result to the controller's word that it has finished."""
    toy = Study(folder, cluster.env, "slurm", runs=4, steps=20, seconds=0.3)
    controller = toy.start("--until", "train")
    ends: dict[int, float] = {}
    while controller.poll() is None:
        finished = toy.log.count("Finished jobid")
        ends |= {number: time.time() for number in range(len(ends), finished)}
        time.sleep(0.05)
    results = sorted(p.stat().st_mtime for p in toy.folder.glob("work/submitit/*/*_result.pkl"))
    return [end - result for end, result in zip(ends.values(), results, strict=True)]


if __name__ == "__main__":
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    slurm = Cluster()
    with tempfile.TemporaryDirectory() as name:
        seconds = submission(slurm, Path(name) / "submission", number)
        print(f"{number} jobs submitted {seconds:.1f} s after the start")
        delays = noticing(slurm, Path(name) / "noticing")
        print("ends noticed after", ", ".join(f"{delay:.1f}" for delay in delays), "s")
