"""Radial gradients against finite differences, autograd over the whole loss, and closed forms."""

import math

import numpy as np
import pytest
import torch

import reference_model as plain
from blindspot.measure import gradients as g
from blindspot.measure.subject import without_eps
from measuring import parameters, subject, table
from toys import CELLS


def setting(cell, **changes):
    s = subject(cell, **changes)
    inputs, targets = next(s.chunks(s.sample("validation", 24)))
    return s, s.model(inputs), targets


def contribution(s, state, k, targets, source, path):
    """The part of the objective (x tokens) that depends on H_k in that way, by the reference."""
    spec, p, objective = s.spec.model, parameters(s), s.spec.objective
    states = [state]
    for j in range(k + 1, spec.loops + 1):
        states.append(s.model.loop(states[-1], j))
    trained = [spec.loops] if objective.loss == "terminal" else list(range(1, spec.loops + 1))
    total = 0.0
    for j, h in enumerate(states, start=k):
        if (path == "immediate") != (j == k):
            continue
        if source == "ce" and (j in trained or path == "immediate"):
            total += plain.token_nll(p, h, j, targets, spec).sum() / len(trained)
        if source == "penalty":
            size = spec.d_model if objective.penalty.kind == "mean-square" else 1
            total += objective.penalty.weight * (h * h).sum() / size / spec.loops
    return float(total)


