"""Updates against loops over tokens in plain numpy, and against the lemma's limits."""

import itertools
import math

import numpy as np
import pytest
import torch

import reference_model as plain
from blindspot.measure import updates
from measuring import parameters, subject, table
from toys import CELLS


@pytest.mark.parametrize("cell", ["perloop-rms", "terminal-raw", "perloop-rms-interloop"])
def test_along_k_equals_a_loop_over_tokens(cell):
    s = subject(cell, settings={"probe_tokens": 24, "update_loops": 5})
    rows = table("updates", updates.measure(s)["updates"])
    assert [r["k"] for r in rows] == [0, 1, 2, 3, 4]
    assert all((r["trained_k"], r["tokens"]) == (3, 24) for r in rows)
    inputs = torch.from_numpy(s.sample("validation", 24)[:, :-1])
    states = plain.states(parameters(s), inputs, s.spec.model, loops=5)
    h = np.stack([x.numpy().reshape(24, -1) for x in states])
    for k, r in enumerate(rows):
        columns = {
            name: [] for name in ("s", "inc", "radial", "size", "step", "angle", "succ", "away")
        }
        for t in range(24):
            a, b = h[k, t], h[k + 1, t]
            s_a, s_b = math.sqrt(a @ a), math.sqrt(b @ b)
            columns["s"].append(s_a)
            columns["inc"].append(s_b - s_a)
            columns["radial"].append(a @ (b - a) / s_a)
            columns["size"].append(math.sqrt((b - a) @ (b - a)))
            step = b / s_b - a / s_a
            columns["step"].append(math.sqrt(step @ step))
            columns["angle"].append(math.acos(min(1.0, a @ b / s_a / s_b)))
            if k:
                f = h[1, t]
                columns["away"].append(math.acos(min(1.0, f @ b / math.sqrt(f @ f) / s_b)))
                last = a - h[k - 1, t]
                columns["succ"].append(
                    last @ (b - a) / math.sqrt(last @ last) / columns["size"][-1]
                )
        scaled = np.array(columns["step"]) * columns["s"]
        for name, expected in {
            "norm_mean": np.mean(columns["s"]),
            "norm_p50": np.median(columns["s"]),
            "increment_mean": np.mean(columns["inc"]),
            "radial_mean": np.mean(columns["radial"]),
            "radial_p50": np.median(columns["radial"]),
            "radial_std": np.std(columns["radial"]),
            "update_mean": np.mean(columns["size"]),
            "angular_step_mean": np.mean(columns["step"]),
            "angular_step_p50": np.median(columns["step"]),
            "angle_mean": np.mean(columns["angle"]),
            "angular_step_norm_mean": scaled.mean(),
            "angular_step_norm_p50": np.median(scaled),
            "angular_step_norm_std": scaled.std(),
        }.items():
            assert r[name] == pytest.approx(expected, rel=1e-7), (k, name)
        if k:
            assert r["cos_successive_mean"] == pytest.approx(np.mean(columns["succ"]), rel=1e-7)
            assert r["angle_from_first_mean"] == pytest.approx(np.mean(columns["away"]), rel=1e-7)
            assert k > 1 or r["angle_from_first_mean"] == r["angle_mean"]
        else:
            assert r["cos_successive_mean"] == r["angle_from_first_mean"] == ""


@pytest.mark.parametrize("cell", CELLS)
def test_at_fixed_u_the_rest_falls_as_one_over_s(cell):
    """Two layers, four branches: 1 / s once s is well above |b|. The limits are the branches'."""
    s = subject(cell, settings={"probe_tokens": 24})
    rows = table("update_fixed", updates.measure(s)["update_fixed"])
    assert [r["norm"] for r in rows] == [10.0**i for i in range(7)] * 2
    assert {r["k"] for r in rows} == {1, 3}
    for name in ("radial", "angular"):
        for k in (1, 3):
            rest = [r[f"{name}_rest_mean"] for r in rows if r["k"] == k]
            for before, after in itertools.pairwise(rest[3:6]):
                assert after / before == pytest.approx(0.1, rel=0.05)
            limits = {r[f"{name}_limit_mean"] for r in rows if r["k"] == k}
            assert len(limits) == 1 and rest[6] < 1e-4 * max(abs(limits.pop()), 0.1)


def test_one_branch_is_exact_at_every_s():
    """F(H) = H + B(norm(H)), eps = 0: the radial increment has no rest at all."""
    s = subject(layers=1, settings={"probe_tokens": 24})
    s.model.blocks[0].attention.out.weight *= 0
    rows = table("update_fixed", updates.measure(s)["update_fixed"])
    for r in rows:
        assert r["radial_rest_mean"] < 1e-14 * r["norm"] + 1e-13
    assert rows[0]["angular_rest_mean"] > 1e-2


def test_a_frozen_state_shows_no_spurious_motion():
    """L-04: at |H| = 1e5 the angular step is far below float32's and bfloat16's resolution."""
    s = subject("perloop-rms", dtype=torch.float32)
    s.model.embedding.weight *= 1e5
    s.model.position.weight *= 1e5
    rows = table("updates", updates.measure(s)["updates"])
    exact = subject("perloop-rms")
    exact.model.embedding.weight *= 1e5
    exact.model.position.weight *= 1e5
    for r, e in zip(rows, table("updates", updates.measure(exact)["updates"]), strict=True):
        # Weights are rounded to float32, the arithmetic is not.
        assert r["angular_step_mean"] == pytest.approx(e["angular_step_mean"], rel=1e-4)
        assert 0 < r["angular_step_mean"] < 1e-3
