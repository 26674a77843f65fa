"""Halting against plain loops over tokens; faults E-07 (calibration is disjoint) and L-06."""

import math

import numpy as np
import pytest
import torch

import reference_model as plain
from blindspot.errors import BlindspotError
from blindspot.measure import frozen, halting
from measuring import ToyTokens, parameters, streams, subject, table
from toys import CELLS


def batch(s):
    return next(s.chunks(s.sample("validation", 48)))


def never(logits):
    return torch.zeros(len(logits), dtype=torch.bool)


def always(logits):
    return ~never(logits)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("dense", [True, False])
def test_never_is_depth_k_and_always_is_depth_1(cell, dense):
    """L-06: the frozen pass is the plain pass where nothing halts; token by token, to rounding."""
    s = subject(cell)
    inputs, _ = batch(s)
    states = s.model(inputs)
    for decide, k in ((never, 3), (always, 1)):
        halted = frozen.run(s.model, inputs, decide, dense)
        assert bool((halted.depth == k).all())
        if dense:
            assert torch.equal(halted.state, states[k])
        torch.testing.assert_close(halted.state, states[k], rtol=1e-11, atol=1e-12)


def plain_frozen(s, inputs, decide):
    """The frozen pass, one token, layer and key at a time."""
    spec, p = s.spec.model, parameters(s)
    d, width = spec.d_model, spec.d_model // spec.heads
    B, T = inputs.shape
    state = p["embedding.weight"][inputs] + p["position.weight"][:T]
    depth = torch.full((B, T), spec.loops)
    stopped = torch.zeros(B, T, dtype=torch.bool)
    for k in range(1, spec.loops + 1):
        x = state
        if spec.interloop != "none" and k > 1:
            x = plain.rms(state, p.get("interloop_gain"), spec.norm_eps)
        for i in range(spec.layers):
            b = f"blocks.{i}."
            norm = [p[b + n] for n in ("attention_norm.weight", "mlp_norm.weight")]
            after = x.clone()
            for n in range(B):
                qkv = plain.rms(x[n], norm[0], spec.norm_eps) @ p[b + "attention.qkv.weight"].T
                for t in range(T):
                    if stopped[n, t]:
                        continue
                    mixed = []
                    for h in range(spec.heads):
                        q, key, v = (
                            qkv[:, j * d + h * width : j * d + (h + 1) * width] for j in range(3)
                        )
                        w = torch.softmax(key[: t + 1] @ q[t] / math.sqrt(width), dim=0)
                        mixed.append(w @ v[: t + 1])
                    y = x[n, t] + p[b + "attention.out.weight"] @ torch.cat(mixed)
                    z = plain.rms(y, norm[1], spec.norm_eps)
                    gate = p[b + "mlp.gate.weight"] @ z
                    inner = gate * torch.sigmoid(gate) * (p[b + "mlp.up.weight"] @ z)
                    after[n, t] = y + p[b + "mlp.down.weight"] @ inner
            x = after
        state = torch.where(stopped[..., None], state, x)
        logits = plain.read(p, state, k, spec) @ p["embedding.weight"].T
        now = decide(logits.flatten(0, 1)).view(B, T) & ~stopped
        if k < spec.loops:
            depth[now] = k
            stopped |= now
    return depth, state


@pytest.mark.parametrize("cell", CELLS)
def test_the_frozen_pass_equals_a_plain_one(cell):
    s = subject(cell, loops=4)
    inputs, _ = batch(s)
    _, _, scores = depths_and_scores(s, inputs)
    threshold = float(torch.quantile(scores, 0.6))
    decide = halting._decide("margin", threshold)
    halted = frozen.run(s.model, inputs, decide)
    depth, state = plain_frozen(s, inputs, decide)
    assert len(depth.unique()) >= 3, "a test in which tokens stop at several depths"
    assert torch.equal(halted.depth, depth)
    torch.testing.assert_close(halted.state, state, rtol=1e-10, atol=1e-11)


