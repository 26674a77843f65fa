"""Training: a function of its specification, resumable to the bit, and honest when it fails."""

import json
import os
import signal

import numpy as np
import pytest
import torch

from blindspot import files, provenance, tensorfile
from blindspot.config.revisions import TRAINING_REVISION
from blindspot.config.runfiles import WEIGHTS
from blindspot.config.spec import RunSpec
from blindspot.data.tokens import Tokens
from blindspot.errors import BlindspotError, InterruptedRunError, LockedError
from blindspot.lm.model import LoopedLM
from blindspot.training import checkpoint, remake
from blindspot.training import train as training
from blindspot.training.engine import Engine
from blindspot.training.lock import exclusive
from blindspot.training.train import train
from reference_model import states, token_nll
from toys import CELLS
from training import (
    EACH_STEP,
    assert_same_run,
    log_of,
    other_ids,
    record_of,
    trajectory,
    weights,
)


def interrupt_at(monkeypatch, step, action):
    """Run `action(engine)` once, just after `step` optimizer steps."""
    original = Engine.step

    def stepping(self, ids, at, look=False):
        original(self, ids, at, look)
        if at + 1 == step:
            monkeypatch.setattr(Engine, "step", original)
            action(self)

    monkeypatch.setattr(Engine, "step", stepping)


def test_the_same_specification_gives_the_same_run_and_another_seed_another(job):
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        train(job(where=name, seed=seed))
    assert_same_run(job(where="a"), job(where="b"))
    a, c = weights(job(where="a")), weights(job(where="c", seed=6))
    assert not torch.equal(a["embedding.weight"], c["embedding.weight"])


def test_training_learns_the_text_and_writes_what_it_did(job):
    j = job(steps=60, validate_every=12)
    train(j)
    rows = trajectory(j)
    validation = [r for r in rows if r["split"] == "validation" and r["k"] == "3"]
    assert float(validation[0]["ce"]) > 5
    assert float(validation[-1]["ce"]) < float(validation[0]["ce"]) - 1.5
    assert [int(r["step"]) for r in validation] == [0, 12, 24, 36, 48, 60]
    logged = sorted({int(r["step"]) for r in rows if r["split"] == "train"})
    assert logged == [1, *range(5, 61, 5)]
    assert {r["k"] for r in rows} == {"0", "1", "2", "3"}
    assert all((r["ce"] == "") == (r["k"] == "0") for r in rows)
    assert all((r["grad_norm"] != "") == (r["k"] == "0" and r["split"] == "train") for r in rows)
    result = json.loads((j.out / "run.json").read_text())
    assert result["hash"] == j.spec.hash
    assert RunSpec.model_validate(result["spec"]) == j.spec
    assert result["steps"] == 60
    assert result["provenance"]["resumes"] == 0
    for name, digest in result["files"].items():
        assert files.sha256_file(j.out / name) == digest
    assert result["tokens_seen"] == 60 * 4 * 12
    assert result["parameters"] == sum(t.numel() for t in weights(j).values())
    assert result["provenance"]["versions"]["torch"].startswith(torch.__version__.split("+")[0])
    assert not list(j.state.glob("step-*"))


@pytest.mark.parametrize("cell", ["terminal-rms", "perloop-rms-interloop"])
def test_the_logged_numbers_are_those_of_the_plain_reference(cell, job):
    j = job(cell, steps=5, dropout=0.0)
    train(j)
    p = {name: t.double() for name, t in weights(j).items()}
    trainer = training.Trainer(j)
    inputs, targets = trainer.validation[:, :-1], trainer.validation[:, 1:]
    hs = states(p, inputs, j.spec.model)
    last = [r for r in trajectory(j) if r["split"] == "validation" and r["step"] == "5"]
    for k, row in enumerate(last):
        norms = hs[k].norm(dim=-1).flatten().numpy()
        assert float(row["norm_mean"]) == pytest.approx(norms.mean(), rel=1e-5)
        assert float(row["norm_p50"]) == pytest.approx(np.quantile(norms, 0.5), rel=1e-5)
        assert float(row["norm_p99"]) == pytest.approx(np.quantile(norms, 0.99), rel=1e-5)
        assert float(row["norm_max"]) == pytest.approx(norms.max(), rel=1e-5)
        if k:
            ce = token_nll(p, hs[k], k, targets, j.spec.model).mean().item()
            assert float(row["ce"]) == pytest.approx(ce, rel=1e-5)


