"""Baselines against plain loops, and what is known of them."""

import math
from collections import Counter

import numpy as np
import pytest

from blindspot.measure import baselines
from blindspot.measure import subject as subjects
from measuring import ToyTokens, streams, subject, table


def measured(s):
    rows = table("baselines", baselines.measure(s)["baselines"])
    return {(r["split"], r["baseline"]): r for r in rows}


def test_against_a_loop_over_tokens(monkeypatch):
    """Counted in pieces of a few ids, as a large split is."""
    monkeypatch.setattr(subjects, "COUNTED", 7)
    s = subject()
    vocab, train = s.tokens.vocab_size, s.tokens.split("train")[1:].tolist()
    seen = Counter(train)
    found = measured(s)
    assert len(found) == 4
    for split in ("validation", "test"):
        targets = s.tokens.split(split)[1:].tolist()
        nll = -sum(math.log((seen[t] + 1) / (len(train) + vocab)) for t in targets)
        row = found[split, "unigram"]
        assert row["tokens"] == len(targets) == found[split, "uniform"]["tokens"]
        assert row["nll"] == pytest.approx(nll, rel=1e-12)
        assert row["ce"] == pytest.approx(nll / len(targets), rel=1e-12)
        assert found[split, "uniform"]["ppl"] == pytest.approx(vocab, rel=1e-12)


def test_a_unigram_model_of_its_own_text_scores_its_entropy():
    """Smoothing vanishes as the text grows; ids that never come cost, but are never asked."""
    p = np.array([0.5, 0.25, 0.125, 0.125, 0.0])
    stream = np.repeat(np.arange(5), (p * 800_000).astype(int)).astype("<u2")
    stream = np.append(stream[:1], stream)
    s = subject(tokens=ToyTokens(dict.fromkeys(("train", "validation", "test"), stream), 5))
    assert measured(s)["test", "unigram"]["ce"] / math.log(2) == pytest.approx(1.75, abs=1e-4)


def test_probabilities_sum_to_one_and_what_was_never_seen_has_some():
    cost = baselines.unigram(np.array([7, 0, 3]))
    assert np.exp(-cost).sum() == pytest.approx(1) and np.exp(-cost[1]) == pytest.approx(1 / 13)


def test_targets_are_those_of_protocol_full():
    from blindspot.measure import exits

    s = subject(tokens=ToyTokens(streams(37, length=61), 37))
    full = next(r for r in table("exits", exits.measure(s)["exits"]) if r["protocol"] == "full")
    assert measured(s)["validation", "uniform"]["tokens"] == full["tokens"] == 60


def test_a_model_that_knows_nothing_is_the_uniform_baseline():
    """Of logits that are all 0 every exit costs ln V."""
    from blindspot.measure import exits

    s = subject("perloop-raw")
    s.model.embedding.weight.zero_()
    rows = table("exits", exits.measure(s)["exits"])
    expected = measured(s)["test", "uniform"]["ce"]
    assert {r["split"] for r in rows} == {"validation", "test"}
    assert all(r["ce"] == pytest.approx(expected, rel=1e-12) for r in rows)
