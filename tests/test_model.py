"""The looped decoder against a plain reference in float64, and its structural promises."""

from typing import get_args

import pytest
import torch

from blindspot.config.flops import parameters
from blindspot.config.spec import ModelSpec, Penalty, Readout
from blindspot.config.study import Study
from blindspot.lm import dropout
from blindspot.lm.model import LoopedLM
from blindspot.lm.objective import cross_entropy, loss, norm_penalty
from blindspot.lm.readout import KINDS
from reference_model import attention, batched_attention, read, states, token_nll, total_loss
from toys import CELLS, toy_model, toy_objective


def build(spec, dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    model = LoopedLM(spec).to(dtype).eval()
    # Gains away from 1, so that a forgotten one shows.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.rand_like(parameter))
    return model, dict(model.named_parameters())


def keys_of(spec, step=0, B=3):
    return dropout.step_keys(7, step, range(B), spec.loops, spec.layers)


def batch(spec, B=3, seed=1):
    ids = torch.randint(spec.vocab_size, (B, spec.context + 1), generator=torch.manual_seed(seed))
    return ids[:, :-1], ids[:, 1:]


@pytest.mark.parametrize("cell", CELLS)
def test_states_and_ce_at_each_depth_equal_the_plain_reference(cell):
    spec = toy_model(cell)
    model, p = build(spec)
    tokens, targets = batch(spec)
    found, expected = model(tokens, loops=5), states(p, tokens, spec, loops=5)
    for k, (a, b) in enumerate(zip(found, expected, strict=True)):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
        if k:
            plain = token_nll(p, b, k, targets, spec).mean()
            torch.testing.assert_close(
                cross_entropy(model, a, k, targets), plain, rtol=1e-12, atol=0
            )


def test_the_reference_with_all_heads_at_once_is_the_reference():
    x, qkv, out = (torch.randn(*s, dtype=torch.float64) for s in ((2, 9, 24), (72, 24), (24, 24)))
    whole, plain = batched_attention(x, qkv, out, 3), attention(x, qkv, out, 3)
    torch.testing.assert_close(whole, plain, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("cell", CELLS)
def test_loss_and_gradients_equal_the_plain_reference(cell):
    spec, objective = toy_model(cell), toy_objective(cell)
    model, p = build(spec)
    tokens, targets = batch(spec)
    total = loss(model, model(tokens), targets, objective).total
    plain = total_loss(p, tokens, targets, spec, objective)
    torch.testing.assert_close(total, plain, rtol=1e-12, atol=0)
    names = list(p)
    found = torch.autograd.grad(total, [p[n] for n in names])
    expected = torch.autograd.grad(plain, [p[n] for n in names])
    for name, a, b in zip(names, found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12, msg=name)
        assert a.abs().sum() > 0, f"{name} gets no gradient in {cell}"


@pytest.mark.parametrize("cell", CELLS)
def test_depth_k_of_one_pass_is_a_pass_of_k_loops(cell):
    """L-01: an early exit is read with its own statistics. In the final-norm cell depth k of a
    K-loop run is meant (raw for k < K), however many loops the pass has."""
    spec = toy_model(cell)
    model, _ = build(spec)
    tokens, targets = batch(spec)
    together = model(tokens)
    for k in range(1, spec.loops + 1):
        alone = model(tokens, loops=k)[-1]
        assert torch.equal(alone, together[k])
        assert torch.equal(
            cross_entropy(model, alone, k, targets), cross_entropy(model, together[k], k, targets)
        )


@pytest.mark.parametrize("cell", ["perloop-rms", "terminal-raw", "perloop-rms-interloop"])
def test_no_output_depends_on_a_later_token(cell):
    spec = toy_model(cell)
    model, _ = build(spec)
    tokens, _ = batch(spec)
    before = model(tokens)
    for t in range(spec.context):
        changed = tokens.clone()
        changed[:, t] = (changed[:, t] + 1) % spec.vocab_size
        after = model(changed)
        for k in range(spec.loops + 1):
            assert torch.equal(before[k][:, :t], after[k][:, :t]), f"token {t} leaks back at k={k}"
            assert not torch.equal(before[k][:, t], after[k][:, t])


@pytest.mark.parametrize("cell", CELLS)
def test_readouts_are_scale_invariant_exactly_where_they_should_be(cell):
    spec = toy_model(cell, norm_eps=0.0)
    model, p = build(spec)
    tokens, _ = batch(spec)
    h = model(tokens)[1]
    for k in range(1, spec.loops + 2):
        same = torch.allclose(model.readout(1000 * h, k), model.readout(h, k), rtol=1e-12)
        raw = spec.readout in ("raw", "power") or (
            spec.readout == "final-only-rms" and k < spec.loops
        )
        assert same == (not raw) == model.readout.normalizes(k)
        torch.testing.assert_close(model.readout(h, k), read(p, h, k, spec), rtol=1e-12, atol=0)


def test_every_readout_that_has_a_name_has_an_entry_and_no_other_is_read():
    assert set(KINDS) == set(get_args(Readout))
    with pytest.raises(ValueError, match="readout"):
        toy_model(readout="l2")
    for changes in ({"readout": "power"}, {"readout": "rms", "alpha": 0.5}):
        with pytest.raises(ValueError, match="power needs an exponent"):
            toy_model(**changes)


def test_parameter_counts_of_the_paper():
    from toys import ROOT

    study = Study.load(ROOT / "config.yaml")
    counts = {(r.size, r.spec.model.readout == "raw"): parameters(r.spec.model) for r in study.runs}
    assert counts == {
        ("44m", False): 43_934_208,
        ("44m", True): 43_933_696,
        ("129m", False): 128_822_016,
        ("129m", True): 128_821_248,
    }


@pytest.mark.parametrize("cell", CELLS)
def test_parameter_formula_counts_the_tensors(cell):
    spec = toy_model(cell)
    assert parameters(spec) == sum(p.numel() for p in LoopedLM(spec).parameters())


def test_default_initialization_is_pytorchs_and_the_normal_one_has_its_deviations():
    wide = {"d_model": 128, "vocab_size": 500, "context": 128}
    torch.manual_seed(0)
    default = LoopedLM(toy_model(**wide))
    assert default.embedding.weight.std().item() == pytest.approx(1.0, abs=0.02)
    bound = 128**-0.5
    assert default.blocks[0].attention.qkv.weight.abs().max().item() == pytest.approx(
        bound, rel=1e-3
    )
    normal = LoopedLM(toy_model(**wide, init_std=0.02))
    for name, p in normal.named_parameters():
        if p.dim() == 2:
            writes = "out.weight" in name or "down.weight" in name
            std = 0.02 / 2 if writes else 0.02  # sqrt(2 L) = 2 at L = 2
            assert p.std().item() == pytest.approx(std, rel=0.05), name
        else:
            assert torch.equal(p, torch.ones_like(p))


def test_both_norm_penalties_by_hand():
    h = [torch.tensor([[[3.0, 4.0], [0.0, 0.0]]]), torch.tensor([[[0.0, 0.0], [6.0, 8.0]]])]
    # |H|^2 is 25, 0 and 0, 100: means 12.5 and 50, mean over loops 31.25; d = 2.
    assert norm_penalty(h, Penalty(kind="sum-square", weight=0.1)).item() == pytest.approx(3.125)
    assert norm_penalty(h, Penalty(kind="mean-square", weight=0.1)).item() == pytest.approx(1.5625)


def test_dropout_is_off_in_evaluation_and_where_the_specification_says_in_training():
    """T-05: there is dropout with keys alone, whatever the mode."""
    tokens, _ = batch(toy_model())
    for where in ("embedding", "attention", "residual", "attention-output", "mlp-output"):
        model, _ = build(toy_model(dropout={"rate": 0.5, "at": [where]}))
        plain = model.train()(tokens)[-1]
        assert torch.equal(plain, model.eval()(tokens)[-1])
        one, other = (model(tokens, keys=keys_of(model.spec, step))[-1] for step in (0, 1))
        assert not torch.equal(plain, one) and not torch.equal(one, other), where
        assert torch.equal(one, model(tokens, keys=keys_of(model.spec, 0))[-1])
    model, _ = build(toy_model(dropout={"rate": 0.5, "at": []}))
    assert torch.equal(model(tokens)[-1], model(tokens, keys=keys_of(model.spec))[-1])


def test_each_branch_has_a_place_of_its_own():
    """With all of one branch dropped but a few entries, only what the other one adds is whole."""
    tokens, _ = batch(toy_model())
    for place, dropped in (("attention-output", [True, False]), ("mlp-output", [False, True])):
        model, _ = build(toy_model(layers=1, dropout={"rate": 0.9, "at": [place]}))
        keys = dropout.loop_keys(keys_of(model.spec), 1, 1)
        seen = []
        block = model.blocks[0]
        for branch in (block.attention, block.mlp):
            branch.register_forward_hook(lambda m, i, o, seen=seen: seen.append(o))
        block.mlp_norm.register_forward_pre_hook(lambda m, i, seen=seen: seen.append(i[0]))
        before = model.embed(tokens)
        after = model.stack(before, keys)
        attention, between, mlp = seen
        added = (between - before, after - between)
        for part, whole, lost in zip(added, (attention, mlp), dropped, strict=True):
            zero = (part.abs() < 1e-12).double().mean().item()
            assert (zero > 0.8) == lost, place
            if not lost:
                torch.testing.assert_close(part, whole, rtol=1e-9, atol=1e-12)


def test_an_inter_loop_norm_with_a_gain_needs_a_second_loop():
    with pytest.raises(ValueError, match=r"rms-gain with loops 1 .* never be trained; use none"):
        toy_model("perloop-raw-interloop-gain", loops=1)


def test_zero_loops_are_refused_and_more_than_trained_allowed():
    spec = toy_model()
    model, _ = build(spec)
    tokens, _ = batch(spec)
    with pytest.raises(ValueError, match="loops 0"):
        model(tokens, loops=0)
    assert len(model(tokens, loops=8)) == 9


def test_residual_stream_and_losses_stay_float32_under_autocast():
    """L-04: in bfloat16 an entry of 1,736 does not change when 3 is added."""
    spec = toy_model()
    model, _ = build(spec, torch.float32)
    tokens, targets = batch(spec)
    with torch.autocast("cpu", torch.bfloat16):
        found = model(tokens)
        result = loss(model, found, targets, toy_objective("perloop-rms"))
    assert {h.dtype for h in found} == {torch.float32}
    assert result.total.dtype == torch.float32
    assert all(p.dtype == torch.float32 for p in model.parameters())


def test_architecture_says_nothing_of_dropout_and_initialization():
    a = toy_model(dropout={"rate": 0.1}, init_std=0.02).architecture()
    assert a == toy_model().architecture()
    assert ModelSpec.model_validate(a).d_model == 16
