"""Blind directions: readouts and heads whose hidden directions are known, loops whose growth is
known, and dense derivatives of the whole model."""

import math
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from torch.autograd.functional import jacobian

from blindspot.declared import FILES
from blindspot.declared.columns import Context
from blindspot.declared.spectrum import DIRECTIONS, RANK
from blindspot.lm.recurrence import Start
from blindspot.measure import spectrum
from measuring import subject, table
from toys import CELLS

SETTINGS = {"probe_tokens": 24}
D = 16


def found(s):
    """Rows by k and direction, and by k."""
    tables = {name: table(name, rows) for name, rows in spectrum.measure(s).items()}
    named = {(r["k"], r["direction"]): r for r in tables["spectrum"]}
    return named, {r["k"]: r for r in tables["spectrum_hidden"]}


def exact(cell="perloop-rms", **changes):
    """eps 0: what is blind is blind to rounding."""
    return subject(cell, settings=SETTINGS, norm_eps=0.0, **changes)


def axes():
    return torch.eye(D, dtype=torch.float64)


# --- dense derivatives -------------------------------------------------------------------------


def dense(s, k):
    """Of all tokens of a window: Fisher matrices |H|^2 F and own-token derivatives of loop k + 1
    (n, d, d), states (n, d), singular values of the logits' derivative without its mean (n, d)."""
    fishers, moves, all_states, singular = [], [], [], []
    for row in torch.from_numpy(s.sample("validation", 12)):
        states = s.model(row[None, :-1])
        start = Start(states[0]).after(states[1])
        loop = partial(s.model.loop, k=k + 1, start=start)
        whole = jacobian(loop, states[k])
        for t in range(row.numel() - 1):
            h = states[k][0, t]
            J = jacobian(lambda h: s.model.logits(h[None], k)[0], h)
            p = s.model.logits(h[None], k)[0].softmax(-1)
            fisher = J.T @ (torch.diag(p) - p[:, None] * p) @ J
            fishers.append(fisher * h.square().sum())
            moves.append(whole[0, t, :, 0, t])
            all_states.append(h)
            singular.append(torch.linalg.svdvals(J - J.mean(0)))
    return (torch.stack(x).numpy() for x in (fishers, moves, all_states, singular))


MODELS = {
    **{cell: (cell, {}) for cell in CELLS if "penalty" not in cell and "terminal" not in cell},
    "carry, injection, sandwich": ("perloop-rms", {"carry": 0.7, "inject": True, "sandwich": True}),
    "clamp": ("perloop-rms", {"clamp": "through"}),
}


@pytest.mark.parametrize("name", MODELS)
def test_against_dense_derivatives_of_the_model(name):
    cell, changes = MODELS[name]
    s = subject(cell, settings={"probe_tokens": 12}, **changes)
    named, hidden = found(s)
    for k in (1, 3):
        fishers, moves, states, singular = dense(s, k)
        n = len(states)
        assert n == 12
        fisher, grown = fishers.mean(0), np.einsum("nij,nik->jk", moves, moves) / n
        least = np.linalg.eigh(fisher)[1][:, :RANK]
        most = np.linalg.eigh(grown)[1][:, -RANK:]
        mean = states.mean(0) / np.linalg.norm(states.mean(0))
        u = states / np.linalg.norm(states, axis=1, keepdims=True)
        lines = {"ones": np.full((D, 1), D**-0.5), "mean-state": mean[:, None]}
        spaces = lines | {"least-visible": least, "most-active": most, "random": np.eye(D)}
        expected = {
            direction: [
                math.sqrt(max(np.trace(v.T @ fisher @ v), 0) / v.shape[1]),
                math.sqrt(np.trace(v.T @ grown @ v) / v.shape[1]),
                ((least.T @ v) ** 2).sum() / v.shape[1],
                ((most.T @ v) ** 2).sum() / v.shape[1],
            ]
            for direction, v in spaces.items()
        }
        radial = np.einsum("ni,nij,nj->n", u, fishers, u).mean()
        stretched = (np.einsum("nij,nj->ni", moves, u) ** 2).sum(1).mean()
        shares = [((u @ space) ** 2).sum(1).mean() for space in (least, most)]
        expected["radial"] = [math.sqrt(max(radial, 0)), math.sqrt(stretched), *shares]
        assert set(expected) == set(DIRECTIONS)
        for direction, values in expected.items():
            r = named[k, direction]
            ours = [r[c] for c in ("visibility", "activity", "in_least_visible", "in_most_active")]
            # A quadratic form that is nearly zero is known to 1e-16 only, its root to 1e-8.
            assert ours == pytest.approx(values, rel=1e-6, abs=3e-8), (k, direction)
        unseen = (singular <= 1e-5 * singular[:, :1]).sum(1)
        counts = [hidden[k][c] for c in ("hidden_min", "hidden_mean", "hidden_max")]
        assert counts == [unseen.min(), pytest.approx(unseen.mean()), unseen.max()]
        overlap = ((least.T @ most) ** 2).sum() / RANK
        assert hidden[k]["overlap"] == pytest.approx(overlap, rel=1e-6)
        assert hidden[k]["overlap_chance"] == named[k, "random"]["in_most_active"] == RANK / D


