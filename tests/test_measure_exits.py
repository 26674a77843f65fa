"""Exits against a plain reference, token by token; faults E-01, E-03, L-01, L-04, L-05, T-05."""

import itertools
import json
import math

import numpy as np
import pytest
import torch

import reference_model as plain
from blindspot.config.dataspec import DataSpec, LocalCorpus
from blindspot.config.spec import Windows
from blindspot.data import corpus, tokenizer
from blindspot.data.tokens import Tokens, build
from blindspot.lm import heads
from blindspot.measure import exits
from blindspot.measure.subject import token_nll, windows
from measuring import ToyTokens, parameters, subject, table
from toys import CELLS, toy_model


def measured(s):
    return table("exits", exits.measure(s)["exits"])


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


@pytest.mark.parametrize("protocol", ["paper", "release-figure"])
def test_paper_counts_every_target_of_the_windows_of_training(monkeypatch, protocol):
    monkeypatch.setattr(exits, "RELEASE_WINDOWS", 4)
    s = subject()
    s.spec = s.spec.model_copy(update={"windows": Windows(length=12, stride=6)})
    stream = s.tokens.split("test")
    rows = [r for r in measured(s) if (r["split"], r["protocol"]) == ("test", protocol)]
    starts = [at for at in range(0, 100, 6) if at + 13 <= 100]
    assert len(starts) == 15
    # The figure's windows do not overlap.
    starts = [0, 12, 24, 36] if protocol == "release-figure" else starts
    for r in rows:
        spans = [stream[at : at + 13] for at in starts]
        total = sum(plain_nll(s, span, 0, int(r["k"])) for span in spans)
        assert r["tokens"] == len(starts) * 12 and r["nll"] == pytest.approx(total, rel=1e-12)
        # One word and five bytes a token, and what the toy's last token has, if it is counted.
        spans = s.tokens.spans("test")
        counted = np.concatenate([spans[at + 1 : at + 13] for at in starts]).sum(axis=0)
        assert [r["bytes"], r["words"]] == counted.tolist()


class Known:
    """A model whose NLL of id 0 is `cost[t]` at position t of its window, whatever it reads."""

    def __init__(self, cost, vocab=3):
        self.cost = torch.tensor(cost, dtype=torch.float64)
        self.spec = toy_model(vocab_size=vocab)
        # Its readout is the logits already.
        self.embedding = torch.nn.Embedding.from_pretrained(torch.eye(vocab, dtype=torch.float64))

    def __call__(self, inputs, loops):
        state = self.cost[: inputs.shape[1]].expand(inputs.shape).unsqueeze(-1)
        return [state] * (loops + 1)

    def readout(self, state, k):
        # p(0) = exp(-cost), and the others share the rest.
        rest = torch.log1p(-torch.exp(-state)) - math.log(self.spec.vocab_size - 1)
        return torch.cat([-state, rest, rest], dim=-1)


