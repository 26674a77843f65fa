"""The two lemmas as identities in float64, for whatever state, width and scale hypothesis finds."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blindspot.lm.model import LoopedLM
from blindspot.measure import updates
from blindspot.measure.gradients import immediate, split
from blindspot.measure.subject import without_eps
from toys import toy_model

EPS = 2.220446049250313e-16

seeds = st.integers(0, 2**32 - 1)
#: Norms far below and above anything that training reaches.
scales = st.floats(-6, 6).map(lambda x: 10.0**x)


def draw(cell, seed, scale, **changes):
    """A float64 model, a state of norm about `scale`, and targets."""
    generator = torch.manual_seed(seed)
    model = LoopedLM(toy_model(cell, **changes)).double().eval().requires_grad_(False)
    if hasattr(model.readout, "gain"):
        model.readout.gain.mul_(0.5 + torch.rand(16))
    state = torch.randn(2, 6, 16, dtype=torch.float64, generator=generator)
    state *= scale / 4
    return model, state, torch.randint(37, (2, 6), generator=generator)


def ce(logits, targets):
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), reduction="none"
    ).view(targets.shape)


@settings(max_examples=40, deadline=None)
@given(seeds, scales, st.floats(-12, 0).map(lambda x: 10.0**x) | st.just(0.0))
def test_visibility_rms_readouts_see_the_scale_through_eps_alone(seed, scale, eps):
    """n = r(H), m = mean(H^2): <grad_H L, H> = eps / (m + eps) <grad_n L, n>; 0 at eps = 0."""
    model, state, targets = draw("perloop-rms", seed, scale, norm_eps=eps)
    left = (immediate(model, state, 1, targets) * state).sum(-1)
    m = state.square().mean(-1)
    n = (state / torch.sqrt(m + eps)[..., None]).requires_grad_()
    logits = n * model.readout.gain @ model.embedding.weight.T
    grad_n = torch.autograd.grad(ce(logits, targets).sum(), n)[0]
    inner = (grad_n * n).sum(-1)
    right = eps / (m + eps) * inner
    # Rounding is of the size of the terms that cancel: |grad_n| |n|, times a few operations.
    size = (grad_n.norm(dim=-1) * n.norm(dim=-1)).detach()
    assert bool(((left - right).abs() <= 200 * EPS * size).all())
    if eps == 0:
        cos = split(immediate(model, state, 1, targets), state).cos
        assert cos.abs().max() < 1e-13


@settings(max_examples=40, deadline=None)
@given(seeds, scales)
def test_visibility_layernorm_is_blind_at_eps_0(seed, scale):
    model, state, targets = draw("perloop-layernorm-sum", seed, scale, norm_eps=0.0)
    g = immediate(model, state, 2, targets)
    inner = (g * state).sum(-1)
    assert bool((inner.abs() <= 1e-12 * g.norm(dim=-1) * state.norm(dim=-1)).all())


@settings(max_examples=40, deadline=None)
@given(seeds, st.floats(-6, 2).map(lambda x: 10.0**x))
def test_visibility_raw_readouts_see_it(seed, scale):
    """z = logits: <grad_H L, H> = E_p[z] - z_y."""
    model, state, targets = draw("perloop-raw", seed, scale)
    left = (immediate(model, state, 1, targets) * state).sum(-1)
    z = state @ model.embedding.weight.T
    p = torch.softmax(z, dim=-1)
    right = (p * z).sum(-1) - z.gather(-1, targets[..., None]).squeeze(-1)
    size = z.abs().amax(-1) + 1
    assert bool(((left - right).abs() <= 400 * EPS * size).all())


@settings(max_examples=40, deadline=None)
@given(seeds, st.floats(-3, 3).map(lambda x: 10.0**x), st.floats(0.05, 0.95))
def test_visibility_power_readouts_see_what_their_degree_leaves(seed, scale, alpha):
    """r is of degree 1 - alpha at eps = 0, so by Euler <grad_H L, H> = (1 - alpha) <grad_z L, z>
    of the logits z: (1 - alpha) (E_p[z] - z_y), RMSNorm's 0 and raw's whole in its limits."""
    model, state, targets = draw("perloop-power", seed, scale, norm_eps=0.0, alpha=alpha)
    left = (immediate(model, state, 1, targets) * state).sum(-1)
    root = state.square().mean(-1, keepdim=True).sqrt()
    z = state / root**alpha * model.readout.gain @ model.embedding.weight.T
    p = torch.softmax(z, dim=-1)
    right = (1 - alpha) * ((p * z).sum(-1) - z.gather(-1, targets[..., None]).squeeze(-1))
    size = z.abs().amax(-1) + 1
    assert bool(((left - right).abs() <= 1000 * EPS * size).all())


@settings(max_examples=40, deadline=None)
@given(seeds, scales, scales)
def test_scale_invariance_of_the_readout_is_what_makes_it_blind(seed, scale, factor):
    model, state, targets = draw("perloop-rms", seed, scale, norm_eps=0.0)
    before, after = (ce(model.logits(x, 1), targets) for x in (state, factor * state))
    torch.testing.assert_close(before, after, rtol=1e-11, atol=1e-12)


def one_branch(seed, mlp):
    """A stack of a single residual branch, eps = 0: the other one's output matrix is 0."""
    model, _, _ = draw("perloop-rms", seed, 1.0, layers=1, norm_eps=0.0)
    block = model.blocks[0]
    (block.attention.out if mlp else block.mlp.down).weight.zero_()
    return without_eps(model)


