"""Real WikiText through the whole way: the counts of rows, words, bytes and tokens."""

import hashlib

import numpy as np
import pytest

from blindspot.config.dataspec import DataSpec, HubCorpus
from blindspot.config.spec import Windows
from blindspot.data import corpus
from blindspot.data.tokenizer import load
from blindspot.data.tokens import Tokens, build
from blindspot.measure import exits
from toys import WIKITEXT

pytestmark = pytest.mark.skipif(not WIKITEXT.is_dir(), reason="no WikiText here")
pytest.importorskip("datasets")


@pytest.fixture(scope="module")
def fetched(tmp_path_factory):
    """WikiText-2, its train split cut short by a limit, so that this is quick."""
    folder = tmp_path_factory.mktemp("wikitext")
    spec = HubCorpus(
        kind="hub",
        name="Salesforce/wikitext",
        config="wikitext-2-v1",
        revision="b08601e04326c79dfdd32d625aee71d232d685c3",
        path=str(WIKITEXT),
        limit={"words": 200_000},
    )
    corpus.fetch(spec, folder / "corpus")
    return folder, spec


@pytest.mark.parametrize(
    ("tokenizer", "tokens", "unk"),
    [
        ({"kind": "bpe", "vocab_size": 2048}, 418_001, 0),
        ({"kind": "words", "vocab_size": 20_000}, 520_999, 20_278),
    ],
    ids=["bpe", "words"],
)
def test_counts_of_the_test_split(fetched, tokenizer, tokens, unk):
    folder, spec = fetched
    data = DataSpec(corpus=spec, tokenizer=tokenizer)
    out = folder / tokenizer["kind"]
    build(data, folder / "corpus", out)
    opened = Tokens.open(out, data=data.identity())
    text = "\n\n".join(corpus.documents(folder / "corpus", "test"))
    counts = opened.counts("test")
    assert (counts["rows"], counts["words"], counts["documents"]) == (4358, 241_211, 2891)
    # The original file's size, without its 1,467 blank lines " \n", with separators of ours.
    assert counts["bytes"] == len(text.encode()) == 1_256_449 - 2 * 1467 + 2 * 2890
    assert counts["text_sha256"] == hashlib.sha256(text.encode()).hexdigest()
    # Golden: when these move, DATA_REVISION must be raised.
    assert (counts["tokens"], counts["unk"]) == (tokens, unk)
    ids = np.asarray(opened.split("test"))
    assert ids[1:].tolist() == load(out / "tokenizer.json").encode(text).ids
    # The literature's count: words and line ends of the `<unk>` version.
    plan = exits.plan_of(len(ids), Windows(length=256, stride=128), 128)
    size = exits.size_of(opened, "test", plan, "full")
    assert (size.words, size.bytes, size.tokens) == (245_569, counts["bytes"], counts["tokens"])
    assert size.comparable == (tokenizer["kind"] == "bpe") and size.unk == unk
    # Overlapping windows count inner words twice; what is counted stays in proportion.
    paper = exits.size_of(opened, "test", plan, "paper")
    assert paper.tokens == 256 * ((len(ids) - 257) // 128 + 1)
    # 20 batches of 8 windows that do not overlap.
    release = exits.size_of(opened, "test", plan, "release-figure")
    spans = opened.spans("test")
    first = [spans[at + 1 : at + 257].sum(axis=0) for at in range(0, 160 * 256, 256)]
    assert (release.tokens, release.bytes) == (160 * 256, sum(first)[0])
    assert paper.words / paper.tokens == pytest.approx(size.words / size.tokens, rel=1e-3)