@pytest.mark.parametrize("tokens", [2, 5, 13, 14, 100, 131])
@pytest.mark.parametrize("stride,least", [(12, 0), (6, 6), (5, 8), (1, 11)])
def test_protocols_on_a_model_whose_answer_is_known(monkeypatch, tokens, stride, least):
    """Cost by position alone, so each protocol's sum can be written down."""
    monkeypatch.setattr(exits, "RELEASE_WINDOWS", 3)
    cost = [2.0 / (t + 1) for t in range(12)]
    s = subject(settings={"min_context": least})
    stream = np.zeros(tokens, dtype="<u2")
    s.tokens = ToyTokens({"validation": stream, "test": stream}, 3)
    s.spec = s.spec.model_copy(update={"windows": Windows(length=12, stride=stride)})
    s.model = Known(cost)
    found = {r["protocol"]: r for r in measured(s) if (r["split"], r["k"]) == ("test", 1)}
    # full: a target's position is its own number in the first window, later at least `least`.
    total = sum(cost[: min(12, tokens - 1)])
    left = tokens - 13
    while left > 0:
        new = min(left, 12 - least)
        total += sum(cost[12 - new :])
        left -= new
    assert found["full"]["nll"] == pytest.approx(total, rel=1e-12)
    assert found["full"]["tokens"] == tokens - 1
    n = (tokens - 13) // stride + 1 if tokens > 12 else 1
    each = sum(cost[: min(12, tokens - 1)])
    assert found["paper"]["nll"] == pytest.approx(n * each, rel=1e-12)
    apart = min((tokens - 1) // 12, 3) or 1
    assert found["release-figure"]["nll"] == pytest.approx(apart * each, rel=1e-12)


def test_the_figures_windows_are_those_of_the_release():
    """20 batches of 8 windows of 256 that do not overlap: ids 0 to 40,960, each a target once."""
    windows = Windows(length=256, stride=128)
    plan = exits.plan_of(250_000, windows, 128)
    read = plan.first["release-figure"] == 0
    assert plan.starts[read].tolist() == list(range(0, 40_960, 256)) and read.sum() == 160
    assert (plan.first["release-figure"][~read] == 256).all()
    # A stride of training that does not divide the length changes nothing.
    other = exits.plan_of(250_000, Windows(length=256, stride=100), 128)
    assert other.starts[other.first["release-figure"] == 0].tolist() == plan.starts[read].tolist()
    assert plan.starts[plan.first["paper"] == 0].tolist() == list(range(0, 250_000 - 256, 128))


def test_what_a_window_costs_is_paid_once():
    """Where protocols share windows (the paper's settings), none is read twice."""
    plan = exits.plan_of(1 + 256 * 40, Windows(length=256, stride=128), 128)
    assert (np.diff(plan.starts) == 128).all() and len(plan.starts) == 79
    assert [(f == 0).sum() for f in plan.first.values()] == [1, 79, 40]
    assert (plan.first["full"][1:] == 128).all()


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


def test_the_order_of_windows_changes_nothing_but_rounding():
    s = subject(dtype=torch.float32)
    stream = s.tokens.split("validation")
    plan = exits.plan_of(len(stream), Windows(length=12, stride=6), 5)
    expected = exits.nll_by_depth(s, stream, plan, [1, 3])
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(plan.starts))
        first = {name: at[order] for name, at in plan.first.items()}
        found = exits.nll_by_depth(s, stream, exits.Plan(12, plan.starts[order], first), [1, 3])
        for name, sums in expected.items():
            np.testing.assert_allclose(found[name], sums, rtol=1e-6)


def test_base_and_overflow():
    """E-01 c, d: nats; a hopeless depth is inf and leaves the others alone."""
    size = exits.Size(10, 5, 50, 3, False)
    cells = exits.row("test", "full", 1, 2.0 * 10, size, 4)
    assert float(cells[8]) == pytest.approx(7.389056, rel=1e-6)
    assert cells[12:] == ["0.29999999999999999", 0]
    hopeless = exits.row("test", "full", 1, 710.0 * 10, size, 4)
    assert float(hopeless[7]) == 710.0 and hopeless[8] == hopeless[9] == "inf"
    assert exits.row("test", "full", 1, math.inf, size, 4)[6:9] == ["inf"] * 3


TEXT = "Ein Würfel — naïve café,  two  spaces\n\nand a new paragraph of 日本 words. " * 9


def built(tmp_path, tokenizer, name="anything", rows=()):
    """Token files of a text whose corpus claims a name and a number of rows."""
    for split, text in {"train": TEXT * 2, "validation": TEXT, "test": TEXT[3:]}.items():
        (tmp_path / f"{split}.txt").write_text(text)
    names = {split: str(tmp_path / f"{split}.txt") for split in ("train", "validation", "test")}
    data = DataSpec(corpus=LocalCorpus(kind="local", **names), tokenizer=tokenizer)
    corpus.fetch(data.corpus, tmp_path / "corpus")
    build(data, tmp_path / "corpus", tmp_path / "tokens")
    tokens = Tokens.open(tmp_path / "tokens")
    meta = json.loads(json.dumps(tokens.meta))
    meta["data"]["corpus"]["name"] = name
    for split, count in rows:
        meta["splits"][split]["rows"] = count
    return Tokens(tokens.folder, meta)


