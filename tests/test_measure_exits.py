"""Exits against a plain reference, token by token; faults E-01, E-03, L-01, L-04, L-05, T-05."""

import itertools
import math

import numpy as np
import pytest
import torch

import reference_model as plain
from blindspot import tokenizer
from blindspot.measure import exits
from blindspot.measure.subject import windows
from blindspot.spec import BpeTokenizer
from measuring import ToyTokens, parameters, subject, table
from toys import CELLS


def measured(s):
    return table(exits.COLUMNS, exits.measure(s)["exits"])


def plain_nll(s, ids, first, k):
    """Sum of nats of targets first.. of one window, by the reference model."""
    spec, p = s.spec.model, parameters(s)
    ids = torch.from_numpy(ids.astype(np.int64))[None]
    state = plain.states(p, ids[:, :-1], spec, loops=k)[k]
    return plain.token_nll(p, state, k, ids[:, 1:], spec)[0, first:].sum().item()


@pytest.mark.parametrize("cell", CELLS)
def test_full_scores_each_target_once_with_its_context_and_equals_the_reference(cell):
    s = subject(cell)
    length, least, stream = 12, 5, s.tokens.split("validation")
    rows = [r for r in measured(s) if (r["split"], r["protocol"]) == ("validation", "full")]
    assert [r["k"] for r in rows] == [1, 2, 3, 5]
    for r in rows:
        total, seen = 0.0, []
        start = 0
        while len(seen) < len(stream) - 1:
            end = min(start + length + 1, len(stream))
            start = max(0, end - length - 1)
            new = [t for t in range(start + 1, end) if t not in seen]
            assert all(t - start >= min(least, t) for t in new)
            total += plain_nll(s, stream[start:end], new[0] - start - 1, int(r["k"]))
            seen += new
            start = end - least - 1
        assert seen == list(range(1, 100)) and r["tokens"] == 99
        assert r["nll"] == pytest.approx(total, rel=1e-12)
        assert r["ce"] == pytest.approx(total / 99, rel=1e-12)
        assert r["ppl"] == pytest.approx(math.exp(total / 99), rel=1e-12)
        assert (r["words"], r["bytes"]) == (101, 503)
        assert r["word_ppl"] == pytest.approx(math.exp(total / 101), rel=1e-12)
        assert r["bits_per_byte"] == pytest.approx(total / 503 / math.log(2), rel=1e-12)
        assert r["trained_k"] == 3


def test_release_figure_counts_every_target_of_its_windows(monkeypatch):
    monkeypatch.setattr(exits, "RELEASE_WINDOWS", 4)
    s = subject()
    stream = s.tokens.split("test")
    rows = [r for r in measured(s) if (r["split"], r["protocol"]) == ("test", "release-figure")]
    for r in rows:
        spans = [stream[at : at + 13] for at in (0, 7, 14, 21)]
        total = sum(plain_nll(s, span, 0, int(r["k"])) for span in spans)
        assert r["tokens"] == 4 * 12 and r["nll"] == pytest.approx(total, rel=1e-12)
        assert r["words"] == r["bytes"] == r["word_ppl"] == r["bits_per_byte"] == ""


def test_depth_k_is_the_exit_of_a_pass_of_k_loops_that_a_clipped_run_gives():
    """L-01, L-05: other depths of one pass do not change a depth; K + 2 is marked, not hidden."""
    s, alone = subject("perloop-finalnorm"), subject("perloop-finalnorm", settings={
        "depths_beyond": []})  # fmt: skip
    deep, shallow = measured(s), measured(alone)
    assert [r for r in deep if r["k"] <= 3] == shallow
    assert all(r["trained_k"] == 3 for r in deep)


def test_sums_run_over_tokens_whatever_the_batch(monkeypatch):
    """E-01 a, b: no mean of means; the last partial batch weighs as its tokens."""
    s = subject(dtype=torch.float32)
    found = []
    for size in (1, 3, 7, 64):
        chunks = s.__class__.chunks
        monkeypatch.setattr(
            s, "chunks", lambda rows, n=size, c=chunks: c(s, rows, n * 12), raising=False
        )
        found.append([r["nll"] for r in measured(s)])
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-6)