@settings(max_examples=40, deadline=None)
@given(seeds, st.floats(-2, 8).map(lambda x: 10.0**x), st.booleans())
def test_activity_one_branch_is_exact(seed, s, mlp):
    """F(su) = su + b(u) to rounding, so the radial increment is a(u) at every s."""
    model = one_branch(seed, mlp)
    u = updates.unit(torch.randn(2, 6, 16, dtype=torch.float64))
    b = updates.branches(model, u)
    after = model.stack(s * u)
    size = s + b.norm(dim=-1, keepdim=True)
    assert bool(((after - (s * u + b)).abs() <= 200 * EPS * size).all())
    _, _, radial, _, _, _ = updates.update(None, s * u, after)
    a = (u * b).sum(-1)
    assert bool(((radial - a).abs() <= 200 * EPS * size.squeeze(-1)).all())


@settings(max_examples=40, deadline=None)
@given(seeds, st.booleans())
def test_activity_the_angular_rest_of_one_branch_falls_as_one_over_s(seed, mlp):
    """s |u' - u| - |b_perp| in closed form, from the triangle of s u and b, and its 1 / s law."""
    model = one_branch(seed, mlp)
    u = updates.unit(torch.randn(2, 6, 16, dtype=torch.float64))
    b = updates.branches(model, u)
    a = (u * b).sum(-1)
    perp = (b - a[..., None] * u).norm(dim=-1)
    for s in (1e2, 1e3, 1e4):
        _, _, _, _, step, _ = updates.update(None, s * u, model.stack(s * u))
        angle = torch.atan2(perp, s + a)
        torch.testing.assert_close(step, 2 * torch.sin(angle / 2), rtol=1e-9, atol=1e-14)
        # s step - |b_perp| = -a |b_perp| / s + O(1 / s^2), the bound being |b|^3 / s^2.
        rest = s * step - perp
        bound = 2 * b.norm(dim=-1) ** 3 / s**2 + 1e-9
        assert bool(((rest + a * perp / s).abs() <= bound).all())


@settings(max_examples=25, deadline=None)
@given(seeds, st.sampled_from([1, 2, 3]))
def test_activity_a_stack_of_several_branches_falls_as_one_over_s(seed, layers):
    """Radial increment and s x angular step reach the branches' sum at u with a rest ~ 1 / s."""
    model, _, _ = draw("perloop-rms", seed, 1.0, layers=layers, norm_eps=0.0)
    model = without_eps(model)
    u = updates.unit(torch.randn(2, 6, 16, dtype=torch.float64))
    b = updates.branches(model, u)
    a = (u * b).sum(-1)
    perp = (b - a[..., None] * u).norm(dim=-1)
    start = 1e3 * float(b.norm(dim=-1).max())
    rests = []
    for s in (start, 10 * start, 100 * start):
        _, _, radial, _, step, _ = updates.update(None, s * u, model.stack(s * u))
        rests.append(torch.stack([radial - a, s * step - perp]))
    for before, after in itertools.pairwise(rests):
        top = float(before.abs().max())
        assert float((10 * after - before).abs().max()) <= 0.05 * top + 1e-6 * start * 1e-6
    assert math.isfinite(start)


def test_the_lemma_needs_a_normalized_branch():
    """A check of the check: without the norm, the branch grows with s and nothing is constant."""
    model = one_branch(0, mlp=True)
    model.blocks[0].mlp_norm = torch.nn.Identity()
    u = updates.unit(torch.randn(2, 6, 16, dtype=torch.float64))
    small, large = (updates.update(None, s * u, model.stack(s * u))[2] for s in (1.0, 100.0))
    assert (large.abs() / small.abs()).median() > 50
    with pytest.raises(AssertionError):
        torch.testing.assert_close(small, large, rtol=0.1, atol=0)