def test_words_and_bytes_of_a_part_of_the_text(tmp_path):
    """E-03: windows laid end to end count each word and byte of the text once."""
    tokens = built(tmp_path, {"kind": "bpe", "vocab_size": 300})
    stream = tokens.split("test")
    model = tokenizer.load(tokens.folder / "tokenizer.json")
    edges = [1, 2, 17, 40, 41, 77, len(stream)]

    def size(start, end):
        """Of targets start .. end - 1."""
        at, first = np.array([start - 1]), np.array([0])
        plan = exits.Plan(end - start, at, {"full": first})
        return exits.size_of(tokens, "test", plan, "full")

    sizes = [size(a, b) for a, b in itertools.pairwise(edges)]
    text = TEXT[3:]
    assert sum(size.tokens for size in sizes) == len(stream) - 1
    assert sum(size.bytes for size in sizes) == len(text.encode())
    assert sum(size.words for size in sizes) == len(text.split())
    for a, b in [(1, 41), (17, 90)]:
        inside = model.decode(stream[a:b].tolist())
        assert size(a, b).bytes == len(inside.encode())
        begun = len(inside.split()) - (
            a > 1
            and not inside[0].isspace()
            and not model.decode(stream[:a].tolist())[-1].isspace()
        )
        assert size(a, b).words == begun
    assert size(1, 9).comparable and size(1, 9).unk == 0


def test_line_ends_are_words_of_wikitext_and_unk_is_counted(tmp_path):
    tokens = built(
        tmp_path,
        {"kind": "words", "vocab_size": 12},
        "Salesforce/wikitext",
        [("validation", 19), ("test", 5)],
    )
    stream = tokens.split("validation")
    plan = exits.plan_of(len(stream), Windows(length=12, stride=6), 5)
    size = exits.size_of(tokens, "validation", plan, "full")
    assert size.words == len(TEXT.split()) + 19 and size.bytes == len(TEXT.encode())
    unk = int((stream[1:] == 0).sum())
    assert size.unk == unk == tokens.counts("validation")["unk"] > 0 and not size.comparable
    twice = exits.size_of(tokens, "validation", plan, "paper")
    assert twice.words == pytest.approx(size.words * twice.tokens / size.tokens, rel=0.05)


@pytest.mark.parametrize("cell", ["perloop-rms", "perloop-raw"])
def test_a_thousandfold_state_moves_raw_exits_alone(cell):
    """L-01, L-04: normalized exits do not see the factor, whatever the entries' size; raw do."""
    s = subject(cell, torch.float32)
    ids = torch.from_numpy(windows(s.tokens.split("test"), 12, 48))
    state = s.model(ids[:, :-1])[2]
    before = token_nll(s.model, state, 2, ids[:, 1:])
    for factor in (1e2, 1e3, 1e5):
        after = token_nll(s.model, factor * state, 2, ids[:, 1:])
        assert bool(torch.isfinite(after).all()) and after.dtype == torch.float32
        assert torch.allclose(after, before, rtol=1e-4) == (cell == "perloop-rms")


def test_slices_bound_the_logits_and_change_nothing(monkeypatch):
    """L-04: peak memory does not grow with the batch."""
    s = subject()
    whole, sizes = measured(s), []
    monkeypatch.setitem(heads.SLICE, "cpu", 37 * 5)
    score = heads.F.cross_entropy
    monkeypatch.setattr(
        heads.F, "cross_entropy", lambda x, *a, **k: (sizes.append(len(x)), score(x, *a, **k))[1]
    )
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