def test_twenty_steps_equal_a_plain_training_loop(job):
    """The trainer against AdamW by hand on the plain reference's gradients (float32)."""
    from reference_model import total_loss

    j = job("perloop-rms-penalty", steps=20, dropout=0.0)
    train(j)
    torch.manual_seed(j.spec.seed)
    p = {n: t.detach().clone() for n, t in LoopedLM(j.spec.model).named_parameters()}
    m = {n: torch.zeros_like(t) for n, t in p.items()}
    v = {n: torch.zeros_like(t) for n, t in p.items()}
    batches = training.Trainer(j).batches
    for step in range(20):
        batch = torch.from_numpy(batches[step])
        leaves = {n: t.requires_grad_() for n, t in p.items()}
        total = total_loss(leaves, batch[:, :-1], batch[:, 1:], j.spec.model, j.spec.objective)
        grads = dict(zip(p, torch.autograd.grad(total, list(leaves.values())), strict=True))
        norm = torch.sqrt(sum(g.square().sum() for g in grads.values()))
        scale = min(1.0, 1.0 / (norm.item() + 1e-6))
        for n, g in grads.items():
            g = g * scale
            m[n] = 0.9 * m[n] + 0.1 * g
            v[n] = 0.999 * v[n] + 0.001 * g * g
            update = (m[n] / (1 - 0.9 ** (step + 1))) / (
                (v[n] / (1 - 0.999 ** (step + 1))).sqrt() + 1e-8
            )
            p[n] = (p[n].detach() * (1 - 3e-3 * 0.01) - 3e-3 * update).detach()
    for name, tensor in weights(j).items():
        torch.testing.assert_close(tensor, p[name], rtol=1e-3, atol=2e-4, msg=name)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGUSR2])
@pytest.mark.parametrize("cell", ["perloop-rms", "terminal-rms-penalty"])
def test_a_run_stopped_by_signals_twice_ends_as_if_it_never_was(number, cell, job, monkeypatch):
    train(job(cell, where="whole"))
    j = job(cell)
    for step in (7, 16):
        interrupt_at(monkeypatch, step, lambda _: os.kill(os.getpid(), number))
        with pytest.raises(InterruptedRunError, match=rf"step {step} of 24") as stopped:
            train(j)
        assert stopped.value.exit_code == 85
        assert not j.out.exists(), "a run that is not finished has no result"
        assert next(p.stem for p in checkpoint.checkpoints(j.state)) == f"step-{step:08d}"
    train(j)
    assert_same_run(j, job(cell, where="whole"))


def test_a_run_that_dies_goes_on_from_its_last_checkpoint(job, monkeypatch):
    """Rows logged after the checkpoint and lost with the process are logged again, once."""
    train(job(where="whole"))
    j = job(execution=EACH_STEP)

    class Power(BaseException):
        pass

    def fail(_):
        raise Power

    interrupt_at(monkeypatch, 13, fail)
    with pytest.raises(Power):
        train(j)
    assert [p.stem for p in checkpoint.checkpoints(j.state)] == ["step-00000012", "step-00000011"]
    train(j)
    assert_same_run(j, job(where="whole"))


