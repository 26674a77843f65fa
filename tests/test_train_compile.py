"""Compiled training: the way a run began is the way it goes on, it is timed apart, and it ends."""

import gc
import json
import os
import signal
import subprocess
import time
import weakref
from functools import partial

import pytest
import torch

from blindspot import tensorfile
from blindspot.config.execution import Execution
from blindspot.config.runfiles import WEIGHTS
from blindspot.errors import BlindspotError, InterruptedRunError
from blindspot.lm.model import LoopedLM
from blindspot.plan import calibrate
from blindspot.training import checkpoint
from blindspot.training.engine import Engine
from blindspot.training.train import train
from test_engine import batches, engine_of, spec_of, trained
from training import assert_same_run, command, log_of, record_of, typed_job, weights


@pytest.fixture
def traced(monkeypatch):
    """The compiler up to its last step, machine code, which takes a toy half a minute and changes
    rounding: graphs of the whole step forward and backward, run by torch's own operations."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    yield
    torch._dynamo.reset()


def stop_after(monkeypatch, step):
    from blindspot.training import stopping

    original = Engine.step

    def stepping(self, ids, at, look=False):
        original(self, ids, at, look)
        if at + 1 == step:
            stopping.request(15)

    monkeypatch.setattr(Engine, "step", stepping)


SMALLEST = {"layers": 1, "loops": 1, "d_model": 8, "heads": 1}


def test_every_k_that_a_step_may_draw_is_compiled_ahead(traced):
    """More of them than the compiler would make of one function, and none left for a step."""
    spec = spec_of("perloop-rms", shape={**SMALLEST, "loops": 10})
    random = spec.objective.model_copy(update={"random_loops": True})
    engine = engine_of(spec.model_copy(update={"objective": random}), compile=True)
    ids = batches(spec, 1)[0]
    assert engine.compile(ids) > 0
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    drawn = {len(engine.forward(ids, step)[0]) - 1 for step in range(80)}
    assert drawn == {*range(1, 11)}
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs


def test_calibration_compiles_any_number_of_classes(traced, monkeypatch):
    monkeypatch.setattr(calibrate, "BUDGET", 0.0)
    cpu = torch.device("cpu")
    specs = {
        str(d): spec_of("perloop-rms", shape={**SMALLEST, "d_model": d}) for d in range(2, 42, 4)
    }
    found = calibrate.timed(specs, cpu, 1, Execution(compile=True))
    assert found["steps"].keys() == specs.keys() and len(specs) == 10


@pytest.mark.extra  # the compiler takes half a minute
def test_a_training_that_is_really_compiled_ends_and_is_timed_apart(tokens, tmp_path):
    """The compiler itself, with nothing in its cache: its idle threads keep no process alive, and a
    signal ends one. Steps are timed without the compiler."""
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}

    def begin(**changes):
        execution = {"compile": True}
        j = typed_job(tokens, tmp_path, dropout=0.0, execution=execution, shape=SMALLEST, **changes)
        return j, subprocess.Popen(command(j), env=environment, stderr=subprocess.DEVNULL)

    def wait_for(process, there):
        deadline = time.monotonic() + 240
        while not there() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)

    j, process = begin(steps=3, log_every=1)
    try:
        wait_for(process, (j.out / "run.json").exists)
        assert process.wait(10) == 0
    finally:
        process.kill()
    found = record_of(j)["provenance"]
    assert found["execution"]["compiled"]
    assert found["compile_seconds"] > 2, "more than a second even on the fastest machine"
    assert found["seconds"] < 0.2 * found["compile_seconds"]
    first, *later = (j.out / "timing.csv").read_text().splitlines()[1:]
    assert len(later) == 2 and float(first.split(",")[1]) < 0.2 * found["compile_seconds"]

    j, process = begin(steps=10**6)
    progress = j.state / "progress.json"
    try:
        wait_for(process, lambda: progress.exists() and json.loads(progress.read_text())["step"])
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 85
    finally:
        process.kill()
    assert tensorfile.read(checkpoint.checkpoints(j.state)[0]).meta["compiled"]


def test_a_compiler_that_is_missing_is_named(job):
    """The real backend, asked for a C++ compiler that is not there."""
    torch._dynamo.reset()
    j = job(steps=2, execution={"compile": True}, shape=SMALLEST, dropout=0.0)
    with (
        # Their own patch: what takes an attribute away again would take it away for good.
        torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",)}),
        torch._inductor.utils.fresh_inductor_cache(),
        pytest.raises(BlindspotError, match=r"execution\.compile: .* could not be compiled"),
    ):
        train(j)
    assert not j.out.exists()


@pytest.mark.parametrize("first", [True, False])
def test_attempts_with_and_without_compilation_are_one_run(first, job, monkeypatch, traced):
    """T-03: saved, resumed, saved, resumed again, asked for in all orders of compiled and not: it
    stays as it began, which its files say. Names carry no prefix, and as the operations are the
    same so are the bits."""
    train(job(where="whole"))
    asked, j = [], job()
    for number, stop in enumerate((5, 10, 15, 20, None)):
        # One way twice, then the other twice: every pair of attempts occurs over both starts.
        on = (number // 2 % 2 == 0) == first
        j.execution = Execution(compile=on)
        asked.append(on)
        if stop is None:
            train(j)
            break
        with monkeypatch.context() as patch:
            stop_after(patch, stop)
            with pytest.raises(InterruptedRunError, match=f"at step {stop} of 24"):
                train(j)
        saved = tensorfile.read(checkpoint.checkpoints(j.state)[0])
        names = {name for name, _ in LoopedLM(j.spec.model).named_parameters()}
        moments = {f"{m}.{name}" for m in ("exp_avg", "exp_avg_sq") for name in names}
        assert set(saved.tensors) == names | moments
        assert saved.meta["compiled"] == first
    assert asked == [first, first, not first, not first, first]
    assert_same_run(j, job(where="whole"))
    found = record_of(j)["provenance"]
    assert found["execution"]["compiled"] == first
    assert (found["compile_seconds"] > 0) == first
    way = "goes on compiled, as it began" if first else "goes on without compiling, as it began"
    assert log_of(j).count(way) == 2
    # The weights are those of a plain model, whoever made them.
    path = j.state / WEIGHTS
    tensorfile.load(dict(LoopedLM(j.spec.model).named_parameters()), tensorfile.read(path), path)
    assert set(weights(j)) == names


def test_the_compiled_step_with_recomputation_is_the_plain_one(traced):
    """With dropout: the masks of the second time are those of the first in a graph, too."""
    spec = spec_of("perloop-rms-penalty", dropout=0.2, shape={"layers": 1, "loops": 2})
    ids = batches(spec, 3)
    plain = trained(engine_of(spec), ids)
    found = trained(engine_of(spec, compile=True, recompute=True), ids)
    for name in plain:
        torch.testing.assert_close(found[name], plain[name], rtol=1e-4, atol=2e-5, msg=name)


@pytest.mark.parametrize("compile_", [False, True])
def test_an_engine_leaves_its_memory_at_once(compile_, traced):
    """Not at some garbage collection: on a GPU that is too late for the next model."""
    spec = spec_of("perloop-rms", shape={"layers": 1, "loops": 2})
    engine = engine_of(spec, compile=compile_)
    trained(engine, batches(spec, 2))
    seen = [weakref.ref(p) for p in engine.parameters] + [weakref.ref(engine)]
    gc.collect()
    gc.disable()
    try:
        del engine
        assert not [ref for ref in seen if ref() is not None]
    finally:
        gc.enable()
