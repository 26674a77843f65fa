"""The audit's core: verdicts on models whose answer is known, and numbers against the study's."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from blindspot.audit import Looped, Settings, audit, judge
from blindspot.audit.examine import cut
from blindspot.audit.looped import map_tensors, scale_all
from blindspot.audit.observe import collapse, observe
from blindspot.audit.sources import looped
from blindspot.errors import BlindspotError
from blindspot.measure import clamp, norms
from measuring import subject, table

V, D, LENGTH = 31, 24, 20
FEW = Settings(tokens=120, length=LENGTH, powers=(-2, -1, 1, 2), beyond=2)


def embedding(dtype=torch.float64):
    return torch.randn(V, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(
        dtype
    )


def rms(x):
    return F.rms_norm(x, x.shape[-1:])


def layernorm(x):
    return F.layer_norm(x, x.shape[-1:], eps=0.0)


def made(loop, readout, start=lambda x: x, loops=4, dtype=torch.float64):
    """A model whose loop and readout are given functions of a state."""
    weight = embedding(dtype)
    return Looped(
        name="toy",
        init=lambda ids: (weight[ids], start(weight[ids])),
        loop=lambda context, state, k: loop(state, context),
        read=lambda context, state, k: readout(state) @ weight.T,
        loops=loops,
        vocab_size=V,
    )


def stream(n=400):
    return np.random.default_rng(3).integers(V, size=n)


def verdict(*args, **kwargs):
    return audit(made(*args, **kwargs), stream(), FEW)[0]


# --- constructions ---------------------------------------------------------------------------


def test_a_planted_mean_drift_that_a_layernorm_hides():
    # The mean over the width grows by half a loop; the readout takes it away.
    report = verdict(
        lambda x, _: x + 0.5 * x.mean(-1, keepdim=True), layernorm, start=lambda x: layernorm(x) + 1
    )
    v = report.verdict
    assert (v.blind, v.blind_at, v.drifting) == ("yes", [1, 2, 3], True)
    # |H_k|^2 = d (1 + 1.5^2k): the part along 1 grows, the other stays.
    size = [math.sqrt(D * (1 + 1.5 ** (2 * k))) for k in range(7)]
    assert [d.norm.value for d in report.depths] == pytest.approx(size)
    assert v.growth.rate.value == pytest.approx((size[4] / size[1]) ** (1 / 3))
    assert v.growth_beyond.rate.value == pytest.approx((size[6] / size[4]) ** (1 / 2))
    assert report.depths[4].level.value == pytest.approx(1.5**8 / (1 + 1.5**8))
    assert all(b.carried_exponent.value == pytest.approx(1) for b in report.boundaries)
    assert v.depth_use == "no"
    said = " ".join(v.sentences)
    assert "Blind at every boundary" in said
    assert "Drifting" in said
    assert "depth is unused" in said
    assert "a hidden mean grows" in said


def test_a_planted_scale_drift_that_the_readout_sees():
    report = verdict(lambda x, _: 1.3 * x, lambda x: x / 8)
    v = report.verdict
    assert (v.blind, v.visible_at, v.drifting) == ("no", [1, 2, 3], True)
    assert v.growth.rate.value == pytest.approx(1.3)
    assert v.growth.rate.low == pytest.approx(1.3)
    assert v.first_loop.value == pytest.approx(1.3)
    assert v.norm_made_in == "both"
    assert [b.carried for b in report.boundaries] == ["yes"] * 3
    # The KL of the reading at twice the size, by torch's own function.
    weight, windows = embedding(), cut(stream(), FEW, None)
    logits = 1.3 * weight[windows[:, :-1]] @ weight.T / 8
    kl = F.kl_div((2 * logits).log_softmax(-1), logits.softmax(-1), reduction="none").sum(-1)
    twice = next(f for f in report.boundaries[0].factors if f.factor == 2)
    assert twice.kl.value == pytest.approx(float(kl.flatten().quantile(0.5)))
    assert "in full view" in " ".join(v.sentences)


def test_a_model_that_contracts():
    # H_k = 0.7^k e: the scale is carried, nothing reads it, and nothing drifts.
    v = verdict(lambda x, _: 0.7 * x, rms).verdict
    assert (v.blind, v.drifting, v.growth_beyond.drifting) == ("yes", False, False)
    assert v.growth.rate.value == pytest.approx(0.7)
    assert "shrinks" in " ".join(v.sentences)


def test_a_model_that_contracts_to_a_fixed_point():
    # F(H) = 0.2 H + 0.8 e at H = e: |F(aH)| / |F(H)| = 0.2 a + 0.8.
    report = verdict(lambda x, e: 0.2 * x + 0.8 * e, rms)
    exponent = (math.log2(1.2) - math.log2(0.9)) / 2
    assert all(b.carried_exponent.value == pytest.approx(exponent) for b in report.boundaries)
    assert (report.verdict.blind, report.verdict.drifting) == ("partly", False)


def test_a_loop_that_is_the_identity():
    report = verdict(lambda x, _: x, rms)
    v = report.verdict
    assert (v.blind, v.drifting, v.depth_use) == ("yes", False, "no")
    assert v.growth.rate.value == pytest.approx(1)
    assert [d.angle.value for d in report.depths[1:]] == pytest.approx([0] * 6, abs=1e-7)
    assert "Exits 2 to 4 equal exit 1" in " ".join(v.sentences)


def test_a_norm_between_loops_removes_the_scale():
    report = verdict(lambda x, _: rms(x) + 0.1, rms)
    assert [b.carried for b in report.boundaries] == ["no"] * 3
    assert [b.visible for b in report.boundaries] == [False] * 3
    assert report.verdict.blind == "no"
    assert "removed between loops" in " ".join(report.verdict.sentences)


def test_growth_that_no_loop_hands_on():
    """The scale is removed between loops, and each writes a larger state."""
    model = made(lambda x, _: x, rms)
    grows = Looped(**{**vars(model), "loop": lambda _, state, k: 1.5**k * rms(state)})
    report, _ = audit(grows, stream(), FEW)
    assert (report.verdict.blind, report.verdict.drifting) == ("no", True)
    assert report.verdict.growth.rate.value == pytest.approx(1.5)
    assert "does not feed itself" in " ".join(report.verdict.sentences)


def test_states_that_become_one_are_said_to_collapse():
    ones = torch.ones(D, dtype=torch.float64)
    report = verdict(lambda x, _: 0.8 * x + 0.4 * ones, rms)
    assert report.depths[4].rank.value < 1.4
    assert report.depths[4].common.value > 0.9
    said = " ".join(report.verdict.sentences)
    assert "States collapse" in said
    assert "nearly the same way" in said


def test_overflow_beyond_the_trained_loops_ends_the_extrapolation():
    settings = Settings(tokens=120, length=LENGTH, powers=(-1, 1), beyond=4)
    model = made(lambda x, _: x * 1e70, rms, dtype=torch.float64)
    with np.errstate(over="ignore"):
        report, seen = audit(model, stream(), settings)
    assert report.overflow == 5  # (1e70)^5 is beyond float64
    assert len(seen.norms) == 5
    assert report.verdict.growth_beyond is None


def test_the_noise_of_a_coarse_type_is_no_sight():
    model = made(lambda x, _: x, lambda x: rms(x) / 2, dtype=torch.bfloat16)
    report, seen = audit(model, stream(), FEW)
    assert seen.dtype == "bfloat16"
    assert report.boundaries[0].noise_kl.value > 1e-8
    fine = observe(made(lambda x, _: x, lambda x: rms(x) / 2), cut(stream(), FEW, None), FEW)
    assert np.median(fine.noise) < 1e-25
    # Five times what rounding does is no sight, fifty times is.
    fine.kl[:] = 5e-3
    for noise, visible in ((1e-3, False), (1e-4, True)):
        fine.noise[:] = noise
        assert [b.visible for b in judge.boundaries(fine)] == [visible] * 3


# --- numbers ---------------------------------------------------------------------------------


def test_intervals_are_students_over_windows():
    values = np.array([1.0, 2.0, 4.0])
    found = judge.estimate(values)
    # t(2, 0.975) = 4.30265, from a table.
    assert found.value == pytest.approx(7 / 3)
    assert found.high - found.value == pytest.approx(4.30265 * values.std(ddof=1) / 3**0.5, 1e-5)
    assert judge.estimate(values[:1]) == judge.Estimate(value=1.0)
    assert judge.geometric(np.array([2.0, 8.0])).value == pytest.approx(4)


def test_a_growth_that_windows_do_not_agree_on_is_no_drift():
    seen = observe(made(lambda x, _: x, rms), cut(stream(), FEW, None), FEW)
    seen.norms[1] = 1.0
    seen.norms[4] = 1.0
    for n in range(0, seen.norms.shape[1], 2):
        seen.norms[4, n] = 3.0
    found = judge.growth(seen, 1, 4)
    assert found.rate.value > 1.1 > found.rate.low
    assert not found.drifting


def test_collapse_of_known_states():
    same = torch.ones(1, 6, 4, dtype=torch.float64)
    assert collapse(same)[:, 0].tolist() == pytest.approx([1, 1, 1])
    apart = torch.eye(4, dtype=torch.float64)[None]
    assert collapse(apart)[:, 0].tolist() == pytest.approx([0.5, 0.25, 4])


def test_windows_are_the_measurements():
    from blindspot.measure.subject import windows

    ids = np.arange(1000)
    assert np.array_equal(cut(ids, Settings(tokens=300, length=50), None), windows(ids, 50, 300))
    assert cut(ids, Settings(tokens=10, length=50), None).shape == (2, 51)
    assert cut(ids, Settings(tokens=300, length=50), 20).shape == (15, 21)


def test_of_many_boundaries_some_are_looked_at():
    few = Settings(tokens=60, length=LENGTH, powers=(-1, 1), beyond=0, boundaries=4)
    assert few.chosen(32) == [1, 11, 21, 31]
    assert few.chosen(4) == [1, 2, 3]
    assert few.chosen(2) == [1]
    # Raw, so that scaling at boundary k is scaling 10 - k loops before the end.
    report, seen = audit(made(lambda x, _: 0.9 * x, lambda x: x, loops=10), stream(), few)
    assert seen.at == [1, 4, 6, 9]
    assert [b.k for b in report.boundaries] == seen.at
    assert report.verdict.visible_at == seen.at
    assert len(seen.kl) == 4
    blind, _ = audit(made(lambda x, _: 0.9 * x, rms, loops=10), stream(), few)
    assert "every boundary looked at (4 of 9)" in blind.verdict.sentences[0]


def test_a_state_may_be_a_tree():
    state = {"a": torch.ones(2, 3, 4), "b": (torch.ones(2, 3, 5, 4), [torch.ones(2, 3, 4)])}
    a = torch.arange(6.0).view(2, 3, 1)
    scaled = scale_all(state, a)
    assert torch.equal(scaled["b"][0][1, 2], torch.full((5, 4), 5.0))
    assert torch.equal(scaled["b"][1][0][0, 1], torch.ones(4))
    with pytest.raises(BlindspotError, match="it has a int"):
        map_tensors(abs, {"a": 3})


CELLS = ("perloop-rms", "perloop-raw", "perloop-finalnorm", "perloop-rms-interloop")


@pytest.mark.parametrize("cell", CELLS)
def test_it_agrees_with_the_studys_measurements(cell):
    s = subject(cell, dtype=torch.float32, loops=4, settings={"norm_tokens": 48})
    s.settings = s.settings.model_copy(update={"intervention_tokens": 48})
    settings = Settings(tokens=48, length=12, powers=(-1, 1), beyond=1)
    report, seen = audit(looped("run", s.model), s.tokens.split("validation"), settings)
    study = table("norms", norms.measure(s)["norms"])
    for row, depth in zip(study, report.depths, strict=False):
        assert depth.norm.value == pytest.approx(row["l2_mean"], rel=1e-8)
        assert depth.norm_p50 == pytest.approx(row["l2_p50"], rel=1e-8)
        assert depth.norm_p99 == pytest.approx(row["l2_p99"], rel=1e-8)
        assert depth.norm_max == pytest.approx(row["l2_max"], rel=1e-8)
    rows = table("clamp", clamp.measure(s)["clamp"])
    for row in rows:
        if row["intervention"] == "norm":
            k = int(row["k"])
            assert report.depths[k].ce.value == pytest.approx(row["ce"], rel=1e-6)
            if k > 1:
                assert report.depths[k].clamp.value == pytest.approx(row["change_mean"], abs=2e-7)
    assert seen.clamped[0] == pytest.approx(seen.ce[0], abs=1e-12)


def test_structure_of_the_cells():
    """What is read and what is carried follows from the cell, whatever the weights."""
    found = {}
    for cell in CELLS:
        s = subject(cell, loops=4)
        report, _ = audit(looped(cell, s.model), s.tokens.split("validation"), FEW)
        found[cell] = [(b.visible, b.carried) for b in report.boundaries]
    assert all(not visible for visible, _ in found["perloop-rms"])
    assert all(carried != "no" for _, carried in found["perloop-rms"])
    assert all(visible for visible, _ in found["perloop-raw"])
    assert all(visible for visible, _ in found["perloop-finalnorm"])
    assert found["perloop-rms-interloop"] == [(False, "no")] * 3


# --- errors ----------------------------------------------------------------------------------


def test_a_model_that_is_not_looped():
    with pytest.raises(BlindspotError, match=r"toy: loops: 1; .* at least twice"):
        audit(made(lambda x, _: x, rms, loops=1), stream(), FEW)


def test_nan_in_the_weights():
    s = subject("perloop-rms", loops=4)
    with torch.no_grad():
        s.model.blocks[1].mlp.gate.weight[0, 0] = torch.nan
    with pytest.raises(BlindspotError, match=r"blocks\.1\.mlp\.gate\.weight holds NaN"):
        audit(looped("run", s.model), s.tokens.split("validation"), FEW)


def test_states_that_are_not_finite():
    with pytest.raises(BlindspotError, match="after loop 2 are not finite"):
        audit(made(lambda x, _: x * 1e200, rms), stream(), FEW)


def test_a_text_of_another_vocabulary():
    with pytest.raises(BlindspotError, match="token 500, the model's vocabulary ends at 30"):
        audit(made(lambda x, _: x, rms), np.full(400, 500), FEW)


def test_a_text_too_short():
    with pytest.raises(BlindspotError, match=r"mine\.txt: 12 tokens are too few; .* at least 17"):
        audit(made(lambda x, _: x, rms), stream(12), FEW, text="mine.txt")


def test_functions_that_are_not_the_model():
    model = made(lambda x, _: 0.5 * x, lambda x: x)
    weight = embedding()
    wrong = Looped(**{**vars(model), "whole": lambda ids: weight[ids] @ weight.T})
    with pytest.raises(BlindspotError, match="differ from the model's own"):
        audit(wrong, stream(), FEW)
    right = Looped(**{**vars(model), "whole": lambda ids: 0.5**4 * weight[ids] @ weight.T})
    assert audit(right, stream(), FEW)[0].verdict.blind == "no"