def test_a_damaged_checkpoint_is_named_and_passed_over(job, monkeypatch, capsys):
    train(job(where="whole"))
    j = job(execution=EACH_STEP)
    interrupt_at(monkeypatch, 9, lambda _: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(InterruptedRunError):
        train(j)
    newest = checkpoint.checkpoints(j.state)[0]
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    train(j)
    said = capsys.readouterr().err
    assert f"{newest}: damaged" in said
    assert "resumes at step 8 of 24" in said
    assert_same_run(j, job(where="whole"))


def stopped(job, monkeypatch, step):
    """An attempt at a job that a signal ends after `step` steps, its state saved."""
    with monkeypatch.context() as patch:
        interrupt_at(patch, step, lambda _: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(InterruptedRunError):
            train(job)


def test_what_a_training_notes_is_what_status_shows(job, monkeypatch):
    from blindspot.plan import progress

    j, shown = job(), progress.Progress(None, "waiting")
    stopped(j, monkeypatch, 7)
    progress._read_note(j.state / "progress.json", shown)
    assert (shown.step, shown.steps, shown.resumes) == (7, 24, 0)
    train(j)
    progress._read_note(j.state / "progress.json", shown)
    assert (shown.step, shown.steps, shown.resumes, shown.left) == (24, 24, 1, 0.0)
    last = [r for r in trajectory(j) if r["split"] == "train"][-1]
    assert shown.ce == pytest.approx(float(last["ce"]))
    assert shown.norm == pytest.approx(float(last["norm_mean"]))
    timing = (j.out / "timing.csv").read_text().splitlines()[-1]
    assert shown.tokens_per_s == pytest.approx(float(timing.split(",")[2]), rel=1e-3)
    assert 0 <= shown.age < 60


def test_starting_over_says_why(job, monkeypatch):
    """In the log and in the record; a first start has nothing to say."""
    j = job(steps=8, execution=EACH_STEP)

    class Power(BaseException):
        pass

    def fail(_):
        raise Power

    interrupt_at(monkeypatch, 3, fail)
    j.execution = j.execution.model_copy(update={"checkpoint_steps": None})
    with pytest.raises(Power):
        train(j)
    assert "starts from nothing" not in log_of(j)
    train(j)
    reason = "an earlier attempt left no checkpoint"
    assert log_of(j).count(f"starts from nothing: {reason}") == 1
    assert record_of(j)["provenance"]["started_over"] == reason

    j = job(where="ruined", steps=8, execution=EACH_STEP)
    stopped(j, monkeypatch, 5)
    for path in checkpoint.checkpoints(j.state):
        path.write_bytes(path.read_bytes()[:-1])
    train(j)
    assert log_of(j).count("trying the one before it") == 1, "there is one before the newer only"
    assert "starts from nothing: of its checkpoints (step-00000005.safetensors," in log_of(j)
    assert "none is whole" in record_of(j)["provenance"]["started_over"]

    train(job(where="first", steps=8))
    assert record_of(job(where="first", steps=8))["provenance"]["started_over"] is None


def test_a_run_that_is_made_anew_says_so_however_often_it_is_interrupted(job, monkeypatch):
    j = job(steps=8)
    train(j)
    remake.ask(j.state)
    stopped(j, monkeypatch, 4)
    train(j)
    assert log_of(j).count("starts from nothing: reuse: false asks for it") == 1
    assert record_of(j)["provenance"]["started_over"] == "reuse: false asks for it"
    assert record_of(j)["provenance"]["resumes"] == 1


def test_weights_are_bound_to_the_ids_they_were_trained_on(job, tokens, tmp_path, monkeypatch):
    """Same settings, other ids: neither a checkpoint nor finished weights are taken up on them."""
    own, other = Tokens.open(tokens[0]).digest, other_ids(tokens, tmp_path / "other")
    theirs = Tokens.open(other[0]).digest
    j = job(steps=8)
    stopped(j, monkeypatch, 5)
    assert tensorfile.read(checkpoint.checkpoints(j.state)[0]).meta["tokens"] == own != theirs
    refused = rf"token files of digest {own}, those in {other[0]} have {theirs}"
    j.tokens = other[0]
    with pytest.raises(BlindspotError, match=refused):
        train(j)
    j.tokens = tokens[0]
    train(j)
    assert record_of(j)["tokens_sha256"] == own
    assert tensorfile.read(j.state / WEIGHTS).meta["tokens"] == own
    before = (j.out / "run.json").read_bytes()
    j.tokens = other[0]
    with pytest.raises(BlindspotError, match=refused):
        train(j)
    assert (j.out / "run.json").read_bytes() == before


def test_a_checkpoint_from_before_it_named_its_tokens_is_taken_up_and_that_is_said(
    job, monkeypatch
):
    """So with everything else that later versions put beside the tensors."""
    j = job(steps=8)
    stopped(j, monkeypatch, 5)
    path = checkpoint.checkpoints(j.state)[0]
    saved = tensorfile.read(path)
    added = ("tokens", "compiled", "compile_seconds", "started_over")
    tensorfile.write(path, saved.tensors, {k: v for k, v in saved.meta.items() if k not in added})
    train(j)
    assert "from before weights named their token files" in log_of(j)
    train(job(where="whole", steps=8))
    assert_same_run(j, job(where="whole", steps=8))


def test_a_checkpoint_of_another_run_is_refused(job, monkeypatch):
    j = job()
    interrupt_at(monkeypatch, 3, lambda _: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(InterruptedRunError):
        train(j)
    other = job(seed=6)
    other.state = j.state
    with pytest.raises(BlindspotError, match=f"belongs to run {j.spec.hash}, not to"):
        train(other)


def test_lost_results_are_written_again_without_training(job, monkeypatch, capsys):
    j = job()
    train(j)
    before = (j.out / "trajectory.csv").read_bytes()
    for path in j.out.iterdir():
        path.unlink()
    monkeypatch.setattr(Engine, "step", None)
    # Wherever that is done: the record is of where it was trained.
    trained_on = provenance.device_name(torch.device("cpu"))
    monkeypatch.setattr(provenance, "device_name", lambda device: "another machine")
    train(j)
    assert record_of(j)["provenance"]["device"] == trained_on
    assert (j.out / "trajectory.csv").read_bytes() == before
    assert "already trained" in capsys.readouterr().err
    # As a kill between the writing of the weights and the deletion of checkpoints leaves it.
    (j.state / "step-00000020.safetensors").write_bytes(b"of no more use")
    train(j)
    assert not checkpoint.checkpoints(j.state)


def test_a_second_trainer_is_refused_and_a_dead_one_is_not_in_the_way(job):
    j = job()
    with (
        exclusive(j.state),
        pytest.raises(LockedError, match=f"another process trains this run.*{os.getpid()}"),
    ):
        train(j)
    train(j)
    assert (j.out / "run.json").exists()


def test_validation_leaves_training_as_it_was(job):
    """T-05: with another number of validations the weights are the same."""
    train(job(where="often", validate_every=5))
    train(job(where="never", validate_every=1000))
    a, b = weights(job(where="often", validate_every=5)), weights(job(where="never"))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_tokens_of_another_study_are_refused(job):
    j = job()
    j.spec = j.spec.model_copy(update={"data": j.spec.data | {"revision": 99}})
    with pytest.raises(BlindspotError, match="build the tokens of this study"):
        train(j)
    assert not j.out.exists()


def test_a_study_for_a_gpu_does_not_start_on_a_machine_without(job):
    j = job()
    j.device = "cuda"
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(BlindspotError, match=r"no GPU.*make demo.*device: cpu"):
        train(j)


def test_a_full_disk_leaves_the_older_checkpoint(job, monkeypatch):
    j = job(execution=EACH_STEP)
    saves = iter(range(100))
    original = tensorfile.save_file

    def full(*arguments, **named):
        if next(saves) == 4:
            raise OSError(28, "No space left on device")
        original(*arguments, **named)

    monkeypatch.setattr(tensorfile, "save_file", full)
    with pytest.raises(BlindspotError, match=r"No space left on device.*earlier checkpoints"):
        train(j)
    assert tensorfile.read(checkpoint.checkpoints(j.state)[0]).meta["step"] == 4
    assert not list(j.state.glob(".step*")), "nothing half-written is left"


def test_epochs_become_whole_batches(job):
    spec = job(steps=None, epochs=2).spec
    assert spec.steps(windows=11) == 5  # 22 windows, batches of 4
    assert job(steps=None, epochs=0.5).spec.steps(windows=11) == 1


def test_cells_are_all_trainable(job):
    for cell in CELLS:
        train(job(cell, where=cell, steps=2))
        assert len(trajectory(job(cell, where=cell, steps=2))) == 4 * 4  # 2 train, 2 validation


def test_the_trajectory_is_the_one_that_results_rest_on(job):
    """Golden: when this moves, TRAINING_REVISION must be raised, or old and new runs would mix."""
    j = job("perloop-rms-penalty", steps=20, log_every=10, validate_every=20)
    train(j)
    found = {
        (r["step"], r["split"], r["k"]): (
            r["ce"] and round(float(r["ce"]), 3),
            float(r["norm_mean"]),
        )
        for r in trajectory(j)
    }
    golden = {
        ("1", "train", "3"): (12.833, 6.26442957),
        ("10", "train", "1"): (11.015, 5.98565722),
        ("20", "validation", "0"): ("", 5.31904602),
        ("20", "validation", "3"): (7.237, 14.9220953),
    }
    for key, (ce, norm) in golden.items():
        assert found[key][0] == pytest.approx(ce, abs=2e-3), key
        assert found[key][1] == pytest.approx(norm, rel=1e-3), key
    assert TRAINING_REVISION == 3
