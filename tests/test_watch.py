"""Watching a training: what is logged, when alarms are raised, and that nothing is disturbed."""

import math
import warnings

import pytest
import torch
from torch import nn

from blindspot.lm.model import LoopedLM
from blindspot.measure.updates import angle, unit
from blindspot.watch import Limits, Watch
from toys import toy_model

IDS = torch.randint(37, (3, 12), generator=torch.Generator().manual_seed(0))


def model(cell="perloop-rms", **changes):
    torch.manual_seed(0)
    return LoopedLM(toy_model(cell, **changes)).train()


class Log(list):
    def __call__(self, step, seen):
        self.append((step, seen))


class Writer:
    """What a SummaryWriter is asked for."""

    def __init__(self):
        self.rows = []

    def add_scalar(self, name, value, step):
        self.rows.append((name, value, step))


def test_what_is_seen_is_what_the_states_are():
    net, log = model(), Log()
    with Watch(net, net.blocks[-1], log=log, read=net.logits) as watch:
        states = net(IDS)
        watch.step(0)
    ((step, seen),) = log
    assert step == 0
    norms = [float(torch.linalg.vector_norm(h, dim=-1).mean()) for h in states[1:]]
    assert [seen[f"blindspot/norm/{k}"] for k in (1, 2, 3)] == pytest.approx(norms)
    assert seen["blindspot/growth"] == pytest.approx((norms[2] / norms[0]) ** 0.5)
    for k in (2, 3):
        chord = torch.linalg.vector_norm(unit(states[k]) - unit(states[k - 1]), dim=-1)
        expected = angle(chord.detach().numpy()).mean()
        assert seen[f"blindspot/angle/{k}"] == pytest.approx(expected, rel=1e-5)
    # 16 of the 36 tokens, in order.
    p, q = (net.logits(states[k], k).flatten(0, 1)[:16].log_softmax(-1) for k in (3, 1))
    kl = (p.exp() * (p - q)).sum(-1).median()
    assert seen["blindspot/exit_kl"] == pytest.approx(float(kl), rel=1e-4)
    assert len(seen) == 3 + 1 + 2 + 1


def test_it_looks_every_so_many_steps_at_the_first_pass():
    net, log = model(), Log()
    with Watch(net, "blocks.1", log=log, every=3) as watch:
        for step in range(8):
            net(IDS)
            net(IDS)  # gradients of two passes are added up
            watch.step(step)
    assert [step for step, _ in log] == [0, 3, 6]
    assert all(len([n for n in seen if "norm" in n]) == 3 for _, seen in log)


def test_evaluation_and_recomputation_are_no_training_pass():
    net, log = model(), Log()
    net.recompute = True
    with Watch(net, net.blocks[-1], log=log, every=1) as watch:
        net.eval()
        net(IDS)
        watch.step(0)
        assert log == []
        net.train()
        states = net(IDS)
        states[-1].sum().backward()
        watch.step(1)
    assert len([n for n in log[0][1] if "norm" in n]) == 3


def test_nothing_is_left_or_changed():
    net = model()
    plain = net(IDS)[-1]
    with Watch(net, net.blocks[-1], every=1) as watch:
        assert torch.equal(net(IDS)[-1], plain)
        watch.step(0)
    assert not net._forward_hooks
    assert not net._forward_pre_hooks
    assert not net.blocks[-1]._forward_hooks


def test_an_input_and_a_tuple_may_be_the_state():
    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(4)

        def forward(self, x):
            for _ in range(2):
                x = self.norm(3 * x)
            return x

    net, log = Inner(), Log()
    x = torch.randn(2, 5, 4)
    with Watch(net, "norm", where="input", log=log) as watch:
        net(x)
        watch.step(0)
    expected = float(torch.linalg.vector_norm(3 * x, dim=-1).mean())
    assert log[0][1]["blindspot/norm/1"] == pytest.approx(expected)


def test_some_tokens_are_enough():
    net, log = model(), Log()
    with Watch(net, net.blocks[-1], log=log, tokens=9) as watch:
        states = net(IDS)
        watch.step(0)
    some = states[1].flatten(0, 1)[::4]
    expected = float(torch.linalg.vector_norm(some, dim=-1).mean())
    assert log[0][1]["blindspot/norm/1"] == pytest.approx(expected)


