"""The controller dies at every moment, is interrupted, or has a neighbour."""

import itertools
import os
import random
import re
import signal
import time
from collections.abc import Callable

import pytest
from cluster import Cluster
from study import Study, shim

MakeStudy = Callable[..., Study]
TOY = {"runs": 2, "steps": 60, "seconds": 0.25, "every": 20, "runtime": 5}


def check_jobs(cluster: Cluster, toy: Study) -> None:
    """By Slurm's accounts, no run ever had two jobs at a time."""
    for number in range(toy.toy["runs"]):
        jobs = {event[0] for event in toy.history(number)}
        command = ["sacct", "-XDnP", "-o", "start,end,jobidraw", "-j", ",".join(jobs)]
        # An id that is an array's too brings its other jobs along.
        rows = [line.split("|") for line in cluster.ask(*command).splitlines()]
        spans = sorted(
            (start, end) for start, end, job in rows if job in jobs and start != "Unknown"
        )
        assert spans
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


#: Where the controller is killed: a command of Slurm, and what happens instead of it.
BOUNDARIES = {
    "before the intent": ("scontrol", "kill -9 $PPID"),
    "after the intent": ("sbatch", "kill -9 $PPID"),
    "after sbatch": ("sbatch", '"$REAL" "$@"; kill -9 $PPID'),
    "while sbatch goes on": ("sbatch", 'kill -9 $PPID; sleep 6; "$REAL" "$@"'),
    "while polling": ("squeue", "kill -9 $PPID"),
}


@pytest.mark.parametrize("moment", [*BOUNDARIES, "after the record"])
def test_killed_at_a_boundary(study: MakeStudy, cluster: Cluster, moment: str) -> None:
    toy = study(**TOY)
    if moment in BOUNDARIES:
        shim(toy.folder, *BOUNDARIES[moment])
        assert toy.run() == -signal.SIGKILL
        (toy.folder / "bin" / BOUNDARIES[moment][0]).unlink()
    else:
        toy.start()
        toy.wait_for("submitted as")
        toy.controllers[0].kill()
    assert toy.run() == 0, toy.log[-3000:]
    toy.check()
    check_jobs(cluster, toy)
    again = {"before the intent", "after the intent"}
    assert ("found again as" in toy.log) == (moment not in again)
    # One start a run: nothing was submitted twice.
    assert [event[2] for event in toy.history()] == ["start", "end"]


def test_killed_at_random_moments(study: MakeStudy, cluster: Cluster) -> None:
    toy = study(**TOY | {"runs": 3, "steps": 150})
    moments = random.Random(5)
    for _ in range(10):
        controller = toy.start()
        time.sleep(moments.uniform(1.0, 8.0))
        controller.kill()
    assert toy.run() == 0, toy.log[-3000:]
    toy.check()
    check_jobs(cluster, toy)
    for number in range(3):
        assert [event[2] for event in toy.history(number)] == ["start", "end"]


def test_ended_meanwhile(study: MakeStudy) -> None:
    """Jobs that end while no controller runs are not done again."""
    toy = study(**TOY | {"steps": 20})
    toy.start("--until", "train")
    toy.wait_for("submitted as")
    toy.controllers[0].kill()
    toy.wait("ends", lambda: toy.result(0) and toy.result(1))
    time.sleep(3)
    assert toy.run() == 0, toy.log[-3000:]
    toy.check()
    assert [event[2] for event in toy.history()] == ["start", "end"]


def test_config_gone(study: MakeStudy, cluster: Cluster) -> None:
    """A job that runs although nothing asks for it any more is named."""
    toy = study(**TOY | {"steps": 150})
    toy.start()
    toy.wait("training", lambda: toy.started(1))
    toy.controllers[0].kill()
    toy.toy["runs"] = 1
    toy.start()
    toy.wait_for("train-44m-rms-seed1 is no part of this run, but runs: ")
    toy.wait_for("train-44m-rms-seed0 found again as")


def test_interrupt(study: MakeStudy, cluster: Cluster) -> None:
    """Ctrl-C ends all jobs of this study within 10 s and none of its neighbour's in the same
    folder, not even if that was submitted in the same minute; then the study goes on."""
    toy = study(**TOY | {"runs": 3, "steps": 120, "every": 1000})
    other = study(**TOY | {"odd": 1, "steps": 120})
    shim(toy.folder, "squeue", 'date +%s.%N >> squeue.times; exec "$REAL" "$@"')
    neighbour = other.start()
    controller = toy.start()
    toy.wait("training", lambda: all(toy.started(n) for n in range(3)) and other.started())
    time.sleep(3)
    os.killpg(controller.pid, signal.SIGINT)
    begin = time.monotonic()

    def mine() -> bool:
        listed = cluster.ask("squeue", "-h", "-r", "-o", "%j").splitlines()
        return any(re.fullmatch(r"train-44m-rms-seed\d", name) for name in listed)

    toy.wait("end of the jobs", lambda: not mine(), 10)
    assert time.monotonic() - begin < 10
    controller.wait(60)
    stops = [[event[3] for event in toy.history(n) if event[2] == "stop"] for n in range(3)]
    assert all(len(stop) == 1 for stop in stops), "each has saved its state"
    assert toy.run() == 0, toy.log[-3000:]
    toy.check()
    for number in range(3):
        starts = [event[3] for event in toy.history(number) if event[2] == "start"]
        assert starts == ["0", *stops[number]]
    assert neighbour.wait(120) == 0
    other.check()
    assert [event[2] for event in other.history()] == ["start", "end"]
