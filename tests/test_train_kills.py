"""Interrupted anywhere, any number of times: the run that it would have been, bit for bit."""

import signal
import subprocess
import time

import numpy as np
import pytest

from blindspot.training import checkpoint
from killing import PLACES, Plan, attempt, caught, random_plan, server
from training import assert_same_run, command, toy_job, typed_job

CELLS = (
    "terminal-rms",
    "terminal-raw",
    "perloop-finalnorm",
    "perloop-rms-penalty",
    "perloop-rms-interloop",
    "perloop-layernorm-sum",
)
#: Interruptions of each of them, at least; 36 in all.
INTERRUPTIONS = 6


@pytest.fixture(scope="module")
def context():
    return server()


@pytest.mark.parametrize("cell", CELLS)
def test_random_interruptions_change_nothing(cell, tokens, context, tmp_path):
    """SIGKILL, SIGTERM and SIGUSR2 at random moments and places, with dropout."""
    whole = toy_job(tokens, tmp_path / "whole", cell)
    started = time.monotonic()
    assert attempt(context, whole) == 0
    usual = time.monotonic() - started
    job = toy_job(tokens, tmp_path / "torn", cell, execution={"checkpoint_steps": 3})
    rng = np.random.default_rng(CELLS.index(cell))
    struck, codes = 0, []
    while struck < INTERRUPTIONS:
        plan = random_plan(rng, usual)
        code = attempt(context, job, plan)
        codes.append((plan, code))
        assert code in (0, 85, -signal.SIGKILL), codes
        struck += code != 0
        if code == 0:  # it got to its end first: the next interruptions are of a run anew
            assert_same_run(job, whole)
            for path in [*job.out.iterdir(), *job.state.glob("*.safetensors")]:
                path.unlink()
    while (code := attempt(context, job)) != 0:
        raise AssertionError(f"an attempt that nothing interrupts ends with {code}")
    assert_same_run(job, whole)
    assert not checkpoint.checkpoints(job.state)


@pytest.mark.parametrize("place", PLACES)
def test_a_kill_at_each_place_changes_nothing(place, tokens, context, tmp_path_factory):
    """SIGKILL just before and just after: the moments that random ones may miss."""
    cache = tmp_path_factory.getbasetemp() / "places"
    whole = toy_job(tokens, cache, "perloop-rms", steps=8, log_every=3, validate_every=5)
    if not whole.out.exists():
        assert attempt(context, whole) == 0
    job = toy_job(
        tokens,
        tmp_path_factory.mktemp("torn"),
        "perloop-rms",
        steps=8,
        log_every=3,
        validate_every=5,
        execution={"checkpoint_steps": 2},
    )
    codes = [attempt(context, job, Plan(signal.SIGKILL, place, at)) for at in (1.0, 1.6, 2.0, 2.6)]
    assert codes[0] == -signal.SIGKILL, "the place is never passed"
    assert set(codes) <= {0, -signal.SIGKILL}
    assert attempt(context, job) == 0
    assert_same_run(job, whole)


def test_a_signal_counts_although_nobody_reads_what_is_said(tokens, tmp_path):
    """Ctrl-C also ends a `tee` behind a command: each line breaks the pipe. The state is saved, the
    exit code is that of an interrupted run."""
    job = typed_job(tokens, tmp_path, steps=10**6, log_every=1)
    process = subprocess.Popen(command(job), stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while "step 1/" not in process.stderr.readline() and time.monotonic() < deadline:
        pass
    process.stderr.close()
    time.sleep(5.5)  # a line of progress is due every five seconds
    assert process.poll() is None, "what cannot be written ends nothing"
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 85
    assert len(checkpoint.checkpoints(job.state)) == 1


def test_a_closed_terminal_stops_nothing_under_nohup(tokens, tmp_path):
    job = typed_job(tokens, tmp_path, steps=40)
    process = subprocess.Popen(
        ["nohup", *command(job)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    while not caught(process.pid, signal.SIGUSR2) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGHUP)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert (job.out / "run.json").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_while_the_program_is_still_importing_is_kept(number, tokens, tmp_path):
    """Q-04: it does not kill, and is answered before the first step, with nothing to save."""
    job = typed_job(tokens, tmp_path, steps=4)
    process = subprocess.Popen(command(job), stderr=subprocess.PIPE, text=True)
    # The first moment at which the program itself has the say.
    deadline = time.monotonic() + 60
    while not caught(process.pid, signal.SIGUSR2) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(number)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 85, said
    assert "at step 0 of 4" in said
    assert not checkpoint.checkpoints(job.state)
    assert not job.out.exists()
