"""Response to the scale: a blind readout, a raw one whose best scale is known, a reference."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

import reference_model as plain
from blindspot.declared import FILES
from blindspot.declared.columns import Context
from blindspot.declared.scale_response import SCALES
from blindspot.measure import scale_response
from measuring import ToyTokens, parameters, subject, table
from toys import CELLS

SETTINGS = {"intervention_tokens": 48}


def found(s):
    rows = table("scale_response", scale_response.measure(s)["scale_response"])
    return {(int(r["k"]), r["scale"]): r for r in rows}


@pytest.mark.parametrize("cell", CELLS)
def test_against_the_reference_model(cell):
    s = subject(cell, settings=SETTINGS)
    values = found(s)
    assert set(values) == {(k, a) for k in (1, 2, 3) for a in SCALES}
    rows = torch.from_numpy(s.sample("test", 48))
    p = parameters(s)
    states = plain.states(p, rows[:, :-1], s.spec.model)

    def ce(k, a):
        return plain.token_nll(p, a * states[k], k, rows[:, 1:], s.spec.model).numpy().ravel()

    for (k, a), r in values.items():
        nll = ce(k, a)
        assert r["tokens"] == nll.size == 48
        assert r["ce"] == pytest.approx(nll.mean(), rel=1e-8)
        change = nll - ce(k, 1.0)
        assert r["change_mean"] == pytest.approx(change.mean(), rel=1e-6, abs=1e-9)
        assert r["change_se"] == pytest.approx(
            change.std(ddof=1) / math.sqrt(48), rel=1e-7, abs=1e-8
        )
        h = 1e-5
        slope = (ce(k, a * math.exp(h)).mean() - ce(k, a * math.exp(-h)).mean()) / (2 * h)
        assert r["slope"] == pytest.approx(slope, rel=1e-5, abs=1e-7)


def test_a_blind_readout_is_flat_but_for_eps():
    for eps, least in ((0.0, 1e-12), (1e-6, 1e-3)):
        s = subject("perloop-rms", settings=SETTINGS, norm_eps=eps)
        for r in found(s).values():
            assert abs(r["change_mean"]) <= least and abs(r["slope"]) <= least


def test_a_raw_readout_with_a_known_restoring_force():
    """Two words with embeddings +-e, all states e: logits are +-a. Where a share q of targets is
    the first word, CE(a) = log(1 + exp(-2 a)) + 2 (1 - q) a, least at a = log(q / (1 - q)) / 2."""
    q = 0.75
    stream = np.array([0, *([0, 0, 0, 1] * 12)], dtype="<u2")
    tokens = ToyTokens(dict.fromkeys(("train", "validation", "test"), stream), 2)
    s = subject("perloop-raw", tokens=tokens, settings=SETTINGS, vocab_size=2)
    e = torch.eye(16, dtype=torch.float64)[0]
    s.model.embedding.weight[:] = torch.stack([e, -e])

    class Constant(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.embedding, self.readout = model.embedding, model.readout

        def forward(self, inputs):
            return [e.expand(*inputs.shape, 16)] * 4

    s.model = Constant(s.model)
    values = found(s)
    for (_, a), r in values.items():
        assert r["ce"] == pytest.approx(math.log1p(math.exp(-2 * a)) + 2 * (1 - q) * a, rel=1e-8)
        slope = a * (-2 * math.exp(-2 * a) / (1 + math.exp(-2 * a)) + 2 * (1 - q))
        assert r["slope"] == pytest.approx(slope, rel=1e-7, abs=1e-12)
    best = math.log(q / (1 - q)) / 2  # 0.549
    assert all((values[3, a]["slope"] < 0) == (a < best) for a in SCALES)
    assert values[3, 2.0]["change_mean"] > 0.01  # and it is visible


def test_what_does_not_fit_together_is_refused():
    s = subject(settings=SETTINGS)
    frame = pd.DataFrame(found(s).values())
    file, at = FILES["scale_response"], Context(s.spec, 1)
    assert list(file.faults(frame, at)) == []
    assert "has change_mean" in next(file.faults(frame.assign(change_mean=1.0), at))
    short = frame[frame["scale"] < 16]
    assert "has scales" in next(file.faults(short, at))
