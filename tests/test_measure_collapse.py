"""Collapse: states with a known spread of directions, and a plain reference."""

import numpy as np
import pytest
import torch

import reference_model as plain
from blindspot.declared import FILES
from blindspot.declared.columns import Context
from blindspot.measure import collapse
from measuring import parameters, subject, table

SETTINGS = {"norm_tokens": 48}


def found(s):
    return table("collapse", collapse.measure(s)["collapse"])


@pytest.mark.parametrize("cell", ["perloop-rms", "terminal-raw"])
def test_against_plain_sums_over_the_reference_states(cell):
    s = subject(cell, settings=SETTINGS)
    rows = s.sample("validation", 48)
    states = plain.states(parameters(s), torch.from_numpy(rows[:, :-1]), s.spec.model)
    values = found(s)
    assert [r["k"] for r in values] == [0, 1, 2, 3]
    for r, state in zip(values, states, strict=True):
        u = state.flatten(0, -2).numpy()
        u = u / np.sqrt((u**2).sum(1))[:, None]
        assert r["tokens"] == len(u) == 48
        # The mean of all pairs' cosines, each token with itself included.
        assert r["shared_direction"] == pytest.approx((u @ u.T).mean(), rel=1e-8)
        p = np.linalg.svd(u, compute_uv=False) ** 2 / len(u)
        p = p[p > 1e-15]
        assert r["effective_rank"] == pytest.approx(np.exp(-(p * np.log(p)).sum()), rel=1e-8)


class Fixed(torch.nn.Module):
    """A model whose states are given."""

    def __init__(self, model, states):
        super().__init__()
        self.embedding, self.states = model.embedding, states

    def forward(self, tokens):
        B, T = tokens.shape
        return [state[: B * T].view(B, T, -1) for state in self.states]


def of(*states):
    s = subject(settings={"norm_tokens": 48})
    s.model = Fixed(s.model, [state.double() for state in states])
    return [(r["shared_direction"], r["effective_rank"]) for r in found(s)]


def test_states_whose_spread_is_known():
    """A collapsed model, whatever the norms; one direction and its opposite; all axes alike."""
    d, n = 16, 48
    axis = torch.eye(d)[3].expand(n, d)
    norms = torch.linspace(0.1, 1e4, n)[:, None]
    signs = torch.tensor([1.0, -1.0]).repeat(n // 2)[:, None]
    axes = torch.eye(d).repeat(n // d, 1)
    collapsed, opposite, spread, two = of(
        axis * norms, axis * signs, axes * norms, torch.eye(d)[:2].repeat(n // 2, 1)
    )
    assert collapsed == pytest.approx((1, 1))
    assert opposite == pytest.approx((0, 1), abs=1e-12)
    assert spread == pytest.approx((1 / d, d))
    assert two == pytest.approx((1 / 2, 2))


def test_frozen_states_are_not_collapsed_ones():
    """States that no loop turns, each in a direction of its own: every loop has them all."""
    frozen = torch.eye(16).repeat(3, 1)
    for values in of(frozen, 100 * frozen, 200 * frozen, 300 * frozen):
        assert values == pytest.approx((1 / 16, 16))


def test_what_cannot_be_is_refused():
    s = subject(settings=SETTINGS)
    import pandas as pd

    frame = pd.DataFrame(found(s))
    at = Context(s.spec, 1)
    assert list(FILES["collapse"].faults(frame, at)) == []
    for column, value in (("shared_direction", 1.1), ("effective_rank", 17.0)):
        wrong = frame.assign(**{column: value})
        assert any("cannot be above" in fault for fault in FILES["collapse"].faults(wrong, at))