def test_base_and_overflow():
    """E-01 c, d: nats; a hopeless depth is inf and leaves the others alone."""
    cells = exits.row("test", "full", 1, 2.0 * 10, exits.Size(10, 5, 50), 4)
    assert float(cells[8]) == pytest.approx(7.389056, rel=1e-6)
    hopeless = exits.row("test", "full", 1, 710.0 * 10, exits.Size(10, 5, 50), 4)
    assert float(hopeless[7]) == 710.0 and hopeless[8] == hopeless[9] == "inf"
    assert exits.row("test", "full", 1, math.inf, exits.Size(10, 5, 50), 4)[6:9] == ["inf"] * 3


def test_words_and_bytes_of_a_part_of_the_text(tmp_path):
    """E-03: windows laid end to end count each word and byte of the text once."""
    text = "Ein Würfel — naïve café,  two  spaces\n\nand a new paragraph of 日本 words. " * 9
    model = tokenizer.train(BpeTokenizer(kind="bpe", vocab_size=300), [text])
    model.save(str(tmp_path / "tokenizer.json"))
    ids = np.array([0, *model.encode(text).ids], dtype="<u2")
    tokens = ToyTokens({"test": ids}, 300, "bpe", tmp_path)
    edges = [1, 2, 17, 40, 41, 77, len(ids)]
    sizes = [
        exits._size(tokens, "test", np.array([[a - 1, a, b]]), "release-figure")
        for a, b in itertools.pairwise(edges)
    ]
    assert sum(size.tokens for size in sizes) == len(ids) - 1
    assert sum(size.bytes for size in sizes) == len(text.encode())
    assert sum(size.words for size in sizes) == len(text.split())
    part = exits._size(tokens, "test", np.array([[0, 1, 41]]), "full")
    assert part.bytes == len(model.decode(ids[1:41].tolist()).encode())


@pytest.mark.parametrize("cell", ["perloop-rms", "perloop-raw"])
def test_a_thousandfold_state_moves_raw_exits_alone(cell):
    """L-01, L-04: normalized exits do not see the factor, whatever the entries' size; raw do."""
    s = subject(cell, torch.float32)
    ids = torch.from_numpy(windows(s.tokens.split("test"), 12, 48))
    state = s.model(ids[:, :-1])[2]
    before = exits.token_nll(s.model, state, 2, ids[:, 1:])
    for factor in (1e2, 1e3, 1e5):
        after = exits.token_nll(s.model, factor * state, 2, ids[:, 1:])
        assert bool(torch.isfinite(after).all()) and after.dtype == torch.float32
        assert torch.allclose(after, before, rtol=1e-4) == (cell == "perloop-rms")


def test_slices_bound_the_logits_and_change_nothing(monkeypatch):
    """L-04: peak memory does not grow with the batch."""
    s = subject()
    whole, sizes = measured(s), []
    monkeypatch.setattr(exits, "SLICE", 37 * 5)
    logits = s.model.logits
    monkeypatch.setattr(s.model, "logits", lambda h, k: (sizes.append(len(h)), logits(h, k))[1])
    sliced = measured(s)
    assert max(sizes) <= 5
    np.testing.assert_allclose([r["nll"] for r in sliced], [r["nll"] for r in whole], rtol=1e-12)


def test_measuring_twice_is_equal_and_leaves_mode_and_generator(monkeypatch):
    """T-05: no dropout, whatever the rate; nothing random."""
    s = subject(dropout={"rate": 0.5})
    before = torch.random.get_rng_state()
    assert measured(s) == measured(s)
    assert torch.equal(torch.random.get_rng_state(), before) and not s.model.training


@pytest.mark.parametrize("length,budget,n", [(12, 0, 1), (12, 48, 4), (12, 50, 4), (12, 10**6, 8)])
def test_sample_windows_are_spread_and_do_not_overlap(length, budget, n):
    stream = np.arange(100)
    rows = windows(stream, length, budget)
    assert rows.shape == (n, length + 1)
    assert (np.diff(rows, axis=1) == 1).all()
    assert (np.diff(rows[:, 0]) >= length).all()
    assert rows[:, 0].tolist()[0] == 0 and rows.max() < 100
    if n > 1:
        assert rows[-1, 0] >= 100 * (n - 1) / n - 2 * length
