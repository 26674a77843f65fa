"""Time limit, preemption, a lost node, a cancelled job: training goes on where it was."""

import os
import signal
import time
from collections.abc import Callable

from cluster import NODES, Cluster
from study import Study

MakeStudy = Callable[..., Study]


def preempt(cluster: Cluster, seconds: int) -> None:
    """A job of a higher partition that wants all nodes whole, to its end."""
    wanted = ["--partition=main", "--exclusive", f"--nodes={NODES}", "--output=/dev/null"]
    cluster.ask("sbatch", "--wait", *wanted, f"--wrap=sleep {seconds}", timeout=180)


def test_three_time_limits(study: MakeStudy) -> None:
    """A minute is not enough, three times; the weights are those of uninterrupted training."""
    # 185 s of steps: Slurm signals at most a minute early, so an attempt does 0 to 60 s of them.
    toy = study(runs=1, steps=370, seconds=0.5, every=1000, runtime=1)
    assert toy.run(seconds=900) == 0, toy.log[-3000:]
    toy.check()
    events = toy.history()
    starts = [event for event in events if event[2] == "start"]
    assert len(starts) >= 4
    # Each attempt begins where the one before has stopped, and knows its number.
    stops = [event[3] for event in events if event[2] == "stop"]
    assert [event[3] for event in starts[1:]] == stops
    assert [event[4] for event in starts] == [str(n) for n in range(len(starts))]
    assert toy.result()["SUBMITIT_RESTARTS"] == str(len(starts) - 1)
    # One log has all attempts, and says which is which.
    (log,) = (path for path in toy.logs() if "train" in path.read_text())
    assert all(f"== attempt {n + 1} of" in log.read_text() for n in range(len(starts)))


def test_preemption_with_grace(study: MakeStudy, cluster: Cluster) -> None:
    toy = study(runs=1, steps=120, seconds=0.25, every=1000, runtime=5, slurm_partition="grace")
    controller = toy.start("--until", "train")
    toy.wait("training", lambda: toy.started())
    time.sleep(5)
    preempt(cluster, 3)
    assert controller.wait(240) == 0, toy.log[-3000:]
    toy.check()
    _first, *_, second = (event for event in toy.history() if event[2] in ("start", "stop"))
    stop = next(event for event in toy.history() if event[2] == "stop")
    assert int(stop[3]) > 0
    assert second[3] == stop[3], "nothing was lost"


def test_preemption_without_grace(study: MakeStudy, cluster: Cluster) -> None:
    """Without checkpoint or warning in time, at most the checkpoint interval is lost."""
    toy = study(runs=1, steps=120, seconds=0.25, every=10, runtime=5, slurm_partition="low")
    controller = toy.start("--until", "train")
    toy.wait("training", lambda: toy.started())
    time.sleep(8)
    preempt(cluster, 3)
    assert controller.wait(240) == 0, toy.log[-3000:]
    toy.check()
    assert toy.started(times=2)
    assert int(toy.history()[-2][3]) >= 10


def test_node_lost(study: MakeStudy, cluster: Cluster) -> None:
    """slurmd and all it ran vanish; Slurm starts the job elsewhere, which goes on."""
    toy = study(runs=1, steps=80, seconds=0.25, every=10, runtime=5)
    controller = toy.start("--until", "train")
    toy.wait("training", lambda: toy.started())
    time.sleep(5)
    (node,) = cluster.ask("squeue", "-h", "-t", "running", "-o", "%N").split()
    number = int(node.removeprefix("n"))
    cluster.end("slurmd", number, signal.SIGKILL)
    for pid in cluster.job_processes():
        os.kill(pid, signal.SIGKILL)
    try:
        assert controller.wait(240) == 0, toy.log[-3000:]
    finally:
        cluster.start_node(number)
    toy.check()
    assert toy.started(times=2)
    assert int(toy.history()[-2][3]) >= 10


def test_cancelled_by_hand(study: MakeStudy, cluster: Cluster) -> None:
    """One job is cancelled by hand: it fails and says so, the other goes on; a rerun does it."""
    toy = study(runs=2, steps=60, seconds=0.25, every=1000, runtime=5)
    controller = toy.start()
    toy.wait("training", lambda: toy.started(0) and toy.started(1))
    listed = cluster.ask("squeue", "-h", "-r", "-o", "%i %j").splitlines()
    (job,) = (line.split()[0] for line in listed if line.endswith("seed1"))
    cluster.ask("scancel", job)
    assert controller.wait(180) == 1
    assert "train-44m-rms-seed1: cancelled, not by this workflow" in toy.log
    assert toy.result(0)
    assert toy.result(1) is None
    before = toy.history(0)
    assert toy.run() == 0, toy.log[-3000:]
    assert toy.history(0) == before
    toy.check()
    stop = next(event for event in toy.history(1) if event[2] == "stop")
    assert toy.history(1)[-2][3] == stop[3], "it went on from what it had saved"
