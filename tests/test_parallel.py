"""Several ranks on one run: the losses of one device, one writer, one end."""

import json
import os
import signal
import subprocess
import time

import pytest
import torch

from blindspot.errors import BlindspotError
from blindspot.training import checkpoint, parallel
from blindspot.training.parallel import World
from blindspot.training.train import train
from training import assert_same_run, command, toy_job, trajectory, typed_job, weights


def ranks(job, number=2):
    return command(job, "--gpus", str(number))


def run(job):
    return subprocess.run(ranks(job), capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("cell", ["perloop-rms-penalty"])
def test_two_ranks_have_the_losses_of_one_at_the_same_global_batch(cell, tokens, tmp_path):
    """With dropout: every logged number, penalty's effect and quantiles over the whole batch
    included, agrees to float32 rounding that twelve steps of AdamW have amplified."""
    one = toy_job(tokens, tmp_path / "one", cell, dropout=0.1, steps=12)
    two = typed_job(tokens, tmp_path / "two", cell, dropout=0.1, steps=12)
    train(one)
    done = run(two)
    assert done.returncode == 0, done.stderr
    a, b = trajectory(one), trajectory(two)
    assert [(r["step"], r["split"], r["k"]) for r in a] == [
        (r["step"], r["split"], r["k"]) for r in b
    ]
    for left, right in zip(a, b, strict=True):
        for key in ("ce", "norm_mean", "norm_p50", "norm_p99", "norm_max", "grad_norm"):
            if left[key]:
                assert float(right[key]) == pytest.approx(float(left[key]), rel=2e-4), (left, key)
    first = {k: float(r["ce"]) for k, r in enumerate(b) if r["step"] == "1" and r["ce"]}
    for k, ce in first.items():  # before AdamW has amplified anything
        assert ce == pytest.approx(float(a[k]["ce"]), rel=1e-6)
    for name, tensor in weights(one).items():
        torch.testing.assert_close(weights(two)[name], tensor, rtol=1e-3, atol=2e-4, msg=name)
    record = json.loads((two.out / "run.json").read_text())
    assert record["provenance"]["execution"]["ranks"] == 2


def test_with_dropout_two_ranks_repeat_and_end_together_at_a_signal(tokens, tmp_path):
    """A signal to one rank stops both after the same step; what goes on is the same run."""
    whole = typed_job(tokens, tmp_path / "whole", steps=100, log_every=50, validate_every=100)
    assert run(whole).returncode == 0
    job = typed_job(tokens, tmp_path / "torn", steps=100, log_every=50, validate_every=100)
    process = subprocess.Popen(ranks(job), stderr=subprocess.PIPE, text=True)
    log = job.state / "train.log"
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and not (log.exists() and "step 1/100" in log.read_text()):
        time.sleep(0.02)
    children = f"/proc/{process.pid}/task/{process.pid}/children"
    with open(children) as file:
        last = int(file.read().split()[-1])
    os.kill(last, signal.SIGUSR2)
    _, said = process.communicate(timeout=90)
    assert process.returncode == 85, said
    assert "stopped by SIGUSR2" in said
    assert len(checkpoint.checkpoints(job.state)) == 1
    assert not job.out.exists()
    assert run(job).returncode == 0
    assert_same_run(job, whole)


#: Rank 0 takes three seconds over its last save, and whoever started the ranks waits for one.
SLOW_SAVE = """
import os, time
from blindspot.training import checkpoint, parallel

parallel.PATIENCE = 1.0
if os.environ.get("RANK") == "0":
    wait = checkpoint.Writer.wait

    def slow(self):
        time.sleep(3.0)
        wait(self)

    checkpoint.Writer.wait = slow
"""


def test_no_rank_leaves_before_the_one_that_saves(tokens, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(SLOW_SAVE)
    job = typed_job(tokens, tmp_path, steps=3)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(ranks(job), capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    assert (job.out / "run.json").exists()


def test_when_a_rank_is_killed_the_run_ends_and_can_go_on(tokens, tmp_path):
    job = typed_job(tokens, tmp_path, steps=300, execution={"checkpoint_steps": 5})
    process = subprocess.Popen(ranks(job), stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and not checkpoint.checkpoints(job.state):
        time.sleep(0.02)
    with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
        last = int(file.read().split()[-1])
    os.kill(last, signal.SIGKILL)
    assert process.wait(30) not in (0, 85)
    assert checkpoint.checkpoints(job.state)


def test_one_rank_communicates_nothing():
    """No process group exists here, so any message would raise."""
    world, x = World(), torch.arange(3.0)
    world.average([x])
    assert torch.equal(world.gather(x), x)
    assert (world.broadcast([x], 5), world.max_over_ranks(12)) == (5, 12)


@pytest.mark.parametrize("size", ["", "2", "many"])
def test_an_environment_that_speaks_of_ranks_makes_none(size, monkeypatch):
    """An interactive Slurm step of two tasks, a notebook's WORLD_SIZE: nobody else would come."""
    monkeypatch.setenv("WORLD_SIZE", size)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    monkeypatch.setenv("SLURM_PROCID", "0")
    assert parallel.join("cpu") == World()


def test_ranks_that_cannot_meet_are_told_what_is_missing(monkeypatch):
    values = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}
    for name in values:
        for other, value in values.items():
            monkeypatch.setenv(other, value)
        monkeypatch.setenv(name, "")
        with pytest.raises(BlindspotError, match=f"{name} is not set.*--gpus N"):
            parallel.join("cpu", "env")
        monkeypatch.delenv(name)
        with pytest.raises(BlindspotError, match=f"{name} is not set"):
            parallel.join("cpu", "env")
    monkeypatch.delenv("SLURM_STEP_NUM_TASKS", raising=False)
    with pytest.raises(BlindspotError, match="SLURM_STEP_NUM_TASKS is not set"):
        parallel.join("cpu", "slurm")


def test_a_batch_that_ranks_cannot_share_is_refused(tokens, tmp_path):
    from blindspot.training.train import Trainer

    job = toy_job(tokens, tmp_path)
    with pytest.raises(BlindspotError, match="4 sequences cannot be shared equally by 3"):
        Trainer(job, World(1, 3))


def test_ranks_share_the_batch_and_each_row_has_the_masks_of_one_device():
    from blindspot.training.engine import Engine
    from test_engine import spec_of

    spec = spec_of("perloop-rms", dropout=0.1)
    drawn = []
    for rank in (0, 1):
        engine = Engine(spec, torch.device("cpu"), world=World(rank, 2))
        start = torch.cat([p.detach().flatten() for p in engine.parameters])
        drawn.append((start, engine._keys(2, 3)))
    assert torch.equal(drawn[0][0], drawn[1][0])
    alone = Engine(spec, torch.device("cpu"))._keys(4, 3)
    assert torch.equal(alone, torch.cat([keys for _, keys in drawn]))
    assert len(alone.flatten(1).unique(dim=0)) == 4


def test_tasks_of_a_slurm_step_are_ranks(monkeypatch, tmp_path):
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(
        '#!/bin/sh\n[ "$*" = "show hostnames n[07-08]" ] && printf "n07\\nn08\\n"\n'
    )
    scontrol.chmod(0o755)
    step = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_STEP_NUM_TASKS": "8",
        "SLURM_PROCID": "5",
        "SLURM_LOCALID": "1",
        "SLURM_STEP_NODELIST": "n[07-08]",
        "SLURM_JOB_ID": "40007",
    }
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")  # so that what the call sets is undone
        monkeypatch.delenv(name)
    for name, value in step.items():
        monkeypatch.setenv(name, value)
    met = {}
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *a, **k: met.update(k))
    assert parallel.join("cpu", "slurm") == World(5, 8, 1)
    assert met == {"rank": 5, "world_size": 8}
    assert (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]) == ("n07", "15007")
