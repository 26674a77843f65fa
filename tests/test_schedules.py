"""Schedules against their closed forms; trained, resumed and refused."""

import math

import pytest
import torch

from blindspot.config.execution import Execution
from blindspot.config.schedules import Schedule
from blindspot.config.spec import RunSpec, Training
from blindspot.errors import InterruptedRunError
from blindspot.training.engine import Engine
from blindspot.training.train import train
from reference_model import train_steps
from test_engine import batches, spec_of, trained
from test_train_compile import stop_after
from training import assert_same_run


def course(steps=200, **settings):
    return [Schedule(**settings).factor(step, steps) for step in range(steps)]


def test_warmup_rises_in_equal_steps_and_stays():
    found = course(kind="warmup", warmup=0.1)
    assert found == pytest.approx([(i + 1) / 20 for i in range(20)] + [1.0] * 180, abs=1e-15)


def test_cosine_is_half_a_cosine_after_the_warmup():
    found = course(kind="cosine", warmup=0.1, final=0.2)
    assert found[:20] == pytest.approx([(i + 1) / 20 for i in range(20)])
    assert found[20:] == pytest.approx(
        [0.6 + 0.4 * math.cos(math.pi * i / 180) for i in range(180)], abs=1e-14
    )
    assert course(kind="cosine")[100] == pytest.approx(0.5)


def test_wsd_is_stable_and_then_falls_in_a_line():
    found = course(kind="wsd", warmup=0.05, decay=0.25, final=0.1)
    assert found[:10] == pytest.approx([(i + 1) / 10 for i in range(10)])
    assert found[10:150] == [1.0] * 140
    assert found[150:] == pytest.approx([1 - 0.9 * i / 50 for i in range(50)], abs=1e-14)


@pytest.mark.parametrize(
    "settings,says",
    [
        ({"kind": "wsd"}, "decay None: a share of the steps for wsd"),
        ({"kind": "cosine", "decay": 0.1}, "decay 0.1: .* null for all others"),
        ({"kind": "warmup", "final": 0.1}, "it stays at the top"),
        ({"kind": "wsd", "warmup": 0.6, "decay": 0.5}, "more than all steps"),
        ({"kind": "linear"}, "'warmup', 'cosine' or 'wsd'"),
    ],
)
def test_what_cannot_be_is_refused(settings, says):
    with pytest.raises(ValueError, match=says):
        Schedule(**settings)


def test_a_constant_rate_is_in_no_name():
    assert "schedule" not in Training(steps=5).identity()
    assert Training(steps=5, schedule="constant") == Training(steps=5)


def test_an_engine_takes_the_rates_of_its_schedule():
    """In float64 against the plain reference, whose rate is set by hand for each step."""
    schedule = {"kind": "wsd", "warmup": 0.25, "decay": 0.5}
    spec = spec_of("perloop-rms", schedule=schedule, steps=8)
    engine = Engine(spec, torch.device("cpu"))
    engine.model.double()
    engine.optimizer = type(engine.optimizer)(dict(engine.model.named_parameters()), spec.training)
    start = {n: p.detach().clone() for n, p in engine.model.named_parameters()}
    ids = batches(spec, 8)
    rates = [3e-3 * f for f in (0.5, 1, 1, 1, 1, 0.75, 0.5, 0.25)]
    plain = train_steps(dict(start), ids, spec, rates)
    found = trained(engine, ids)
    for name in plain:
        torch.testing.assert_close(found[name], plain[name], rtol=1e-11, atol=1e-11, msg=name)


def test_a_schedule_needs_the_number_of_steps():
    spec = spec_of("perloop-rms", schedule={"kind": "cosine"})
    of_epochs = RunSpec.model_validate(
        spec.identity() | {"training": spec.training.identity() | {"steps": None, "epochs": 1}}
    )
    with pytest.raises(ValueError, match="steps"):
        Engine(of_epochs, torch.device("cpu"), Execution())


def test_a_resumed_run_goes_on_along_its_schedule(job, monkeypatch):
    schedule = {"kind": "cosine", "warmup": 0.2}
    whole, torn = (job(where=name, schedule=schedule) for name in ("whole", "torn"))
    train(whole)
    with monkeypatch.context() as patch:
        stop_after(patch, 11)
        with pytest.raises(InterruptedRunError):
            train(torn)
    train(torn)
    assert_same_run(torn, whole)