def depths_and_scores(s, inputs):
    states = s.model(inputs)
    logits = [s.model.logits(h, k) for k, h in enumerate(states) if 0 < k < s.loops]
    return states, logits, torch.cat([halting.margin(x).flatten() for x in logits]).double()


def test_no_later_token_changes_an_earlier_one():
    s = subject(loops=4)
    inputs, _ = batch(s)
    _, _, scores = depths_and_scores(s, inputs)
    decide = halting._decide("margin", float(torch.quantile(scores, 0.6)))
    before = frozen.run(s.model, inputs, decide)
    changed = inputs.clone()
    changed[:, 7] = (changed[:, 7] + 1) % 37
    after = frozen.run(s.model, changed, decide)
    assert torch.equal(after.depth[:, :7], before.depth[:, :7])
    torch.testing.assert_close(after.state[:, :7], before.state[:, :7], rtol=1e-11, atol=1e-12)


def test_scores_by_hand():
    p = torch.tensor([[0.5, 0.3, 0.2], [1 / 3, 1 / 3, 1 / 3]], dtype=torch.float64)
    assert halting.margin(p.log()).tolist() == pytest.approx([0.2, 0.0], abs=1e-6)
    entropy = [-sum(x * math.log(x) for x in row) for row in p.tolist()]
    assert (-halting.certainty(p.log())).tolist() == pytest.approx(entropy, rel=1e-6)


@pytest.mark.parametrize("score", ["margin", "entropy"])
def test_oracle_outcomes_equal_a_loop_over_tokens(score):
    s = subject(loops=4)
    rows = s.sample("test", 96)
    seen = halting.observe(s, rows)
    windows = torch.from_numpy(rows)
    inputs, targets = windows[:, :-1], windows[:, 1:]
    spec, p = s.spec.model, parameters(s)
    states = plain.states(p, inputs, spec)
    grid = halting.thresholds(seen.confidence[score])
    assert grid[0] == -math.inf and grid[-1] == math.inf and grid == sorted(grid)
    between = [(a + b) / 2 for a, b in zip(grid[10:90:20], grid[11:91:20], strict=True)]
    for threshold in (-math.inf, *between, math.inf):
        total = loops = 0.0
        for n in range(inputs.shape[0]):
            for t in range(inputs.shape[1]):
                for k in range(1, 5):
                    logits = plain.read(p, states[k][n, t], k, spec) @ p["embedding.weight"].T
                    q = torch.softmax(logits, dim=0).sort(descending=True).values.tolist()
                    sure = q[0] - q[1] if score == "margin" else sum(x * math.log(x) for x in q)
                    if sure >= threshold or k == 4:
                        break
                loops += k
                h = states[k][n : n + 1, t : t + 1]
                total += plain.token_nll(p, h, k, targets[n : n + 1, t : t + 1], spec).item()
        found = seen.outcome(score, threshold)
        assert found.ce == pytest.approx(total / 96, rel=1e-9)
        assert found.loops == pytest.approx(loops / 96, rel=1e-12)


@pytest.mark.parametrize("score", ["margin", "entropy"])
@pytest.mark.parametrize("cell", ["perloop-rms", "perloop-finalnorm", "perloop-rms-interloop"])
def test_never_and_always_in_both_variants(cell, score):
    """L-06: exactly depth K's loss and K loops; exactly depth 1's and one."""
    s = subject(cell, torch.float32)
    rows = s.sample("validation", 96)
    seen = halting.observe(s, rows)
    for threshold, k in ((math.inf, 3), (-math.inf, 1)):
        expected = seen.nll[k - 1].mean()
        assert seen.outcome(score, threshold) == (expected, k)
        realised = halting.realise(s, rows, score, threshold)
        assert realised.loops == k
        assert realised.ce == pytest.approx(expected, rel=1e-6 if k == 1 else 1e-7)


