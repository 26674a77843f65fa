"""What is asked of Slurm, what Slurm refuses, and what happens when it is busy or odd."""

import itertools
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from cluster import Cluster
from study import TOY, Study, shim

MakeStudy = Callable[..., Study]


def test_small_study(study: MakeStudy, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the profile, as arrays, from inside another job, and slurmdbd gone for a while."""
    toy = study(runs=3, steps=120, seconds=0.5, every=50, gpu=1, runtime=10, threads=2)
    toy.poll = 30
    toy.env |= {"SLURM_CPU_BIND": "quiet,mask_cpu:0x1", "SLURM_CPUS_PER_TASK": "7"}
    toy.env |= {"SLURM_ARRAY_JOB_ID": "1", "SLURM_MEM_PER_NODE": "1", "SLURM_JOB_ID": "1"}
    toy.env |= {"SBATCH_PARTITION": "main", "SBATCH_ACCOUNT": "test", "CUDA_VISIBLE_DEVICES": "7"}
    shim(toy.folder, "sbatch", 'env > sbatch.env; echo >> sbatch.calls; exec "$REAL" "$@"')
    shim(toy.folder, "squeue", 'date +%s.%N >> squeue.times; exec "$REAL" "$@"')
    shim(toy.folder, "sacct", "touch sacct.asked; exit 1")
    limit = '[ "$1 $2" != "show config" ] || { echo MaxArraySize = 2; exit; }'
    shim(toy.folder, "scontrol", f'{limit}; exec "$REAL" "$@"')
    controller = toy.start("--profile", str(TOY / "profile"))
    toy.wait("training", lambda: all(toy.started(n) for n in range(3)))
    cluster.end("slurmdbd")
    toy.wait("results", lambda: any(toy.result(n) for n in range(3)))
    cluster.start_slurmdbd()
    assert controller.wait(180) == 0, toy.log[-3000:]
    toy.check()

    # Arrays of two, as large as allowed: two for three trainings; then the digests.
    assert 3 <= len((toy.folder / "sbatch.calls").read_text().splitlines()) <= 5
    jobs = {event[0] for n in range(3) for event in toy.history(n)}
    shown = cluster.ask(
        "sacct", "-XnP", "-o", "jobname,alloctres,partition,account", "-j", ",".join(jobs)
    )
    assert len(shown.splitlines()) == 3
    for number in range(3):
        assert f"train-44m-rms-seed{number}|" in shown
    assert all("gres/gpu=1" in line and "cpu=2" in line for line in shown.splitlines())
    steps = cluster.ask("sacct", "-nP", "-o", "jobid,alloccpus", "-j", ",".join(jobs))
    assert {line.split("|")[1] for line in steps.splitlines() if ".batch|" in line} == {"2"}

    # Nothing of the job around the controller reaches sbatch, SLURM_CONF apart.
    sent = [line.partition("=")[0] for line in (toy.folder / "sbatch.env").read_text().splitlines()]
    assert [name for name in sent if name.startswith(("SLURM", "SBATCH"))] == ["SLURM_CONF"]
    for number in range(3):
        result = toy.result(number)
        assert result["CUDA_VISIBLE_DEVICES"] in ("0", "1")
        assert result["HF_HUB_OFFLINE"] == "1"
        assert Path(result["python"]).parent == Path(sys.executable).parent
        assert [event[2] for event in toy.history(number)] == ["start", "end"]

    # One question for all jobs in 30 s, and none to the accounts.
    times = [float(line) for line in (toy.folder / "squeue.times").read_text().splitlines()]
    assert len(times) >= 2
    assert all(b - a >= 30 for a, b in itertools.pairwise(times))
    assert not (toy.folder / "sacct.asked").exists()


REFUSALS = {
    "partition": ({"slurm_partition": "nowhere"}, "refused: Invalid partition name specified"),
    "gpu type": ({"gpu": 1, "gpu_model": "h900"}, "refused: Requested node configuration is not"),
    "memory": ({"mem_mb": 99999999}, "refused: Requested node configuration is not available"),
    "gres": ({"gpu": 1, "slurm_gres": "gqu:1"}, "refused: Invalid generic resource"),
    "runtime": ({"runtime": 3000}, "can never start: PartitionTimeLimit"),
}


@pytest.mark.parametrize("fault", REFUSALS)
def test_refused(study: MakeStudy, cluster: Cluster, fault: str) -> None:
    """Slurm's own reason, in one line with the job's name; and nothing is left in the queue."""
    wrong, reason = REFUSALS[fault]
    toy = study(**{"runs": 1, "steps": 1} | wrong)
    assert toy.run() == 1
    assert any("train-44m-rms-seed0: " in line and reason in line for line in toy.log.splitlines())
    assert not cluster.ask("squeue", "-h").strip()


BUSY = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"


@pytest.mark.parametrize("arrives", [True, False])
def test_busy(study: MakeStudy, cluster: Cluster, arrives: bool) -> None:
    """A submission whose answer is lost is not made again if it has arrived."""
    toy = study(runs=1, steps=10)
    submit = '"$REAL" "$@" > /dev/null; ' if arrives else ""
    fail = f'touch once; {submit}echo "{BUSY}" >&2; exit 1'
    shim(toy.folder, "sbatch", f'[ -e once ] && exec "$REAL" "$@"; {fail}')
    assert toy.run("--until", "train") == 0, toy.log[-3000:]
    assert "Slurm is busy, asking again in 2 s: Socket timed out" in toy.log
    toy.check()
    assert [event[2] for event in toy.history()] == ["start", "end"]


def test_silent_queue(study: MakeStudy) -> None:
    """Nothing is submitted as long as it can't be known what runs already."""
    toy = study(runs=1, steps=40, seconds=0.25)
    toy.start()
    toy.wait_for("submitted as")
    toy.controllers[0].kill()
    shim(
        toy.folder,
        "squeue",
        '[ -e twice ] && exec "$REAL" "$@"; [ ! -e once ] || touch twice; touch once; exit 1',
    )
    assert toy.run() == 0, toy.log[-3000:]
    assert "squeue does not answer, asking again in 4 s" in toy.log
    assert "found again as" in toy.log
    toy.check()
    assert [event[2] for event in toy.history()] == ["start", "end"]


def test_odd_names(study: MakeStudy) -> None:
    """A path and a run with what Slurm, sbatch's header and shells may misread."""
    toy = study("a b=c(x) 'ä", runs=1, steps=5, odd=1)
    assert toy.run() == 0, toy.log[-3000:]
    toy.check()
    assert len(toy.logs()) == 2
    refused = study("50%j", runs=1, steps=5)
    assert refused.run() == 1
    assert "Slurm would misread '%'" in refused.log
    assert not refused.history()


def test_folder_lost(study: MakeStudy, cluster: Cluster) -> None:
    """Logs and records that the nodes cannot see: the job fails, and the message says why."""
    toy = study(runs=1, steps=5, slurm_extra="--hold")
    toy.start()
    toy.wait_for("submitted as")
    (folder,) = toy.folder.glob("work/submitit/2*")
    folder.rename(folder.with_name("elsewhere"))
    (job,) = {line.split("_")[0] for line in cluster.ask("squeue", "-h", "-o", "%i").split()}
    cluster.ask("scontrol", "release", job)
    assert toy.controllers[0].wait(180) == 1
    assert f"can its node see {folder}?" in toy.log


@pytest.mark.parametrize("name", ["slrum", "workflow/profiles/slurm"])
def test_profile_misspelt(study: MakeStudy, name: str) -> None:
    """Without its profile nothing runs, least of all on the login node."""
    toy = study(runs=1, steps=5)
    assert toy.run("--profile", name) != 0
    assert "profile" in toy.log.lower()
    assert not toy.history()


def test_no_slurm_here(study: MakeStudy, tmp_path: Path) -> None:
    """The profile for Slurm never falls back to this machine."""
    toy = study(runs=1, steps=5)
    for folder in toy.env["PATH"].split(os.pathsep):
        for path in Path(folder).iterdir() if Path(folder).is_dir() else []:
            link = tmp_path / "few" / path.name
            link.parent.mkdir(exist_ok=True)
            if path.name != "sbatch" and not link.exists():
                link.symlink_to(path)
    toy.env["PATH"] = str(tmp_path / "few")
    assert toy.run() == 1
    assert "there is no sbatch here" in toy.log
    assert not toy.history()
    assert TOY.exists()


def test_without_accounting(study: MakeStudy, cluster: Cluster) -> None:
    """On a cluster that keeps no accounts, ends are known all the same: the queue decides."""
    cluster.up(accounting=False)
    try:
        toy = study(runs=2, steps=60, seconds=0.25, every=1000)
        controller = toy.start("--until", "train")
        toy.wait("training", lambda: toy.started(0) and toy.started(1))
        for pid in cluster.job_processes(toy.history(1)[0][0]):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # as a system without memory does
        assert controller.wait(180) == 1
        assert "train-44m-rms-seed1: FAILED, without a result" in toy.log
        assert toy.result(0)
        assert toy.run("--until", "train") == 0
        toy.check()
    finally:
        cluster.up()