@pytest.mark.parametrize("cell", CELLS)
def test_each_part_equals_finite_differences(cell):
    s, states, targets = setting(cell)
    found = dict(g.gradients(s.model, states, targets, s.spec.objective))
    loops, has_penalty = 3, s.spec.objective.penalty is not None
    keys = {("ce", "immediate", k) for k in (1, 2, 3)} | {("ce", "recurrence", k) for k in (1, 2)}
    keys |= {("penalty", path, k) for _, path, k in keys} if has_penalty else set()
    assert set(found) == keys and loops == s.loops
    generator = torch.manual_seed(3)
    for (source, path, k), gradient in found.items():
        h = states[k]
        for direction in (h, torch.randn(h.shape, dtype=h.dtype, generator=generator)):
            e = 1e-5
            up, down = (
                contribution(s, h + x * direction, k, targets, source, path) for x in (e, -e)
            )
            exact = float((gradient * direction).sum())
            assert exact == pytest.approx((up - down) / (2 * e), rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("cell", CELLS)
def test_parts_add_up_to_the_gradient_of_the_objective(cell):
    """Against autograd over the reference's whole objective, states kept in its graph."""
    s, _, targets = setting(cell)
    spec, objective, p = s.spec.model, s.spec.objective, parameters(s)
    inputs = torch.from_numpy(s.sample("validation", 24)[:, :-1])
    with torch.enable_grad():
        # The loss of a chain that starts anew at each state gives every dL/dH_k.
        h0 = plain.states(p, inputs, spec, loops=1)[0]
        states, leaves = [h0], []
        for k in range(1, spec.loops + 1):
            leaf = (s.model.loop(states[-1], k) + 0).clone()
            leaf = leaf if leaf.requires_grad else leaf.requires_grad_()
            leaf.retain_grad()
            leaves.append(leaf)
            states.append(leaf)
        trained = [spec.loops] if objective.loss == "terminal" else range(1, spec.loops + 1)
        total = sum(plain.token_nll(p, states[k], k, targets, spec).sum() for k in trained)
        total = total / len(trained)
        if objective.penalty is not None:
            size = spec.d_model if objective.penalty.kind == "mean-square" else 1
            squares = sum((h * h).sum() for h in states[1:])
            total = total + objective.penalty.weight * squares / size / spec.loops
        total.backward()
    parts = dict(g.gradients(s.model, [h.detach() for h in states], targets, objective))
    for k, leaf in enumerate(leaves, start=1):
        mine = sum(
            part
            for (source, path, at), part in parts.items()
            if at == k and (source != "ce" or path != "immediate" or k in trained)
        )
        torch.testing.assert_close(mine, leaf.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("cell", CELLS)
def test_blindness_is_the_readouts_in_every_cell(cell):
    s = subject(cell, settings={"probe_tokens": 96})
    rows = table("gradients", g.measure(s)["gradients"])
    for r in rows:
        k, raw = r["k"], not s.model.readout.normalizes(int(r["k"]))
        if r["source"] == "penalty" and r["path"] == "immediate":
            assert r["cos_mean"] == pytest.approx(1) and r["radial_mean"] > 0
        if r["source"] == "ce" and r["path"] == "immediate":
            terminal = s.spec.objective.loss == "terminal"
            assert r["trained"] == (k == 3 or not terminal)
            assert (r["cos_abs_p50"] > 1e-3) == raw, r
            if r["dtype"] == "float64" and not raw and cell != "perloop-layernorm-sum":
                assert r["cos_abs_p50"] < 1e-6
        assert r["tokens"] == 96 and r["width"] == 16
        assert r["cos2d_mean"] == pytest.approx(16 * r["cos2_mean"])


def test_aggregates_equal_a_loop_over_tokens():
    s = subject("perloop-raw", settings={"probe_tokens": 24})
    row = next(
        r
        for r in table("gradients", g.measure(s)["gradients"])
        if (r["k"], r["path"], r["dtype"]) == (2, "recurrence", "float64")
    )
    _, states, targets = setting("perloop-raw")
    gradient = dict(g.gradients(s.model, states, targets, s.spec.objective))["ce", "recurrence", 2]
    cos, radial, size = [], [], []
    for n in range(2):
        for t in range(12):
            a, h = gradient[n, t].tolist(), states[2][n, t].tolist()
            dot = sum(x * y for x, y in zip(a, h, strict=True))
            norms = [math.sqrt(sum(x * x for x in v)) for v in (a, h)]
            cos.append(dot / norms[0] / norms[1])
            radial.append(dot / norms[1])
            size.append(norms[0])
    assert row["cos_mean"] == pytest.approx(np.mean(cos))
    assert row["cos_abs_mean"] == pytest.approx(np.mean(np.abs(cos)))
    assert row["cos_abs_p50"] == pytest.approx(np.median(np.abs(cos)))
    assert row["cos_abs_p90"] == pytest.approx(np.quantile(np.abs(cos), 0.9))
    assert row["cos2_mean"] == pytest.approx(np.mean(np.square(cos)))
    assert row["radial_mean"] == pytest.approx(np.mean(radial))
    assert row["grad_norm_mean"] == pytest.approx(np.mean(size))


@pytest.mark.parametrize("d", [2, 3, 64, 512])
def test_chance_level_of_a_random_direction(d):
    mean, square = g.chance(d)
    v = np.random.default_rng(0).normal(size=(200_000 // d + 20_000, d))
    cos = v[:, 0] / np.linalg.norm(v, axis=1)
    assert mean == pytest.approx(np.abs(cos).mean(), rel=0.02)
    assert square == pytest.approx((cos**2).mean(), rel=0.04)
    assert g.chance(512)[0] == pytest.approx(0.035, abs=5e-4)


def test_eps_gives_small_states_a_radial_part_of_the_predicted_size():
    """<grad_H L, H> = eps / (m + eps) <grad_n L, n>, n = H / sqrt(m + eps), m = mean(H^2)."""
    s = subject("perloop-rms", settings={"probe_tokens": 96}, norm_eps=1e-2)
    s.model.embedding.weight *= 0.02  # tokens of very different norms, some near eps
    s.model.position.weight *= 0.02
    rows = table("gradient_eps", g.measure(s)["gradient_eps"])
    assert {r["k"] for r in rows} == {1, 2, 3} and all(r["eps"] == 1e-2 for r in rows)
    inputs, targets = next(s.chunks(s.sample("validation", 96)))
    state = s.model(inputs)[1]
    m = state.square().mean(-1, keepdim=True)
    n = (state / torch.sqrt(m + 1e-2)).requires_grad_()
    with torch.enable_grad():
        logits = n * s.model.readout.gain @ s.model.embedding.weight.T
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), reduction="sum"
        )
        grad_n = torch.autograd.grad(loss, n)[0]
    norm = torch.linalg.vector_norm(state, dim=-1)
    predicted = (1e-2 / (m + 1e-2)).squeeze(-1) * (grad_n * n).sum(-1) / norm / 3
    for r in (r for r in rows if r["k"] == 1):
        inside = (norm >= r["norm_low"]) & (norm < r["norm_high"])
        assert r["tokens"] == int(inside.sum())
        assert r["radial_mean"] == pytest.approx(predicted[inside].mean().item(), rel=1e-6)
        assert abs(r["radial_mean_eps0"]) < 1e-12 and r["cos_abs_mean_eps0"] < 1e-12
        assert r["cos_abs_mean"] > 1e-6
    assert g.measure(subject("perloop-raw"))["gradient_eps"] == []


def test_measuring_leaves_the_model_as_it_was():
    s = subject("perloop-rms-penalty")
    before = {name: p.clone() for name, p in s.model.named_parameters()}
    first = g.measure(s)
    assert first == g.measure(s)
    assert s.model.readout.eps == 1e-6 and not s.model.training
    assert without_eps(s.model).readout.eps == 0
    for name, p in s.model.named_parameters():
        assert torch.equal(p, before[name]) and p.grad is None and not p.requires_grad