@pytest.mark.parametrize("clamp", ["none", "through", "stopped"])
def test_a_loop_against_central_differences(clamp):
    """Of the model itself, one token of a window moved; no detached factor deceives them, and a
    clamp through which training has no gradient clamps all the same."""
    s = subject(settings=SETTINGS, clamp=clamp)
    rows = s.sample("validation", 24)
    first = next(spectrum.places(s, rows, 1))
    states = s.model(torch.from_numpy(rows[:1, :-1]))
    start = Start(states[0]).after(states[1])
    torch.manual_seed(2)
    directions = [torch.randn(D, dtype=torch.float64) for _ in range(3)]
    for t, state in enumerate(first.state):
        for v in (state / state.norm(), *(v / v.norm() for v in directions)):
            e = 1e-5 * state.norm()
            ends = []
            for sign in (1, -1):
                moved = states[1].clone()
                moved[0, t] += sign * e * v
                ends.append(s.model.loop(moved, 2, start=start)[0, t])
            expected = (ends[0] - ends[1]) / (2 * e)
            assert (first.moved[t] @ v).numpy() == pytest.approx(expected.numpy(), abs=1e-7)


@pytest.mark.parametrize("cell", ["perloop-rms", "terminal-raw", "perloop-power"])
def test_visibility_says_how_far_predictions_move(cell):
    """KL of a change by e |H| is (e visibility)^2 / 2, token by token."""
    s = subject(cell, settings=SETTINGS)
    e = 1e-4
    tokens = list(spectrum.places(s, s.sample("validation", 24), 1))
    torch.manual_seed(1)
    for t in tokens:
        v = torch.randn(*t.state.shape, 1, dtype=torch.float64)
        v /= v.norm(dim=1, keepdim=True)
        seen = t.seen(v)[..., 0].norm(dim=-1)
        before = s.model.logits(t.state, 1).log_softmax(-1)
        after = s.model.logits(t.state + e * t.size * v[..., 0], 1).log_softmax(-1)
        kl = (before.exp() * (before - after)).sum(-1)
        assert kl.numpy() == pytest.approx((e * seen).square().numpy() / 2, rel=5e-3)


# --- what a readout hides ----------------------------------------------------------------------


def test_rmsnorm_hides_the_radial_direction_and_nothing_else():
    named, hidden = found(exact())
    for k in (1, 3):
        assert named[k, "radial"]["visibility"] < 1e-14 < 1e-2 < named[k, "ones"]["visibility"]
        h = hidden[k]
        assert (h["hidden_min"], h["hidden_mean"], h["hidden_max"]) == (1, 1, 1)
        assert h["hidden_radial"] == pytest.approx(1, abs=1e-9)
        # Another direction in each state: together they leave nothing unseen.
        assert named[k, "least-visible"]["visibility"] > 1e-2


def test_layernorm_hides_two():
    named, hidden = found(exact("perloop-layernorm-sum"))
    for k in (1, 3):
        # The state is a combination of the two: ones, and the centred state.
        assert named[k, "radial"]["visibility"] < 1e-14
        assert named[k, "ones"]["visibility"] < 1e-14
        assert hidden[k]["hidden_min"] == hidden[k]["hidden_max"] == 2
        assert hidden[k]["hidden_radial"] == pytest.approx(1, abs=1e-9)
        # Of the subspace of all states it is one of eight.
        assert named[k, "ones"]["in_least_visible"] == pytest.approx(1, abs=1e-6)


def test_a_gain_with_zeros_hides_those_axes():
    """Of alpha 0 the readout is the gain alone, and hides its zeros. RMSNorm looks at the
    entries of such axes through the norm: of three it hides u and the two directions across u."""
    gone = [2, 5, 11]
    s = exact("perloop-power")
    s.model.readout.gain[gone] = 0
    s.model.readout.alpha = 0.0
    named, hidden = found(s)
    assert hidden[1]["hidden_min"] == hidden[1]["hidden_max"] == 3
    tokens = list(spectrum.places(s, s.sample("validation", 24), 1))
    size = torch.stack([t.seen(axes()).norm(dim=1).amax(0) for t in tokens]).amax(0)
    assert (size < 1e-13).nonzero().flatten().tolist() == gone
    u = torch.cat([t.state / t.size for t in tokens])
    share = float(u[:, gone].square().sum(1).mean())
    assert hidden[1]["hidden_radial"] == pytest.approx(share)

    s = exact("perloop-rms")
    s.model.readout.gain[gone] = 0
    named, hidden = found(s)
    assert hidden[1]["hidden_min"] == hidden[1]["hidden_max"] == 3
    assert hidden[1]["hidden_radial"] == pytest.approx(1, abs=1e-9)
    assert named[1, "radial"]["visibility"] < 1e-13


