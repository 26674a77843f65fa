"""The engine's step against a plain training loop, and its faster paths against its plain one."""

import os
import platform
import subprocess
import sys

import pytest
import torch

from blindspot import tensorfile
from blindspot.config.execution import Execution
from blindspot.config.spec import RunSpec
from blindspot.lm import heads
from blindspot.lm.objective import cross_entropy, loss
from blindspot.training import checkpoint, memory
from blindspot.training.engine import Engine
from blindspot.training.optimizer import AdamW
from reference_model import token_nll, train_steps
from toys import CELLS, toy_model, toy_objective


def spec_of(cell, dropout=0.0, shape=None, **training):
    settings = {"steps": 20, "learning_rate": 3e-3, "precision": "float32"} | training
    return RunSpec.model_validate(
        {
            "data": {},
            "windows": {"length": 12, "stride": 6},
            "model": toy_model(cell, dropout={"rate": dropout}, **shape or {}).identity(),
            "objective": toy_objective(cell).identity(),
            "training": settings,
            "batch": 4,
            "seed": 5,
        }
    )


def engine_of(spec, double=False, **execution):
    engine = Engine(spec, torch.device("cpu"), Execution(**execution))
    if double:
        engine.model.double()
        engine.optimizer = AdamW(dict(engine.model.named_parameters()), spec.training)
    engine.model.train()
    return engine


def batches(spec, n):
    generator = torch.Generator().manual_seed(3)
    shape = (n, spec.batch, spec.model.context + 1)
    return torch.randint(spec.model.vocab_size, shape, generator=generator)


def trained(engine, ids):
    for step, batch in enumerate(ids):
        engine.step(batch, step)
    assert engine.harvest() == ([], None)
    return {n: p.detach().clone() for n, p in engine.model.named_parameters()}


@pytest.mark.parametrize("cell", CELLS)
def test_twenty_steps_equal_the_plain_reference(cell):
    """In float64, the clipping of gradients included."""
    spec = spec_of(cell)
    engine = engine_of(spec, double=True)
    start = {n: p.detach().clone() for n, p in engine.model.named_parameters()}
    ids = batches(spec, 20)
    found, plain = trained(engine, ids), train_steps(dict(start), ids, spec)
    for name in plain:
        torch.testing.assert_close(found[name], plain[name], rtol=1e-11, atol=1e-11, msg=name)
        assert (plain[name] - start[name]).abs().max() > 1e-2, "and they have moved by much more"


@pytest.mark.parametrize("cell", ["terminal-raw", "perloop-finalnorm", "perloop-layernorm-sum"])
def test_slices_of_the_head_change_nothing_but_rounding(cell, monkeypatch):
    """Loss, gradients and the log's CE, with slices that do not divide the batch."""
    spec = spec_of(cell)
    engine, ids = engine_of(spec, double=True), batches(spec, 1)[0]
    inputs, targets = ids[:, :-1], ids[:, 1:]
    found = []
    for slice_ in (10**9, 5 * spec.model.vocab_size, 1):
        monkeypatch.setitem(heads.SLICE, "cpu", slice_)
        states = engine.model(inputs)
        result = loss(engine.model, states, targets, spec.objective)
        gradients = torch.autograd.grad(result.total, engine.parameters)
        seen = [cross_entropy(engine.model, states[k], k, targets) for k in (1, 2, 3)]
        for k, ce in result.ce.items():
            torch.testing.assert_close(ce, seen[k - 1], rtol=1e-12, atol=0)
        found.append([result.total.detach(), *seen, *gradients])
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-13)


def test_slices_are_whole_tiles_on_a_gpu_and_what_a_cache_holds_elsewhere():
    assert heads.rows(20000, torch.device("cuda")) == 26 * 128  # 2^26 / 20,000 is 3,355
    assert heads.rows(8192, torch.device("cpu")) == 128
    assert heads.rows(2**30, torch.device("cuda")) == 1


