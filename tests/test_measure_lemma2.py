"""The activity lemma: a stack on which it is exact, and a reference that is written plainly."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

import reference_model as plain
from blindspot.declared import FILES
from blindspot.declared.columns import Context
from blindspot.declared.lemma2 import SCALES
from blindspot.measure import lemma2
from measuring import parameters, subject, table
from toys import CELLS

SETTINGS = {"probe_tokens": 24}


def found(s):
    return {name: table(name, rows) for name, rows in lemma2.measure(s).items()}


def exact(**changes):
    """One branch and eps 0: F(su) = s u + b(u) with b a function of the direction alone."""
    s = subject(layers=1, norm_eps=0.0, settings=SETTINGS, **changes)
    s.model.blocks[0].attention.out.weight *= 0
    return s


def branch(s, h):
    """b(u) of the one MLP, from the direction of h (N, d)."""
    p, b = parameters(s), "blocks.0.mlp."
    x = plain.rms(h, p["blocks.0.mlp_norm.weight"], 0.0)
    gate = x @ p[b + "gate.weight"].T
    inner = gate * torch.sigmoid(gate) * (x @ p[b + "up.weight"].T)
    return inner @ p[b + "down.weight"].T


def test_where_the_lemma_is_exact_nothing_is_left():
    for r in found(exact())["lemma2_update"]:
        assert r["residual_p50"] < 1e-12 and r["residual_p90"] < 1e-11
        assert r["ratio_p50"] == pytest.approx(1, abs=1e-12)
        assert r["scaled_tan_p50"] == pytest.approx(r["limit_p50"], rel=1e-10)
        assert r["b_mean"] >= r["b_perp_mean"] > 0.1


def test_the_angle_of_a_scaled_state_where_the_lemma_is_exact():
    """atan2(|b_perp|, a s + b_par) of each token, at every scale; slopes by numpy's own fit."""
    s = exact()
    tables = found(s)
    inputs = torch.from_numpy(s.sample("validation", 24)[:, :-1])
    h = plain.states(parameters(s), inputs, s.spec.model)[1].flatten(0, 1)
    b = branch(s, h)
    norm = h.norm(dim=-1)
    par = (b * h).sum(-1) / norm
    perp = (b - par[:, None] * h / norm[:, None]).norm(dim=-1)
    angles = {a: torch.atan2(perp, a * norm + par).numpy() for a in SCALES}
    for r in tables["lemma2"]:
        if r["k"] == 2:
            turned = angles[r["scale"]]
            assert r["angle_mean"] == pytest.approx(turned.mean(), rel=1e-7)
            assert r["angle_p50"] == pytest.approx(np.median(turned), rel=1e-7)
            far = (r["scale"] * norm >= 10 * b.norm(dim=-1)).double().mean()
            assert r["far"] == pytest.approx(float(far))
            assert r["norm_mean"] > 0
    slopes = []
    for t in range(24):
        kept = [a for a in SCALES if a * norm[t] >= 10 * b[t].norm()]
        if len(kept) >= 3:
            logs = np.log(kept), np.log([angles[a][t] for a in kept])
            slopes.append((np.polyfit(*logs, 1)[0], len(kept)))
    values, counts = np.array(slopes).T
    (r,) = (r for r in tables["lemma2_slope"] if r["k"] == 2)
    assert r["tokens"] == len(values) > 10
    assert r["scales_mean"] == pytest.approx(counts.mean())
    assert r["slope_mean"] == pytest.approx(values.mean(), rel=1e-7)
    assert r["slope_p50"] == pytest.approx(np.median(values), rel=1e-7)
    assert r["slope_std"] == pytest.approx(values.std(), rel=1e-5)
    assert r["slope_mean"] == pytest.approx(-1, abs=0.05)


@pytest.mark.parametrize("cell", ["perloop-rms", "terminal-raw", "perloop-raw-interloop-gain"])
def test_the_remaining_loops_are_run_on_the_scaled_state(cell):
    s = subject(cell, settings=SETTINGS)
    rows = torch.from_numpy(s.sample("validation", 24))
    p = parameters(s)
    own = found(s)["lemma2"]
    assert {r["eps"] for r in own} == {0.0, s.spec.model.norm_eps}
    for eps in (0.0, s.spec.model.norm_eps):
        spec = s.spec.model.model_copy(update={"norm_eps": eps})
        first = plain.states(p, rows[:, :-1], spec, loops=1)[1]
        for a in (SCALES[0], 1.0, SCALES[-1]):
            h = a * first
            for k in (1, 2, 3):
                (r,) = (r for r in own if (r["eps"], r["scale"], r["k"]) == (eps, a, k))
                if k > 1:
                    given = h
                    if spec.interloop != "none":
                        given = plain.rms(h, p.get("interloop_gain"), eps)
                    # One loop of the reference, from a state instead of from tokens.
                    h = loop(p, given, spec)
                    cos = torch.cosine_similarity(given, h, dim=-1).clamp(-1, 1)
                    turned = torch.arccos(cos).mean()
                    assert r["angle_mean"] == pytest.approx(float(turned), rel=1e-4, abs=1e-7)
                else:
                    assert r["angle_mean"] == r["angle_p50"] == ""
                ce = plain.token_nll(p, h, k, rows[:, 1:], spec).mean()
                assert r["ce"] == pytest.approx(float(ce), rel=1e-7)
                assert r["norm_mean"] == pytest.approx(float(h.norm(dim=-1).mean()), rel=1e-7)


def loop(p, h, spec):
    given = {**p, "embedding.weight": h.flatten(0, 1), "position.weight": torch.zeros_like(h[0])}
    ids = torch.arange(h.shape[0] * h.shape[1]).view(h.shape[:2])
    return plain.states(given, ids, spec, loops=1)[1]


@pytest.mark.parametrize("cell", CELLS)
def test_rows_are_as_declared_and_the_slope_is_that_of_the_lemma(cell):
    s = subject(cell, settings=SETTINGS)
    tables = found(s)
    for name, rows in tables.items():
        frame = pd.DataFrame(rows).replace("", np.nan)
        assert list(FILES[name].faults(frame, Context(s.spec, 1))) == []
    for r in tables["lemma2_slope"]:
        if r["k"] == 1 or not r["tokens"]:
            assert r["slope_mean"] == "" and r["tokens"] == 0
        else:
            # Neither the scale nor its intervention reaches a loop behind a norm.
            blocked = s.spec.model.interloop != "none"
            assert r["slope_mean"] == pytest.approx(0 if blocked else -1, abs=0.05)


def test_far_from_the_limit_the_residual_shows():
    """Four branches that follow each other at a scale as small as b: the lemma is off, and far from
    there it is not; the residual falls as 1 / s."""
    residual = []
    for factor in (1, 1e3, 1e4):
        s = subject("perloop-rms", settings=SETTINGS)
        s.model.embedding.weight *= factor
        s.model.position.weight *= factor
        residual.append(found(s)["lemma2_update"][0]["residual_p50"])
    assert residual[0] > 0.05
    assert residual[2] / residual[1] == pytest.approx(0.1, rel=0.2)


def test_a_state_that_does_not_turn_has_no_slope():
    angles = np.zeros((len(SCALES), 3))
    assert lemma2.slope_row(angles, angles == 0) == [0, "", "", "", ""]
    angles[:, 1] = 1 / np.array(SCALES)
    tokens, scales, mean, *_ = lemma2.slope_row(angles, np.ones_like(angles, dtype=bool))
    assert (tokens, float(scales)) == (1, len(SCALES)) and math.isclose(float(mean), -1)