def test_raw_hides_the_heads_null_space_only():
    """What adds the same to all logits is of it, though the head does not send it to zero."""
    named, hidden = found(exact("terminal-raw"))
    assert hidden[1]["hidden_max"] == 0 and hidden[1]["hidden_radial"] == 0
    assert named[1, "radial"]["visibility"] > 1e-2
    s = exact("terminal-raw")
    head = s.model.embedding.weight
    head += (0.75 - head.sum(1, keepdim=True)) / D  # along ones every logit moves alike
    assert (head @ torch.ones(D, dtype=head.dtype)).numpy() == pytest.approx(0.75)
    named, hidden = found(s)
    assert named[1, "ones"]["visibility"] < 1e-13
    assert hidden[1]["hidden_min"] == hidden[1]["hidden_max"] == 1
    assert hidden[1]["hidden_radial"] < 0.9
    s = exact("terminal-raw")
    s.model.embedding.weight[:, 3] = 0.0
    s.model.embedding.weight[:, 7] = 2.0
    assert found(s)[1][1]["hidden_max"] == 2


def test_the_last_readout_may_hide_what_the_others_do_not():
    named, hidden = found(exact("perloop-finalnorm"))
    assert [hidden[k]["hidden_mean"] for k in (1, 3)] == [0, 1]
    assert named[3, "radial"]["visibility"] < 1e-14 < 1e-2 < named[1, "radial"]["visibility"]


def test_a_sure_prediction_hides_no_more():
    """Where p is nearly one-hot little is seen, but the hidden dimensions are the readout's."""
    s = exact()
    s.model.embedding.weight *= 40
    named, hidden = found(s)
    assert hidden[1]["hidden_mean"] == 1
    assert named[1, "radial"]["visibility"] < 1e-12


# --- what a loop makes of it -------------------------------------------------------------------


def silent(cell="perloop-rms", **changes):
    """Branches that write nothing."""
    s = exact(cell, **changes)
    for block in s.model.blocks:
        block.attention.out.weight *= 0
        block.mlp.down.weight *= 0
    return s


def test_loops_whose_growth_is_known():
    for changes, growth in (({}, 1.0), ({"carry": 0.5}, 0.5), ({"inject": True}, 1.0)):
        named, _ = found(silent(**changes))
        for key, r in named.items():
            assert r["activity"] == pytest.approx(growth), (changes, key)
    # Behind a norm the scale is gone: of d directions of a unit state d - 1 are left, as they are.
    s = silent("perloop-rms-interloop")
    named, _ = found(s)
    assert named[3, "radial"]["activity"] < 1e-14
    (t, *_) = spectrum.places(s, s.sample("validation", 24), 3)
    rms = t.state.square().mean(-1).sqrt()
    expected = (D - 1) / rms.square()
    assert t.moved.square().sum((1, 2)).numpy() == pytest.approx(expected.numpy())


def test_a_scale_that_branches_do_not_see_is_carried_on():
    """F(aH) = aH + b(u): along u a loop is exactly the identity, whatever it does elsewhere."""
    named, _ = found(exact("perloop-rms", layers=1))
    # One layer's MLP sees the attention's output beside the state, so only the attention is exact.
    s = exact("perloop-rms", layers=1)
    s.model.blocks[0].mlp.down.weight *= 0
    attention, _ = found(s)
    assert attention[1, "radial"]["activity"] == pytest.approx(1, abs=1e-12)
    assert abs(named[1, "radial"]["activity"] - 1) > 1e-6
    assert abs(attention[1, "random"]["activity"] - 1) > 1e-3


# --- rows --------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", ["perloop-rms", "perloop-raw-interloop-gain"])
def test_rows_are_as_declared(cell):
    s = subject(cell, settings=SETTINGS)
    for name, rows in spectrum.measure(s).items():
        frame = pd.DataFrame(table(name, rows))
        assert list(FILES[name].faults(frame, Context(s.spec, 1))) == []
        column = "in_least_visible" if name == "spectrum" else "hidden_max"
        assert list(FILES[name].faults(frame.assign(**{column: 99}), Context(s.spec, 1))) != []
        assert list(FILES[name].faults(frame[frame["k"] == 1], Context(s.spec, 1))) != []


def test_places_are_spread_and_at_most_so_many(monkeypatch):
    s = subject(settings={"probe_tokens": 96})
    rows = s.sample("validation", 96)
    assert len(rows) == 8
    whole = found(s)
    for states, each in ((128, 12), (32, 4), (8, 1), (3, 1)):
        monkeypatch.setattr(spectrum, "STATES", states)
        tokens = list(spectrum.places(s, rows, 1))
        assert [len(t.state) for t in tokens] == [each] * min(8, states)
        # The last token of a window, which sees all of it, is among them.
        assert tokens[0].earlier.sum(1).tolist()[-1] == 11
    monkeypatch.setattr(spectrum, "STATES", 128)
    monkeypatch.setattr(spectrum, "HELD", 1)  # each token by itself, as in a large model
    assert all(len(t.state) == 1 for t in spectrum.places(s, rows, 1))
    for one, other in zip(whole, found(s), strict=True):
        assert one.keys() == other.keys()
        for key, r in one.items():
            a, b = ([x for x in row.values() if isinstance(x, float)] for row in (r, other[key]))
            assert a == pytest.approx(b, rel=1e-6, abs=1e-9), key
