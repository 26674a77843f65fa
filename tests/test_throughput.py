"""F-07: throughput is measured, waits for the work, and an exit at k costs k loops."""

import itertools
import time

import pytest
import torch

from blindspot import provenance
from blindspot.config.spec import Throughput
from blindspot.declared.throughput import THROUGHPUT
from blindspot.lm.model import LoopedLM
from blindspot.measure import throughput
from toys import toy_model

CPU = torch.device("cpu")


def measured(specs, repeats=5, warmup=1, batch=2, precision="float32", **more):
    settings = Throughput(batch=batch, warmup=warmup, repeats=repeats)
    rows = throughput.measure(specs, settings, precision, CPU, **more)
    return [dict(zip(THROUGHPUT.header, row, strict=True)) for row in rows]


def test_a_sleep_in_each_loop_is_found_again_in_the_difference_between_depths(monkeypatch):
    original = LoopedLM.stack

    def slow(self, *given):
        time.sleep(0.05)
        return original(self, *given)

    monkeypatch.setattr(LoopedLM, "stack", slow)
    rows = measured({"rms": toy_model(loops=4)})
    tokens = 2 * 12
    seconds = [tokens / float(r["tokens_per_s"]) for r in rows]
    assert [r["k"] for r in rows] == [1, 2, 3, 4]
    for shallow, deep in itertools.pairwise(seconds):
        assert deep - shallow == pytest.approx(0.05, abs=0.01)


def test_the_clock_waits_for_the_device():
    """An asynchronous device returns at once; its work is only over after synchronization."""
    waits = []

    def synchronize():
        waits.append(1)
        if len(waits) % 2 == 0:
            time.sleep(0.02)

    rows = measured({"raw": toy_model("perloop-raw", loops=1)}, synchronize=synchronize)
    assert len(waits) == 2 * (1 + 5)
    assert 24 / float(rows[0]["tokens_per_s"]) > 0.02


def test_architectures_take_turns_and_warm_up_is_not_counted(monkeypatch):
    order = []
    original = LoopedLM.forward

    def noted(self, tokens, loops=None, edit=None):
        order.append((self.spec.readout, loops))
        return original(self, tokens, loops, edit)

    monkeypatch.setattr(LoopedLM, "forward", noted)
    specs = {"raw": toy_model("perloop-raw", loops=2), "rms": toy_model("perloop-rms", loops=2)}
    rows = measured(specs, repeats=3, warmup=2)
    cases = {("raw", 1), ("raw", 2), ("rms", 1), ("rms", 2)}
    rounds = [order[i : i + 4] for i in range(0, len(order), 4)]
    assert len(rounds) == 5
    assert all(set(r) == cases for r in rounds), "each repeat times every case once"
    assert len({tuple(r) for r in rounds}) > 1, "in another order"
    assert [(r["architecture"], r["k"]) for r in rows] == [
        ("raw", 1),
        ("raw", 2),
        ("rms", 1),
        ("rms", 2),
    ]


def test_each_number_says_what_it_was_measured_with():
    row = measured({"rms": toy_model(loops=1)}, batch=3, repeats=4, precision="bf16")[0]
    assert {k: row[k] for k in ("batch", "context", "precision", "threads", "repeats")} == {
        "batch": 3,
        "context": 12,
        "precision": "bf16",
        "threads": 1,
        "repeats": 4,
    }
    assert row["device"] == provenance.device_name(CPU)
    assert (
        float(row["tokens_per_s_q25"])
        <= float(row["tokens_per_s"])
        <= float(row["tokens_per_s_q75"])
    )
