"""Compiled and plain attempts at one run: neither the files nor the numbers show which it was."""

import gc
import weakref
from functools import partial

import pytest
import torch

from blindspot import tensorfile
from blindspot.config.execution import Execution
from blindspot.config.runfiles import WEIGHTS
from blindspot.errors import InterruptedRunError
from blindspot.lm.model import LoopedLM
from blindspot.training import checkpoint
from blindspot.training.engine import Engine
from blindspot.training.train import train
from test_engine import batches, engine_of, spec_of, trained
from training import assert_same_run, weights


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


@pytest.mark.parametrize("first", [True, False])
def test_attempts_with_and_without_compilation_are_one_run(first, job, monkeypatch, traced):
    """T-03: saved, resumed, saved, resumed again, in all orders of compiled and not, dropout on.
    Names carry no prefix, and as the operations are the same so are the bits."""
    train(job(where="whole"))
    compiled, j = [], job()
    for number, stop in enumerate((5, 10, 15, 20, None)):
        # One way twice, then the other twice: every pair of attempts occurs over both starts.
        on = (number // 2 % 2 == 0) == first
        j.execution = Execution(compile=on)
        compiled.append(on)
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
    assert compiled == [first, first, not first, not first, first]
    assert_same_run(j, job(where="whole"))
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
