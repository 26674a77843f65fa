"""Blocks of windows: against a loop over targets, and against the sums of exits.csv."""

import numpy as np
import pandas as pd
import pytest
import torch

import reference_model as plain
from blindspot.declared import FILES
from blindspot.declared.columns import Context
from blindspot.measure import exits, windows
from measuring import ToyTokens, parameters, streams, subject, table
from toys import CELLS


def made(cell="perloop-rms", length=300, **changes):
    tokens = ToyTokens(streams(37, length), 37)
    return subject(cell, tokens=tokens, settings={"min_context": 5}, **changes)


@pytest.mark.parametrize("cell", ["perloop-rms", "terminal-raw", "perloop-finalnorm"])
def test_against_a_loop_over_targets(cell):
    """Windows of 12 that advance by 7: the first scores 12 targets, each of the others 7."""
    s = made(cell)
    rows = table("windows", windows.measure(s)["windows"])
    stream = torch.from_numpy(s.tokens.split("test").astype(np.int64))
    p, expected, at, window = parameters(s), {}, 1, 0
    total = -(-(299 - 12) // 7) + 1
    while at < 300:
        end = min(at + (12 if at == 1 else 7), 300)
        start = end - 13
        states = plain.states(p, stream[None, start : end - 1], s.spec.model)
        block = min(window // 8, total // 8 - 1)
        for k in (1, 2, 3):
            nll = plain.token_nll(p, states[k], k, stream[None, start + 1 : end], s.spec.model)[0]
            own = expected.setdefault((block, k), [0, 0, 0.0])
            own[0] += 1
            own[1] += end - at
            own[2] += float(nll[at - end :].sum())
        at, window = end, window + 1
    assert window == total
    found = {(r["block"], r["k"]): [r["windows"], r["tokens"], r["nll"]] for r in rows}
    assert set(found) == set(expected)
    for key, values in expected.items():
        assert found[key][:2] == values[:2]
        assert found[key][2] == pytest.approx(values[2], rel=1e-5)
    assert {r["windows"] for r in rows if r["block"] < total // 8 - 1} == {8}


@pytest.mark.parametrize("cell", CELLS)
def test_blocks_sum_to_what_exits_says(cell):
    s = made(cell)
    frame = pd.DataFrame(table("windows", windows.measure(s)["windows"]))
    assert list(FILES["windows"].faults(frame, Context(s.spec, 1))) == []
    whole = [r for r in table("exits", exits.measure(s)["exits"]) if r["protocol"] == "full"]
    for r in whole:
        if r["split"] == "test" and r["k"] <= 3:
            own = frame[frame["k"] == r["k"]]
            assert own["tokens"].sum() == r["tokens"]
            assert own["nll"].sum() == pytest.approx(r["nll"], rel=1e-5)


@pytest.mark.parametrize("length", [8, 60])
def test_a_short_text_is_one_block(length):
    rows = table("windows", windows.measure(made(length=length))["windows"])
    assert {r["block"] for r in rows} == {0} and {r["tokens"] for r in rows} == {length - 1}


def test_a_lost_block_is_refused():
    s = made()
    frame = pd.DataFrame(table("windows", windows.measure(s)["windows"]))
    file, at = FILES["windows"], Context(s.spec, 1)
    assert "has blocks" in next(file.faults(frame[frame["block"] != 1], at))
    wrong = frame.assign(tokens=range(1, len(frame) + 1))
    assert "has tokens that differ" in next(file.faults(wrong, at))