def test_a_hopeless_exit_has_a_finite_loss_and_exact_gradients():
    """Logits hundreds apart, as early exits of a terminal-loss run have them: the probability of
    the answer underflows, its logarithm must not."""
    torch.manual_seed(0)
    weight = (30 * torch.randn(37, 16)).requires_grad_()
    x, targets = (10 * torch.randn(2, 6, 16)).requires_grad_(), torch.randint(37, (2, 6))
    mean, each = heads.mean_cross_entropy(weight, [x], targets)
    plain = torch.nn.functional.cross_entropy((x @ weight.T).flatten(0, 1), targets.flatten())
    assert each.item() > 1000
    torch.testing.assert_close(mean, plain, rtol=1e-6, atol=0)
    for a, b in zip(
        torch.autograd.grad(mean, (x, weight)), torch.autograd.grad(plain, (x, weight)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_a_step_reads_nothing_back_and_a_harvest_does(monkeypatch):
    """Tensors without data: whatever would make the host wait for a GPU fails."""
    monkeypatch.setattr(heads, "_working_type", lambda x: x.dtype)  # no autocast knows them
    spec = spec_of("perloop-rms-penalty", dropout=0.1)
    engine = Engine(spec, torch.device("meta"))
    engine.model.train()
    for step, ids in enumerate(batches(spec, 3).to("meta")):
        engine.step(ids, step, look=step == 1)
    for read in (engine.seen, engine.harvest):
        with pytest.raises(NotImplementedError, match="no data"):
            read()


@pytest.mark.parametrize("cell", ["perloop-rms-penalty", "terminal-rms"])
def test_recomputation_gives_the_same_bits_with_dropout(cell):
    spec = spec_of(cell, dropout=0.2)
    ids = batches(spec, 4)
    plain, again = trained(engine_of(spec), ids), trained(engine_of(spec, recompute=True), ids)
    assert all(torch.equal(plain[name], again[name]) for name in plain)


def test_recomputation_computes_again(monkeypatch):
    spec = spec_of("perloop-rms")
    engine, calls = engine_of(spec, recompute=True), []
    engine.model.blocks[0].attention.register_forward_hook(lambda *_: calls.append(1))
    engine.step(batches(spec, 1)[0], 0)
    assert len(calls) == 2 * spec.model.loops


def test_the_compiled_step_is_the_plain_one_to_rounding(tmp_path):
    """All loops and the objective as one graph (fullgraph: nothing falls out of it), through the
    real compiler, with dropout at every place; then, T-03, each goes on from the file of the other.
    """
    spec = spec_of("perloop-finalnorm", dropout=0.1, shape={"layers": 1, "loops": 2})
    ids = batches(spec, 6)
    plain, compiled = engine_of(spec), engine_of(spec, compile=True)
    first = [engine.forward(ids[0], 0)[1].total.item() for engine in (plain, compiled)]
    assert first[1] == pytest.approx(first[0], rel=1e-5)
    for number, engine in enumerate((plain, compiled)):
        trained(engine, ids[:3])
        state = checkpoint.training_state(engine.model, engine.optimizer)
        tensorfile.write(checkpoint.path_of(tmp_path, number), state, {})
    for number, engine in enumerate((compiled, plain)):
        path = checkpoint.path_of(tmp_path, number)
        checkpoint.restore(engine.model, engine.optimizer, tensorfile.read(path), path)
        engine.resume(3, [])
        for step in range(3, 6):
            engine.step(ids[step], step)
    whole = trained(engine_of(spec), ids)
    for engine in (plain, compiled):
        for name, found in engine.model.named_parameters():
            torch.testing.assert_close(found, whole[name], rtol=1e-4, atol=2e-5, msg=name)


@pytest.mark.parametrize("cell", ["perloop-rms", "terminal-raw", "perloop-rms-interloop"])
def test_bf16_products_are_close_and_the_rest_is_float32(cell):
    """Eight bits of a product: the loss agrees to 1 %, the direction of the gradient to 2 %."""
    exact, rough = engine_of(spec_of(cell)), engine_of(spec_of(cell, precision="bf16"))
    ids = batches(exact.spec, 1)[0]
    totals, gradients = [], []
    for engine in (exact, rough):
        states, result = engine.forward(ids, 0)
        assert {t.dtype for t in (*states, result.total, *result.ce.values())} == {torch.float32}
        result.total.backward()
        totals.append(result.total.item())
        gradients.append(torch.cat([p.grad.flatten() for p in engine.parameters]))
    assert totals[1] == pytest.approx(totals[0], rel=1e-2)
    assert torch.cosine_similarity(*gradients, dim=0) > 0.98
    engine_step = trained(rough, batches(rough.spec, 3))
    assert {p.dtype for p in engine_step.values()} == {torch.float32}


def test_evaluation_needs_no_more_memory_with_more_tokens(monkeypatch):
    """L-04: the largest thing that exists is one slice of logits, whatever batch and depths are."""
    monkeypatch.setitem(heads.SLICE, "cpu", 4 * 37)
    sizes = []
    original = torch.nn.functional.linear

    def linear(*arguments):
        out = original(*arguments)
        sizes.append(out.numel())
        return out

    monkeypatch.setattr(heads.F, "linear", linear)
    weight, x = torch.randn(37, 16), torch.randn(8, 12, 16)
    targets = torch.randint(37, (8, 12))
    nll = heads.token_cross_entropy(weight, x, targets)
    assert max(sizes) == 4 * 37
    p = {"embedding.weight": weight}
    plain = token_nll(p, x, 1, targets, toy_model("perloop-raw"))
    torch.testing.assert_close(nll, plain)


def test_a_step_does_not_load_the_compiler():
    """Two seconds of every small run: torch.optim's classes import it at their first use."""
    code = """
import sys, torch
sys.path.insert(0, "tests")
from test_engine import *
import blindspot.training.train
engine = engine_of(spec_of("perloop-rms-penalty", dropout=0.1))
trained(engine, batches(engine.spec, 2))
sys.exit(any(name in sys.modules for name in ("torch._dynamo", "torch._inductor", "sympy")))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


FAULTS = """
import sys, torch
from resource import RUSAGE_SELF, getrusage
from blindspot.training import memory
if sys.argv[1] == "kept":
    memory.keep()
for step in range(4):
    before = getrusage(RUSAGE_SELF).ru_minflt
    held = [torch.ones(1000, 1000) for _ in range(50)]  # 200 MB, in pieces of 4
    del held
print(getrusage(RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator")
def test_a_step_finds_the_memory_of_the_one_before():
    """Page faults of the last of four rounds, where the allocator begins as glibc's does: large
    blocks are mapped, and the top of the heap is given back."""
    env = os.environ | dict.fromkeys(("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"), "131072")
    faults = {
        how: int(subprocess.check_output([sys.executable, "-c", FAULTS, how], env=env))
        for how in ("plain", "kept")
    }
    assert faults["kept"] < 100 < faults["plain"]


def test_an_engine_on_the_cpu_keeps_its_memory(monkeypatch):
    called = []
    monkeypatch.setattr(memory, "keep", lambda: called.append(True))
    Engine(spec_of("perloop-rms"), torch.device("cpu"))
    assert called == [True]
