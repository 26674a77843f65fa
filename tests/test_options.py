"""What may lie between loops and beside the loss: each option against the plain reference, its
lemma (is scale visible? is it active?), and all of them together in a covering set of pairs.
"""

from typing import get_args

import pytest
import torch
from allpairspy import AllPairs
from pydantic import ValidationError

from blindspot.config.flops import parameters, training_per_token
from blindspot.config.spec import Interloop, Objective, Penalty, RunSpec
from blindspot.lm import objective as objectives
from blindspot.lm.model import LoopedLM
from blindspot.lm.objective import loops_of, loss, norm_penalty
from blindspot.lm.recurrence import INTERLOOPS, Start, leave
from blindspot.measure import frozen, updates
from blindspot.measure.gradients import gradients
from blindspot.training.engine import Engine
from reference_model import states, total_loss
from test_model import batch, build
from toys import toy_model, toy_objective

MODELS = {
    "reset": {"interloop": "reset", "interloop_scale": 3.0},
    "carry": {"carry": 0.7},
    "clamp": {"clamp": "through"},
    "clamp-stopped": {"clamp": "stopped"},
    "inject": {"inject": True},
    "divide": {"divide_branches": True},
    "sandwich": {"sandwich": True},
    "learned-power": {"readout": "power", "alpha": 0.4, "learned_alpha": True},
}
OBJECTIVES = {
    "target": {"penalty": {"kind": "target", "weight": 0.3, "target": 2.0}},
    "weights": {"weights": [1.0, 2.0, 4.0]},
    "z-loss": {"z_loss": 0.1},
    "weights-z": {"weights": [3.0, 1.0, 1.0], "z_loss": 0.05},
}


