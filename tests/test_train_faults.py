"""Numbers that are not finite, full disks, folders that can't be written, clocks that leap."""

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from blindspot import tensorfile
from blindspot.config.runfiles import WEIGHTS
from blindspot.config.spec import Training
from blindspot.errors import BlindspotError, InterruptedRunError, LockedError, NonFiniteError
from blindspot.training import checkpoint, state
from blindspot.training import train as training
from blindspot.training.engine import Engine
from blindspot.training.lock import exclusive
from blindspot.training.train import train
from training import (
    EACH_STEP,
    assert_same_run,
    log_of,
    record_of,
    toy_job,
    trajectory,
    weights,
)


def before_steps(monkeypatch, steps, action):
    """Run `action(engine)` just before each of these steps (from 1), in attempts to come too."""
    original = Engine.step

    def stepping(self, ids, at, look=False):
        undo = action(self) if at + 1 in steps else None
        original(self, ids, at, look)
        if undo is not None:
            undo()

    monkeypatch.setattr(Engine, "step", stepping)


def gradient(value):
    """One entry of one gradient becomes `value`, in this step."""

    def action(engine):
        parameter = engine.model.blocks[1].mlp.up.weight

        def spoil(g):
            g = g.clone()
            g[3, 4] = value
            return g

        return parameter.register_hook(spoil).remove

    return action


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e20])
def test_a_gradient_that_is_not_finite_is_not_applied_and_ends_the_run(value, job, monkeypatch):
    """T-04: clipping does not stop NaN; at 1e20 the sum of squares overflows float32. Good
    checkpoints must not be rotated away."""
    j = job(execution={"checkpoint_steps": 5})
    before_steps(monkeypatch, [15], gradient(value))
    with pytest.raises(NonFiniteError) as caught:
        train(j)
    assert caught.value.exit_code == 70
    kept = checkpoint.checkpoints(j.state)
    assert [p.stem for p in kept] == ["step-00000010", "step-00000005"]
    for word in ("step 15", "learning_rate", f"Last good checkpoint: {kept[0]}"):
        assert word in str(caught.value)
    failed = json.loads((j.out / "failed.json").read_text())
    assert (failed["hash"], failed["step"]) == (j.spec.hash, 14)
    assert [p.name for p in j.out.iterdir()] == ["failed.json"]
    assert all(bool(t.isfinite().all()) for t in tensorfile.read(kept[0]).tensors.values())
    monkeypatch.undo()
    train(j)
    train(job(where="whole"))
    assert_same_run(j, job(where="whole"))
    assert not (j.out / "failed.json").exists()


@pytest.mark.parametrize(
    ("where", "named"),
    [
        ("blocks.1.mlp.down.weight", "H_1, the state after loop 1"),
        ("embedding.weight", "H_0, the embedded tokens"),
        ("readout.gain", "CE_1, the cross-entropy after loop 1"),
    ],
)
def test_the_loop_that_is_not_finite_first_is_named(where, named, job, monkeypatch):
    def spoil(engine):
        with torch.no_grad():
            engine.model.get_parameter(where).fill_(float("inf"))

    j = job()
    before_steps(monkeypatch, [7], spoil)
    with pytest.raises(NonFiniteError, match=f"step 7, .*{named}"):
        train(j)


def test_the_gradient_that_is_not_finite_is_named(job, monkeypatch):
    def spoil(engine):
        engine.model.blocks[1].mlp.up.weight.register_hook(lambda g: g * float("nan"))

    before_steps(monkeypatch, [3], spoil)
    with pytest.raises(NonFiniteError, match=r"step 3, .*the gradient of blocks\.1\.mlp\.up\.weig"):
        train(job())