def test_the_tokens_are_from_the_whole_batch():
    """Of 36 states and room for 20, every second one, not the first twenty."""
    net, log = model(), Log()
    with Watch(net, net.blocks[-1], log=log, tokens=20) as watch:
        states = net(IDS)
        watch.step(0)
    some = states[1].flatten(0, 1)[::2]
    expected = float(torch.linalg.vector_norm(some, dim=-1).mean())
    assert log[0][1]["blindspot/norm/1"] == pytest.approx(expected)


def test_tensorboard_gets_scalars():
    net, writer = model(), Writer()
    with Watch(net, net.blocks[-1], log=writer) as watch:
        net(IDS)
        seen = watch.step(7)
    assert writer.rows == [(name, value, 7) for name, value in seen.items()]


class Loop(nn.Module):
    """A model whose loop multiplies by a factor that a test sets."""

    def __init__(self):
        super().__init__()
        self.block = nn.Identity()
        self.factor, self.turn = 1.0, 0.5

    def forward(self, x):
        for _ in range(2):
            c, s = math.cos(self.turn), math.sin(self.turn)
            x = self.block(self.factor * x @ torch.tensor([[c, -s], [s, c]]))
        return x


def test_alarms_begin_once_and_come_back():
    net, said = Loop().train(), []
    limits = Limits(norm=10, angle=0.1)
    with Watch(net, net.block, every=1, on_alarm=lambda *a: said.append(a), limits=limits) as watch:
        # The angle between H_1 and H_2 is `turn`; |H_2| is factor^2.
        for step, (factor, turn) in enumerate(
            [(1, 0.5), (4, 0.5), (4, 0.5), (1, 0.05), (1, 0.5), (4, 0.5)]
        ):
            net.factor, net.turn = factor, turn
            net(torch.ones(1, 3, 2))
            watch.step(step)
    assert [step for step, _ in said] == [1, 3, 5]
    assert "16 times what it was" in said[0][1]
    assert "by 0.05 radians: it is nearly frozen" in said[1][1]


def test_a_norm_that_is_not_finite_is_an_alarm():
    net, said = Loop().train(), []
    with Watch(net, net.block, every=1, on_alarm=lambda *a: said.append(a)) as watch:
        for step, factor in enumerate((1.0, math.nan)):
            net.factor = factor
            net(torch.ones(1, 3, 2))
            watch.step(step)
    assert "norm after loop 2 is nan" in said[0][1]


def test_equal_exits_are_an_alarm():
    net, said = Loop().train(), []
    with Watch(
        net,
        net.block,
        every=1,
        read=lambda h, k: h / torch.linalg.vector_norm(h, dim=-1, keepdim=True),
        on_alarm=lambda *a: said.append(a),
    ) as watch:
        net.turn = 0.02
        net(torch.ones(1, 3, 2))
        watch.step(0)
    assert ["exits 1 and 2 give the same prediction" in message for _, message in said] == [True]


def test_an_alarm_is_a_warning_unless_told():
    net = Loop().train()
    net.turn = 0.0
    with warnings.catch_warnings(record=True) as caught, Watch(net, net.block) as watch:
        warnings.simplefilter("always")
        net(torch.ones(1, 3, 2))
        watch.step(5)
    assert "step 5: loop 2 turns the state by" in str(caught[0].message)


def test_a_block_that_is_not_there():
    with pytest.raises(ValueError, match=r"block 'layers\.1': .* the model has embedding"):
        Watch(model(), "layers.1")
    with pytest.raises(ValueError, match="every 0"):
        Watch(model(), "blocks.1", every=0)


@pytest.mark.extra
def test_the_trainer_of_transformers(tmp_path):
    import json

    transformers = pytest.importorskip("transformers")
    from blindspot.watch import callback
    from test_audit_hub import dory

    net = dory().train().requires_grad_(True)
    rows = [{"input_ids": IDS[i % 3], "labels": IDS[i % 3]} for i in range(12)]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        per_device_train_batch_size=2,
        num_train_epochs=1,
        report_to=[],
        save_strategy="epoch",
        use_cpu=True,
        disable_tqdm=True,
    )
    log = Log()
    watch = callback("model.layers.2", every=2, log=log, on_alarm=lambda *a: None)
    trainer = transformers.Trainer(net, arguments, train_dataset=rows, callbacks=[watch])
    trainer.train()
    assert [step for step, _ in log] == [1, 2, 4, 6]
    assert {f"blindspot/norm/{k}" for k in (1, 2, 3)} <= log[0][1].keys()
    (state,) = tmp_path.glob("*/trainer_state.json")
    kept = [r for r in json.loads(state.read_text())["log_history"] if "blindspot/growth" in r]
    assert [row["step"] for row in kept] == [1, 2, 4, 6]
