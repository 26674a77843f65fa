"""What users of other executors know: memory, nodes, partitions, reservations, names, reports."""

import csv
import os
import signal
from collections.abc import Callable
from contextlib import suppress

import pytest
from cluster import Cluster
from study import Study, shim

MakeStudy = Callable[..., Study]


def kill(cluster: Cluster, toy: Study) -> str:
    """Kill all of the job that trains, as a system without memory does; its id."""
    job = toy.history()[0][0]
    for pid in cluster.job_processes(job):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return job


def accounts(cluster: Cluster, toy: Study, what: str) -> list[list[str]]:
    """What Slurm has written down of each job of run 0, in their order."""
    jobs = list(dict.fromkeys(event[0] for event in toy.history()))
    ask = ["sacct", "-XnP", "-o", f"jobidraw,{what}", "-j", ",".join(jobs)]
    found = dict(line.split("|", 1) for line in cluster.ask(*ask).splitlines())
    return [found[job].split("|") for job in jobs]


@pytest.mark.parametrize("ended", ["OUT_OF_MEMORY", "FAILED"])
def test_a_retry_has_more_memory_or_another_node(
    study: MakeStudy, cluster: Cluster, ended: str
) -> None:
    """Without cgroups Slurm calls what is killed FAILED, so the queue's word is changed on its way
    to the executor."""
    toy = study(runs=1, steps=40, seconds=0.25, every=5, mem_mb=200)
    shim(toy.folder, "squeue", f'"$REAL" "$@" | sed "s/|FAILED|/|{ended}|/"')
    retry = ["--until", "train", "--retries", "1", "--submitit-memory-factor", "1.5"]
    controller = toy.start(*retry, "--submitit-exclude-failed-nodes", "auto")
    toy.wait("training", toy.started)
    kill(cluster, toy)
    assert controller.wait(180) == 0, toy.log[-3000:]
    toy.check()
    (memory, node), (more, other) = accounts(cluster, toy, "reqmem,nodelist")
    assert memory == "200M"
    if ended == "FAILED":
        assert (more, node != other) == ("200M", True)
        assert f"train-44m-rms-seed0 failed on {node}; no more jobs go there" in toy.log
    else:
        assert more == "300M"
        assert "train-44m-rms-seed0: out of memory; ask for more with mem_mb" in toy.log
        assert "was out of memory; now with mem_mb=300" in toy.log


def test_partition_reservation_prefix_and_report(study: MakeStudy, cluster: Cluster) -> None:
    toy = study(runs=1, steps=40, seconds=0.25, runtime=7, mem_mb=400)
    (toy.folder / "limits.yaml").write_text(
        "partitions:\n  main: {max_runtime: 6m}\n  low: {max_runtime: 1h, max_mem_mb: 400}\n"
    )
    mine = ["ReservationName=mine", "StartTime=now", "Duration=10", "Nodes=ALL", "Users=root"]
    cluster.ask("scontrol", "create", "reservation", *mine)
    try:
        options = ["--submitit-partition-config", "limits.yaml", "--submitit-reservation", "mine"]
        options += ["--submitit-jobname-prefix", "lab-"]
        options += ["--submitit-efficiency-report", "made/efficiency.csv"]
        assert toy.run("--until", "train", *options) == 0, toy.log[-3000:]
    finally:
        cluster.ask("scontrol", "delete", "ReservationName=mine")
    toy.check()
    shown = accounts(cluster, toy, "jobname,partition,reservation")
    assert shown == [["lab-train-44m-rms-seed0", "low", "mine"]]
    (row,) = csv.DictReader((toy.folder / "made/efficiency.csv").open())
    assert (row["job"], row["attempts"], row["mem_mb_asked"]) == ("train-44m-rms-seed0", "1", "400")
    # 40 steps of a quarter of a second, in some tens of MB; Snakemake around it has more.
    assert 10 <= float(row["seconds"]) < 60
    assert 30 < float(row["mem_mb_used"]) < 400
    assert "train (1 jobs) used of what it asked for: memory " in toy.log


def test_no_requeue(study: MakeStudy, cluster: Cluster) -> None:
    """What is stopped ahead of its time saves its state and has failed; a rerun goes on."""
    toy = study(runs=1, steps=120, seconds=0.25, every=1000)
    controller = toy.start("--until", "train", "--submitit-no-requeue")
    toy.wait("training", toy.started)
    job = toy.history()[0][0]
    assert "Requeue=0" in cluster.ask("scontrol", "show", "job", job)
    cluster.ask("scancel", "--batch", "--signal=USR2", job)
    assert controller.wait(120) == 1
    assert "train-44m-rms-seed0: " in toy.log and "timed-out too many times" in toy.log
    assert [event[2] for event in toy.history()] == ["start", "stop"]
    assert toy.run("--until", "train") == 0, toy.log[-3000:]
    toy.check()