def test_steps_that_are_not_finite_are_skipped_as_the_specification_says(job, monkeypatch):
    """Skipped steps change nothing, moments included, and are in the record; interrupted between
    two of them the run is the same, and one too many in a row ends it."""
    nan, allowed = gradient(float("nan")), {"nonfinite": {"skip": 2}}
    before_steps(monkeypatch, [1, 9, 10, 15], nan)
    whole = job(where="whole", **allowed)
    train(whole)
    assert json.loads((whole.out / "run.json").read_text())["skipped_steps"] == [0, 8, 9, 14]
    j = job(where="torn", execution=EACH_STEP, **allowed)
    for stop in (9, 10):
        before_steps(monkeypatch, [stop], lambda _: lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(BlindspotError, match=f"at step {stop} of 24"):
            train(j)
        monkeypatch.undo()
        before_steps(monkeypatch, [1, 9, 10, 15], nan)
    train(j)
    assert_same_run(j, whole)
    monkeypatch.undo()
    before_steps(monkeypatch, [9, 10, 11], nan)
    with pytest.raises(NonFiniteError, match=r"step 11, after 2 in a row that were left out"):
        train(job(where="failed", **allowed))


def test_a_skipped_step_is_as_if_its_batch_had_not_been(job, monkeypatch):
    before_steps(monkeypatch, [24], gradient(float("nan")))
    train(job(where="skipped", nonfinite={"skip": 1}))
    monkeypatch.undo()
    train(job(where="short", steps=23))
    a, b = (
        weights(job(where="skipped", nonfinite={"skip": 1})),
        weights(job(where="short", steps=23)),
    )
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_the_policy_is_checked():
    assert Training(steps=1).skip == 0
    assert Training(steps=1, nonfinite={"skip": 3}).skip == 3
    for wrong in ("skip", {"skip": 0}, {"skip": 1.0}, {"stop": 1}):
        with pytest.raises(ValueError, match="nonfinite"):
            Training(steps=1, nonfinite=wrong)


def test_a_full_disk_leaves_the_older_checkpoints_and_a_clear_message(tokens, tmp_path):
    """On a real file system that is full."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("needs the right to mount a small file system")
    small = tmp_path / "small"
    small.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs", small], check=False)
    if done.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        whole = toy_job(tokens, tmp_path / "whole")
        train(whole)
        j = toy_job(tokens, small, execution={"checkpoint_steps": 4})
        stopped = Engine.step

        def fill(self, ids, at, look=False):
            if at == 9:  # others fill it while this run trains
                full = pytest.raises(OSError, match="No space left")
                with open(small / "other", "wb", buffering=0) as file, full:
                    while file.write(bytes(4096)):
                        pass
            stopped(self, ids, at, look)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Engine, "step", fill)
            with pytest.raises(
                BlindspotError, match=r"step-00000012.*earlier checkpoints are whol"
            ):
                train(j)
        kept = checkpoint.checkpoints(j.state)
        assert [tensorfile.read(p).meta["step"] for p in kept] == [8, 4]
        assert not list(j.state.glob(".step*")), "nothing half-written is left"
        with pytest.raises(BlindspotError, match=r"MiB are free.*make room, or set `work`"):
            train(j)  # noticed before training
        (small / "other").unlink()
        train(j)
        assert_same_run(j, whole)
    finally:
        subprocess.run(["umount", "-l", small], check=True)


def test_no_room_is_noticed_before_training(job, monkeypatch):
    from blindspot.config.flops import parameters

    j = job()
    needed = 3 * 12 * parameters(j.spec.model)
    for free, fits in ((needed - 1, False), (needed, True)):
        monkeypatch.setattr(state.shutil, "disk_usage", lambda _, f=free: SimpleNamespace(free=f))
        if fits:
            training.Trainer(j)
        else:
            with pytest.raises(BlindspotError, match="MiB are free"):
                training.Trainer(j)


def test_a_folder_that_cannot_be_written_is_named(tokens, tmp_path):
    """As on a read-only mount: no lock, so no training."""
    (tmp_path / "state").write_text("a file where the folder should be")
    j = toy_job(tokens, tmp_path)
    with pytest.raises(BlindspotError, match=rf"{j.state}.*can't be written"):
        train(j)
    if os.geteuid() == 0 and shutil.which("mount"):
        folder = tmp_path / "read-only"
        folder.mkdir()
        flags = ["-t", "tmpfs", "-o", "ro", "tmpfs"]
        if subprocess.run(["mount", *flags, folder], check=False).returncode == 0:
            try:
                with pytest.raises(BlindspotError, match="Read-only file system"):
                    train(toy_job(tokens, folder))
            finally:
                subprocess.run(["umount", folder], check=True)


def test_a_clock_that_leaps_changes_nothing(job, monkeypatch):
    """The wall clock goes back a day, then on by a year, at every look."""
    train(job(where="whole"))
    real, leaps = time.time, iter(range(10**6))
    monkeypatch.setattr(time, "time", lambda: real() + (-86400, 3e7)[next(leaps) % 2])
    j = job(where="leaping")
    train(j)
    assert_same_run(j, job(where="whole"))
    record = json.loads((j.out / "run.json").read_text())
    assert 0 < record["provenance"]["seconds"] < 100
    assert not list(j.state.glob("step-*"))


def test_state_is_saved_every_so_many_minutes(job, monkeypatch):
    """25 s a look at the clock, one look a step and one a save: every third step is due."""
    clock, saved, save = iter(range(0, 10**6, 25)), [], training.Trainer._save

    def saving(self):
        saved.append(self.progress.step)
        save(self)

    monkeypatch.setattr(training, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(training.Trainer, "_save", saving)
    j = job(execution={"checkpoint_minutes": 1})
    train(j)
    assert saved == list(range(3, 24, 3)), "and not after the last"


def test_a_file_system_without_locks_is_told_from_a_lock_that_is_held(tmp_path, monkeypatch):
    def unable(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", unable)
        with (
            pytest.raises(BlindspotError, match="No locks available") as caught,
            exclusive(tmp_path),
        ):
            pass
        assert not isinstance(caught.value, LockedError)
    with exclusive(tmp_path), pytest.raises(LockedError), exclusive(tmp_path):
        pass


def test_a_damaged_file_of_final_weights_is_named_and_says_what_to_do(job):
    j = job(steps=2)
    train(j)
    path = j.state / WEIGHTS
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(
        BlindspotError, match=rf"{path}: damaged.*delete it to train this run again"
    ):
        train(j)
    path.unlink()
    before = trajectory(j)
    train(j)
    assert trajectory(j) == before


def test_what_is_named_as_a_checkpoint_and_is_none_is_passed_over(job, monkeypatch):
    """A folder and a link that leads nowhere, newer than the checkpoint: named, not taken, not in
    the way of a later one, not deleted."""
    j = job(execution=EACH_STEP)
    before_steps(monkeypatch, [9], lambda _: lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(InterruptedRunError):
        train(j)
    monkeypatch.undo()
    folder, link = (j.state / f"step-000000{n}.safetensors" for n in (98, 99))
    folder.mkdir()
    link.symlink_to("nowhere")
    train(j)
    log = log_of(j)
    for path in (folder, link):
        assert f"{path}: named as a checkpoint, but not a file; left alone" in log
    assert "resumes at step 9 of 24" in log
    assert folder.is_dir() and link.is_symlink()
    train(job(where="whole"))
    assert_same_run(j, job(where="whole"))


def test_a_folder_in_the_place_of_the_weights_is_named(job):
    j = job()
    (j.state / WEIGHTS).mkdir(parents=True)
    with pytest.raises(BlindspotError, match=rf"{j.state / WEIGHTS}: a folder.*delete it"):
        train(j)


def test_what_a_save_that_was_killed_left_is_removed(job):
    j = job(steps=2)
    j.state.mkdir(parents=True)
    left = j.state / ".step-00000005.0123abcd.safetensors"
    left.write_bytes(b"half")
    train(j)
    assert not left.exists()


@pytest.mark.parametrize("file", ["trajectory.csv", "timing.csv", "run.json"])
def test_a_disk_that_fills_up_while_results_are_written_is_said(file, job, monkeypatch):
    """With the path, as a message; with room again the results are written, without training."""
    j, sync = job(steps=2), os.fsync

    def full(handle):
        if f"/.{file.partition('.')[0]}." in str(Path(f"/proc/self/fd/{handle}").readlink()):
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(
            BlindspotError, match=rf"{j.out / file}: could not be written \(No space left"
        ):
            train(j)
    assert not (j.out / "run.json").exists() and not list(j.out.glob(".*"))
    monkeypatch.setattr(Engine, "step", None)
    train(j)
    assert record_of(j)["steps"] == 2


def test_weights_of_another_run_are_refused(job):
    j, other = job(steps=2), job(steps=2, seed=6)
    train(j)
    other.state = j.state
    with pytest.raises(BlindspotError, match=f"belongs to run {j.spec.hash}, not to"):
        train(other)