def test_calibration_picks_the_fewest_loops_within_the_limit():
    outcomes = {
        -math.inf: (3.0, 1),
        0.1: (2.1, 1.5),
        0.2: (2.3, 2),
        0.3: (2.0, 3),
        math.inf: (2, 4),
    }
    grid, of = list(outcomes), lambda t: halting.Outcome(*outcomes[t])
    assert halting.best(grid, of, 2.15) == 0.1
    assert halting.best(grid, of, 2.05) == 0.3
    assert halting.best(grid, of, 5) == -math.inf
    assert halting.best(grid, of, 1) == math.inf
    falling = [5, 4, 3, 2, 1, 0]
    for limit in (-1, 0, 2.5, 3, 9):
        at = halting.first(range(6), lambda t: halting.Outcome(falling[int(t)], 0), limit)
        assert at == next((t for t in range(6) if falling[t] <= limit), 5)


def test_the_result_is_calibrated_on_validation_and_scored_on_test():
    s = subject(loops=4, settings={"intervention_tokens": 96, "halting_target": 1.05})
    out = halting.measure(s)
    rows = table("halting", out["halting"])
    assert {(r["score"], r["variant"]) for r in rows} == {
        (score, variant) for score in ("margin", "entropy") for variant in ("oracle", "realised")
    }
    seen = {split: halting.observe(s, s.sample(split, 96)) for split in ("validation", "test")}
    for r in rows:
        assert (r["calibrated_on"], r["scored_on"]) == ("validation", "test")
        assert r["calibration_relative_ppl"] <= 1.05 * (1 + 1e-9)
        threshold = r["threshold"] * (-1 if r["score"] == "entropy" else 1)
        if r["variant"] == "oracle":
            # Nine digits of a threshold may fall on the other side of the value it was taken from.
            near = min(halting.thresholds(seen["validation"].confidence[r["score"]]),
                       key=lambda t: 0 if t == threshold else abs(t - threshold))  # fmt: skip
            ce, loops = seen["test"].outcome(r["score"], near)
            assert r["ce"] == pytest.approx(ce) and r["mean_loops"] == pytest.approx(loops)
        full = seen["test"].nll[-1].mean()
        assert r["ce_full"] == pytest.approx(full)
        assert r["relative_ppl"] == pytest.approx(math.exp(r["ce"] - full))
        assert r["ppl"] == pytest.approx(math.exp(r["ce"]))
        assert r["tokens"] == r["calibration_tokens"] == 96 and 1 <= r["mean_loops"] <= 4
    curve = table("halting_curve", out["halting_curve"])
    for score in ("margin", "entropy"):
        loops = [r["mean_loops"] for r in curve if r["score"] == score]
        assert loops[0] == 1 and loops[-1] == 4 and loops == sorted(loops)
        assert [r["relative_ppl"] for r in curve if r["score"] == score][-1] == 1
    timing = table("halting_timing", out["halting_timing"])
    for r in timing:
        same = next(q for q in rows if (q["score"], q["variant"]) == (r["score"], "realised"))
        assert r["mean_loops"] == pytest.approx(same["mean_loops"])
        assert r["speedup"] == pytest.approx(r["tokens_per_s"] / r["tokens_per_s_full"], rel=1e-6)


def test_overlapping_or_equal_texts_are_refused():
    """E-07: a threshold scored on what it was tuned on."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(500, size=4000) for _ in range(2))
    halting.require_disjoint(a, b)
    for other in (a, np.concatenate([b, a]), np.concatenate([b, a[1000:1200], b])):
        with pytest.raises(BlindspotError, match=r"calibrated on \(validation\)"):
            halting.require_disjoint(a, other)
    # One sentence of 40 ids in common is no overlap.
    halting.require_disjoint(a, np.concatenate([b, a[:40]]))
    toy = streams(37)
    same = ToyTokens(toy | {"test": toy["validation"]}, 37)
    with pytest.raises(BlindspotError, match="splits that do not overlap"):
        halting.measure(subject(tokens=same))


def test_one_loop_has_nothing_to_halt():
    s = subject(loops=1, settings={"intervention_tokens": 48})
    for r in table("halting", halting.measure(s)["halting"]):
        assert r["mean_loops"] == 1 and r["relative_ppl"] == pytest.approx(1, rel=1e-6)
