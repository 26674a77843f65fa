"""Clamps against a plain loop of loops, token by token; fault L-06 (factor 1 changes nothing)."""

import itertools
import math

import numpy as np
import pytest
import torch

import reference_model as plain
from blindspot.measure import clamp
from measuring import parameters, subject, table
from toys import CELLS


def plain_states(s, inputs, intervention):
    """H_1..H_K with the intervention, as matrices (N, d) of the reference model's arithmetic."""
    spec, p, found = s.spec.model, parameters(s), []
    one = spec.model_copy(update={"loops": 1})
    state = None
    for k in range(1, spec.loops + 1):
        if k == 1:
            state = plain.states(p, inputs, one, loops=1)[1]
        else:
            before = state
            given = before
            if spec.interloop != "none":
                given = plain.rms(before, p.get("interloop_gain"), spec.norm_eps)
            state = s.model.stack(given)
            for n in range(state.shape[0]):
                for t in range(state.shape[1]):
                    h, b = state[n, t], before[n, t]
                    if intervention == "norm":
                        state[n, t] = h * (found[0][n, t].norm() / h.norm())
                    else:
                        u = b / b.norm()
                        state[n, t] = h - (h - b).dot(u) * u
        found.append(state.clone())
    return found


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("intervention", ["norm", "radial"])
def test_changes_equal_a_plain_loop_over_tokens(cell, intervention):
    s = subject(cell, settings={"intervention_tokens": 24})
    rows = table("clamp", clamp.measure(s)["clamp"])
    rows = [r for r in rows if r["intervention"] == intervention]
    assert [r["k"] for r in rows] == [1, 2, 3] and all(r["tokens"] == 24 for r in rows)
    windows = torch.from_numpy(s.sample("validation", 24))
    inputs, targets = windows[:, :-1], windows[:, 1:]
    spec, p = s.spec.model, parameters(s)
    free = plain.states(p, inputs, spec)[1:]
    for r, h, edited in zip(rows, free, plain_states(s, inputs, intervention), strict=True):
        k = int(r["k"])
        before = plain.token_nll(p, h, k, targets, spec).flatten().tolist()
        after = plain.token_nll(p, edited, k, targets, spec).flatten().tolist()
        change = [b - a for a, b in zip(before, after, strict=True)]
        mean = sum(change) / 24
        assert r["ce"] == pytest.approx(sum(before) / 24, rel=1e-8)
        assert r["ce_edited"] == pytest.approx(sum(after) / 24, rel=1e-8)
        assert r["change_mean"] == pytest.approx(mean, rel=1e-6, abs=1e-12)
        error = math.sqrt(sum((c - mean) ** 2 for c in change) / 23 / 24)
        assert r["change_se"] == pytest.approx(error, rel=1e-6, abs=1e-12)
        assert r["norm_edited"] == pytest.approx(edited.norm(dim=-1).mean().item(), rel=1e-8)
        if k == 1:
            assert change == [0.0] * 24


def test_clamped_norms_are_those_of_loop_one_and_directions_are_kept():
    s = subject()
    inputs, _ = next(s.chunks(s.sample("validation", 96)))
    states = s.model(inputs, loops=6, edit=clamp.clamp_norm)
    for before, after in itertools.pairwise(states[1:]):
        torch.testing.assert_close(after.norm(dim=-1), states[1].norm(dim=-1), rtol=1e-12, atol=0)
        free = s.model.loop(before, 2)
        cosine = torch.nn.functional.cosine_similarity(free, after, dim=-1)
        torch.testing.assert_close(cosine, torch.ones_like(cosine), rtol=1e-12, atol=0)
    radial = s.model(inputs, edit=clamp.remove_radial)
    for before, after in itertools.pairwise(radial[1:]):
        inside = ((after - before) * before).sum(-1)
        assert inside.abs().max() < 1e-12 * before.square().sum(-1).max()


@pytest.mark.parametrize("cell", CELLS)
def test_a_clamp_to_the_norm_that_is_there_changes_nothing(cell):
    """L-06: the edited path is the plain path."""
    s = subject(cell)
    inputs, _ = next(s.chunks(s.sample("validation", 96)))

    def factor_one(before, state, k):
        return state * (state.norm(dim=-1, keepdim=True) / state.norm(dim=-1, keepdim=True))

    for a, b in zip(s.model(inputs), s.model(inputs, edit=factor_one), strict=True):
        assert torch.equal(a, b)


def test_a_scale_free_model_is_not_moved_by_the_clamp():
    """One branch that is 0: updates vanish, norms stay, the clamp is the identity."""
    s = subject(layers=1)
    for block in s.model.blocks:
        block.attention.out.weight *= 0
        block.mlp.down.weight *= 0
    rows = table("clamp", clamp.measure(s)["clamp"])
    np.testing.assert_allclose([r["change_mean"] for r in rows], 0, atol=1e-14)