def same(model, p, spec, objective, loops=None):
    """Loss and all gradients equal the plain reference's."""
    tokens, targets = batch(spec)
    total = loss(model, model(tokens, loops), targets, objective).total
    plain = total_loss(p, tokens, targets, spec, objective, loops=loops)
    torch.testing.assert_close(total, plain, rtol=1e-12, atol=0)
    found, expected = (
        torch.autograd.grad(x, list(p.values()), allow_unused=True) for x in (total, plain)
    )
    for name, a, b in zip(p, found, expected, strict=True):
        assert (a is None) == (b is None), name
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("option", MODELS)
@pytest.mark.parametrize("cell", ["perloop-rms", "perloop-raw"])
def test_each_model_option_equals_the_plain_reference(option, cell):
    spec = toy_model(cell, **MODELS[option])
    model, p = build(spec)
    assert sum(x.numel() for x in p.values()) == parameters(spec)
    tokens, _ = batch(spec)
    for a, b in zip(model(tokens, loops=5), states(p, tokens, spec, loops=5), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    same(model, p, spec, toy_objective(cell))
    # It is active: without it states are others.
    plain = LoopedLM(toy_model(cell)).double()
    plain.load_state_dict({n: x for n, x in model.state_dict().items() if "post" not in n
                           and "readout" not in n}, strict=False)  # fmt: skip
    if option != "learned-power":
        assert not torch.allclose(plain(tokens)[-1], model(tokens)[-1])


@pytest.mark.parametrize("option", OBJECTIVES)
def test_each_objective_option_equals_the_plain_reference(option):
    spec = toy_model("perloop-rms")
    model, p = build(spec)
    same(model, p, spec, Objective(loss="per-loop", **OBJECTIVES[option]))


def test_a_target_penalty_is_least_at_its_target():
    """(|H| / sqrt(d) - t)^2 is 0 at rms t, 1 at rms t + 1, and blind to directions."""
    penalty = Objective(loss="terminal", penalty={"kind": "target", "weight": 1, "target": 2.0})
    h = torch.randn(2, 5, 16, dtype=torch.float64)
    u = h / h.square().mean(-1, keepdim=True).sqrt()
    for rms, expected in ((2.0, 0.0), (3.0, 1.0), (0.5, 2.25)):
        found = norm_penalty([rms * u], penalty.penalty)
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_after_a_reset_no_loop_sees_the_scale():
    """A loop's output is the same whatever the norm of the state before it; and what it receives
    has the RMS that was asked for, at the first loop too."""
    model, _ = build(toy_model(norm_eps=0.0, **MODELS["reset"]))
    h = torch.randn(2, 6, 16, dtype=torch.float64)
    for k in (1, 2):
        x = model.entering(h, k)
        torch.testing.assert_close(x.square().mean(-1).sqrt(), torch.full_like(x[..., 0], 3.0))
        torch.testing.assert_close(model.loop(1e4 * h, k), model.loop(h, k))


@pytest.mark.parametrize("mode", ["through", "stopped"])
def test_a_clamp_holds_the_norm_of_loop_1(mode):
    model, _ = build(toy_model("perloop-raw", clamp=mode))
    found = [h.norm(dim=-1) for h in model(batch(model.spec)[0], loops=6)]
    for norm in found[2:]:
        torch.testing.assert_close(norm, found[1])
    assert not torch.allclose(found[0], found[1])


def test_a_stopped_clamp_has_the_gradient_of_a_constant_factor():
    """Through the factor the radial part of the gradient is gone; stopped, it is scaled."""
    for mode, radial in (("through", False), ("stopped", True)):
        model, _ = build(toy_model("perloop-raw", clamp=mode))
        after = torch.randn(4, 16, dtype=torch.float64, requires_grad=True)
        size = torch.full((4, 1), 2.0, dtype=torch.float64)
        h = leave(model.spec, after, after, 2, Start(after, size))
        g = torch.randn(4, 16, dtype=torch.float64)
        (pull,) = torch.autograd.grad((h * g).sum(), after)
        inner = (pull * after).sum(-1)
        assert bool((inner.abs() > 1e-3).all()) == radial
        if radial:
            torch.testing.assert_close(pull, g * 2.0 / after.norm(dim=-1, keepdim=True))


def test_a_carry_bounds_the_norm_that_constant_updates_reach():
    """H_k = a H_{k-1} + b has the limit b / (1 - a)."""
    spec, h = toy_model(carry=0.75), torch.zeros(16, dtype=torch.float64)
    b = torch.randn(16, dtype=torch.float64)
    for k in range(1, 100):
        h = leave(spec, h, h + b, k, None)
    torch.testing.assert_close(h, b / 0.25)


def test_divided_branches_write_a_kth_and_a_sandwich_a_fixed_size():
    h = torch.randn(2, 6, 16, dtype=torch.float64)
    plain, _ = build(toy_model(layers=1))
    divided = LoopedLM(toy_model(layers=1, divide_branches=True)).double()
    divided.load_state_dict(plain.state_dict())
    b, c = (updates.branches(m, h) for m in (plain, divided))
    torch.testing.assert_close(c, b / 3)
    model, _ = build(toy_model(layers=1, sandwich=True, norm_eps=0.0))
    with torch.no_grad():
        model.blocks[0].attention.out.weight.mul_(1e3)
    block = model.blocks[0]
    y = block.written(block.attention(block.attention_norm(h)), "attention")
    rms = (y / block.attention_post.weight).square().mean(-1).sqrt()
    torch.testing.assert_close(rms, torch.ones_like(rms))


def test_a_learned_exponent_begins_where_it_is_told_and_sees_the_scale():
    spec = toy_model("perloop-power", learned_alpha=True, norm_eps=0.0)
    model = LoopedLM(spec).double()
    torch.testing.assert_close(model.readout.exponent, torch.tensor([0.5], dtype=torch.float64),
                               rtol=1e-6, atol=0)  # fmt: skip
    h = torch.randn(3, 16, dtype=torch.float64)
    torch.testing.assert_close(model.readout(4 * h, 1), 2 * model.readout(h, 1), rtol=1e-6, atol=0)


def test_k_is_drawn_from_all_depths_alike_and_by_seed_and_step_alone():
    drawn = Objective(loss="per-loop", random_loops=True)
    found = [loops_of(drawn, 4, 42, step) for step in range(4000)]
    assert found[:50] == [loops_of(drawn, 4, 42, step) for step in range(50)]
    assert found != [loops_of(drawn, 4, 43, step) for step in range(4000)]
    # Four counts of 1,000: standard deviation 27.
    assert all(abs(found.count(k) - 1000) < 120 for k in (1, 2, 3, 4))
    assert loops_of(Objective(loss="per-loop"), 4, 42, 7) == 4
    spec = toy_model()
    means = [training_per_token(toy_model(loops=k), Objective(loss="per-loop")) for k in (1, 2, 3)]
    assert training_per_token(spec, drawn) == pytest.approx(sum(means) / 3)


REFUSED = [
    ({"interloop": "reset"}, "reset needs the RMS"),
    ({"interloop_scale": 2.0}, "no other rule has one"),
    ({"clamp": "through", "interloop": "rms"}, "sets the scale that the next loop receives"),
    ({"clamp": "stopped", "loops": 1}, "clamp with loops 1 would do nothing"),
    ({"inject": True, "loops": 1}, "inject with loops 1 would do nothing"),
    ({"learned_alpha": True}, "has no exponent to learn"),
    ({"carry": 1.0}, "less than 1"),
    ({"interloop": "sum"}, "'none', 'rms', 'rms-gain' or 'reset'"),
]


@pytest.mark.parametrize(("over", "why"), REFUSED)
def test_a_model_without_sense_is_refused_with_the_reason(over, why):
    with pytest.raises(ValidationError, match=why):
        toy_model(**over)


@pytest.mark.parametrize(
    ("over", "why"),
    [
        ({"loss": "terminal", "weights": [1, 1, 1]}, "terminal has one cross-entropy"),
        ({"weights": [1, 1]}, "2 for 3 losses; give 3"),
        ({"weights": [1, 1, 1], "random_loops": True}, "use one of them"),
        ({"penalty": {"kind": "target", "weight": 1}}, "needs the RMS"),
        ({"penalty": {"weight": 1, "target": 2.0}}, "no other kind has one"),
        ({"penalty": {"kind": "cubic", "weight": 1}}, "'mean-square', 'sum-square' or 'target'"),
        ({"random_loops": True, "readout": "final-only-rms"}, "another readout"),
    ],
)
def test_an_objective_without_sense_is_refused_with_the_reason(over, why):
    over = {"loss": "per-loop"} | over
    with pytest.raises(ValidationError, match=why):
        run_spec({"readout": over.pop("readout", "rms")}, over)


def run_spec(model, objective, **changes):
    return RunSpec(
        data={}, windows={"length": 12, "stride": 12}, model=toy_model(**model),
        objective=objective, batch=3, seed=5,
        training={"steps": 20, "precision": "float32", "learning_rate": 1e-2} | changes,
    )  # fmt: skip


#: Every pair of values of these factors is in some row of `covering`.
FACTORS = {
    "readout": [{"readout": "rms"}, {"readout": "raw"}, {"readout": "final-only-rms"},
                {"readout": "layernorm"}, MODELS["learned-power"]],
    "between": [{}, {"interloop": "rms"}, {"interloop": "rms-gain"}, MODELS["reset"],
                MODELS["clamp"], MODELS["clamp-stopped"]],
    "carry": [{}, MODELS["carry"]],
    "inject": [{}, MODELS["inject"]],
    "branches": [{}, MODELS["divide"]],
    "blocks": [{}, MODELS["sandwich"]],
    "init": [{}, {"init_std": 0.1}],
    "loss": [{"loss": "terminal"}, {"loss": "per-loop"}, {"loss": "per-loop", "weights": [1, 2, 3]},
             {"loss": "per-loop", "random_loops": True}],
    "penalty": [{}, {"penalty": {"weight": 0.01}}, OBJECTIVES["target"]],
    "z": [{}, {"z_loss": 0.01}],
}  # fmt: skip
OF_MODEL = ("readout", "between", "carry", "inject", "branches", "blocks", "init")


def sensible(row):
    """Whether a row, or its beginning, is not refused with a reason (tests above)."""
    chosen = {name: FACTORS[name][i] for name, i in row.items()}
    drawn = chosen.get("loss", {}).get("random_loops")
    return not (drawn and chosen["readout"]["readout"] == "final-only-rms")


NAMES = list(FACTORS)
ROWS = [
    dict(zip(NAMES, row, strict=True))
    for row in AllPairs(
        [range(len(values)) for values in FACTORS.values()],
        filter_func=lambda row: sensible(dict(zip(NAMES, row, strict=False))),
    )
]


def specs(row):
    chosen = {name: FACTORS[name][i] for name, i in row.items()}
    model, objective = {}, {}
    for name, values in chosen.items():
        (model if name in OF_MODEL else objective).update(values)
    return model, objective


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "".join(map(str, row.values())))
def test_every_pair_of_options_trains_is_causal_and_resumes(row):
    model, objective = specs(row)
    spec = run_spec(model, objective)
    K = spec.model.loops
    assert RunSpec.parse(spec.canonical()) == spec
    engine = Engine(spec, torch.device("cpu"))
    ids = torch.randint(37, (3, 13), generator=torch.manual_seed(1))
    before = [p.detach().clone() for p in engine.parameters]
    first = float(engine.forward(ids, 0)[1].total.detach())
    for step in range(10):
        engine.step(ids, step)
    state = {n: x.clone() for n, x in engine.model.state_dict().items()}
    moments = {n: x.clone() for n, x in engine.optimizer.named_moments().items()}
    for step in range(10, 20):
        engine.step(ids, step)
    assert engine.harvest() == ([], None)
    if not spec.objective.random_loops:  # the same K as at the first step
        assert float(engine.forward(ids, 0)[1].total.detach()) < first
    assert all(not torch.equal(a, b) for a, b in zip(before, engine.parameters, strict=True))

    # Resumed at step 10: the same bits.
    again = Engine(spec, torch.device("cpu"))
    again.model.load_state_dict(state)
    for name, x in again.optimizer.named_moments().items():
        x.copy_(moments[name])
    again.resume(10, [])
    for step in range(10, 20):
        again.step(ids, step)
    for a, b in zip(engine.parameters, again.parameters, strict=True):
        assert torch.equal(a, b)

    trained = engine.model.double().eval()
    p = dict(trained.named_parameters())
    same(trained, p, spec.model, spec.objective, loops_of(spec.objective, K, spec.seed, 3))
    # Causal: what follows a token is nothing to it.
    with torch.no_grad():
        other = ids[:, :-1].clone()
        other[:, 7:] = (other[:, 7:] + 1) % 37
        for a, b in zip(trained(ids[:, :-1]), trained(other), strict=True):
            torch.testing.assert_close(a[:, :7], b[:, :7], rtol=1e-12, atol=1e-12)
        # Halting token by token, nobody halting, is the plain pass.
        halted = frozen.run(trained, ids[:, :-1], lambda logits: logits[:, 0] > 1e9, dense=False)
        torch.testing.assert_close(halted.state, trained(ids[:, :-1])[K], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "".join(map(str, row.values())))
def test_measured_gradients_are_those_of_the_objective(row):
    """The parts that are measured at H_K add up to what autograd gives there."""
    model, objective = specs(row)
    spec = run_spec(model, objective | {"random_loops": False, "z_loss": 0.0})
    trained, _ = build(spec.model)
    tokens, targets = batch(spec.model)
    with torch.no_grad():
        hs = trained(tokens)
    K = spec.model.loops
    parts = [g for (_, path, k), g in gradients(trained, hs, targets, spec.objective)
             if k == K and path == "immediate"]  # fmt: skip
    last = hs[K].detach().requires_grad_()
    total = loss(trained, [*hs[:K], last], targets, spec.objective).total
    (whole,) = torch.autograd.grad(total, last)
    torch.testing.assert_close(sum(parts) / targets.numel(), whole, rtol=1e-9, atol=1e-12)


def test_every_kind_has_its_entry():
    assert set(INTERLOOPS) == set(get_args(Interloop))
    assert set(objectives.PENALTIES) == set(get_args(Penalty.model_fields["kind"].annotation))
