"""Encoding by distinct units equals encoding in one go; each token has its share of the text."""

import json
import re

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from blindspot.config.dataspec import (
    BpeTokenizer,
    DataSpec,
    Gpt2Tokenizer,
    HubTokenizer,
    LocalCorpus,
    WordsTokenizer,
)
from blindspot.config.study import Study
from blindspot.data import tokenizer
from blindspot.data.encode import Encoder
from blindspot.data.stream import pieces
from blindspot.data.tokens import Tokens, build
from blindspot.data.units import cut, units
from blindspot.errors import BlindspotError
from test_study import BASE
from test_tokenizer import ODD
from test_tokens import near_whitespace

BPE = BpeTokenizer(kind="bpe", vocab_size=300)
WORDS = WordsTokenizer(kind="words", vocab_size=40, min_frequency=1)
CUSTOM = WordsTokenizer(kind="words", vocab_size=40, min_frequency=1, pattern="[a-z]+ [a-z]+|[.,]")
FIT_ON = ODD + ["a. \n\n\n b\n\n \t\nc\n\n\n\nd  \n"] * 20


@pytest.fixture(scope="module", params=[BPE, WORDS], ids=["bpe", "words"])
def pair(request):
    model = tokenizer.train(request.param, FIT_ON)
    return request.param, model, Encoder(model, request.param)


def plain(spec, model, text):
    """(ids, end of each token in bytes) of a text encoded in one go."""
    if spec.kind == "words":
        found = list(re.finditer(spec.pattern, text))
        vocabulary = model.get_vocab()
        ends = [len(text[: m.end()].encode()) for m in found]
        return [vocabulary.get(m[0], 0) for m in found], ends
    encoded = model.encode(text, add_special_tokens=False)
    return encoded.ids, np.cumsum([len(token) for token in encoded.tokens]).tolist()


any_text = near_whitespace | st.text() | st.sampled_from(ODD)


@given(st.lists(any_text, max_size=8))
@example(["\u00e9", "a"])
@example(["a\x1c b\u00a0 c\u3000 d\u2009\n e"])
@example(["\u6771 \u4eac\u00e0 x"])
@settings(max_examples=300, deadline=None)
def test_units_encode_as_the_whole_text_does(pair, documents):
    spec, model, encoder = pair
    text = "\n\n".join(documents)
    encoded = encoder(list(pieces(documents)))
    ids, ends = plain(spec, model, text)
    assert encoded.ids.tolist() == ids
    lost = 0 if spec.kind == "bpe" else len(re.sub(spec.pattern, "", text))
    assert encoded.lost == lost
    if not ids:
        return
    # A token has its own bytes and what is lost before it; the last one, what is lost behind it.
    assert encoded.bytes.sum() == len(text.encode())
    assert encoded.words.sum() == len(text.split())
    if not lost:
        assert np.cumsum(encoded.bytes).tolist() == ends
        starts = [m.start() for m in re.finditer(r"\S+", text)]
        at = [len(text[:start].encode()) for start in starts]
        owners = np.searchsorted(ends, at, side="right")
        assert encoded.words.tolist() == np.bincount(owners, minlength=len(ids)).tolist()


@given(any_text)
@settings(deadline=None)
def test_cuts_stand_before_white_space_and_give_the_text_back(text):
    data = text.encode()
    numbers, distinct = units(data)
    assert b"".join(distinct[n] for n in numbers) == data
    assert len(set(distinct)) == len(distinct)
    for at in cut(data)[1:] if data else ():
        before, after = data[:at].decode(), data[at:].decode()
        assert not before[-1].isspace() and after[0] in " \t\n\r\x0b\x0c"
    if text.isascii():
        expected = re.findall(r"\A[^ \t-\r]*|[ \t-\r]+[^ \t-\r]*", text)
        if not re.search("[\x1c-\x1f]", text):
            assert [distinct[n].decode() for n in numbers] == [e for e in expected if e]


def test_a_memory_that_starts_over_changes_nothing(monkeypatch):
    spec, model = WORDS, tokenizer.train(WORDS, FIT_ON)
    texts = [list(pieces(ODD)), list(pieces(["new words here"])), list(pieces(ODD))]
    expected = [Encoder(model, spec)(t).ids.tolist() for t in texts]
    monkeypatch.setattr("blindspot.data.encode.REMEMBERED", 3)
    small = Encoder(model, spec)
    assert [small(t).ids.tolist() for t in texts] == expected


def test_a_pattern_of_ones_own_is_given_the_text_whole():
    """It may look across white space; pieces stay whole, and what is lost is counted."""
    model = tokenizer.train(CUSTOM, ["ab cd ef gh. ij"] * 3)
    encoder = Encoder(model, CUSTOM)
    assert not encoder.cuts and not encoder.lossless
    encoded = encoder(["1ab cd ef gh. ij2"])
    vocabulary = model.get_vocab()
    assert encoded.ids.tolist() == [vocabulary[w] for w in ("ab cd", "ef gh", ".")]
    assert encoded.lost == len("1" + " " + " ij2")
    assert encoded.bytes.tolist() == [6, 6, 5] and encoded.words.tolist() == [2, 2, 1]


# --- tokenizers that others made -------------------------------------------------------------


def others(folder, kind="wordpiece"):
    """A tokenizer.json that is not of ours: lower-casing WordPiece, or GPT-2's very layout."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    if kind == "gpt2":
        model = Tokenizer(models.BPE())
        model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        model.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=280, initial_alphabet=alphabet, show_progress=False
        )
        model.train_from_iterator(ODD * 5, trainer)
        model.add_special_tokens(["<|endoftext|>"])  # the last id, as GPT-2 has it
    else:
        model = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        model.normalizer = normalizers.BertNormalizer()
        model.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        special = ["[UNK]", "[CLS]", "[SEP]"]
        trainer = trainers.WordPieceTrainer(
            vocab_size=90, special_tokens=special, show_progress=False
        )
        model.train_from_iterator(["the cat sat on the mat. caf\u00e9"], trainer)
        model.enable_truncation(4)
    path = folder / "tokenizer.json"
    model.save(str(path))
    return path


TEXTS = {
    "train": "The cat\n\nsat on. " * 3,
    "validation": "the CAT \u6771 sat",
    "test": "on the mat",
}


def made(tmp_path, spec, given=None):
    from blindspot.data import corpus

    for split, text in TEXTS.items():
        (tmp_path / f"{split}.txt").write_text(text)
    names = {split: str(tmp_path / f"{split}.txt") for split in TEXTS}
    data = DataSpec(corpus=LocalCorpus(kind="local", **names), tokenizer=spec)
    corpus.fetch(data.corpus, tmp_path / "corpus")
    build(data, tmp_path / "corpus", tmp_path / "tokens", given)
    return Tokens.open(tmp_path / "tokens", data=data.identity())


def pinned(path, **values):
    """As a study fills in the digest."""
    base = Study.load(BASE, [], {"tokenizer": {"kind": "file", "path": str(path), **values}})
    return base.config.tokenizer


def test_gpt2s_layout_by_file_loses_nothing_and_starts_with_its_own_token(tmp_path):
    path = others(tmp_path, "gpt2")
    size = tokenizer.load(path).get_vocab_size()
    tokens = made(tmp_path, pinned(path, vocab_size=size))
    assert tokens.meta["lossless"] and tokens.meta["unk"] is None
    assert tokens.meta["start"] == size - 1
    model = tokenizer.load(tokens.folder / "tokenizer.json")
    for split, text in TEXTS.items():
        ids = tokens.split(split)
        assert ids[0] == size - 1 and model.decode(ids[1:].tolist()) == text


def test_another_kind_of_tokenizer_by_file_reports_what_it_loses(tmp_path):
    path = others(tmp_path)
    with pytest.raises(
        BlindspotError, match=r"tokenizer\.start: None .* \[UNK\], \[CLS\], \[SEP\]"
    ):
        made(tmp_path, pinned(path, vocab_size=90))
    tokens = made(tmp_path, pinned(path, vocab_size=90, start="[CLS]"))
    model = tokenizer.load(path)
    model.no_truncation()
    for split, text in TEXTS.items():
        ids = tokens.split(split)
        assert ids[0] == model.token_to_id("[CLS]")
        assert ids[1:].tolist() == model.encode(text, add_special_tokens=False).ids
    assert not tokens.meta["lossless"]
    counts = tokens.counts("validation")
    assert counts["unk"] == 1 and counts["lost_characters"] == 3  # one ideograph; three spaces
    spans = tokens.spans("validation")
    assert spans.sum(axis=0).tolist() == [len(TEXTS["validation"].encode()), 4]


def test_what_does_not_fit_is_refused(tmp_path):
    path = others(tmp_path, "gpt2")
    size = tokenizer.load(path).get_vocab_size()
    with pytest.raises(BlindspotError, match=rf"vocab_size: 270, but .* ids up to {size - 1}; use"):
        made(tmp_path, pinned(path, vocab_size=270))
    spec = pinned(path, vocab_size=size)
    with pytest.raises(BlindspotError, match=r"tokenizer\.sha256: .* the config pins 0000"):
        pinned(path, vocab_size=size, sha256="0" * 64)
    moved = tmp_path / "moved.json"
    moved.write_bytes(path.read_bytes())
    assert pinned(moved, vocab_size=size).identity() == spec.identity()
    path.write_text(path.read_text() + " ")
    with pytest.raises(BlindspotError, match="not the file of this study"):
        made(tmp_path, spec)
    with pytest.raises(BlindspotError, match=r"tokenizer\.path: .*absent: no such file"):
        pinned(tmp_path / "absent", vocab_size=9)


def test_hub_tokenizers_are_asked_for_by_name_and_revision(tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    path, calls = others(tmp_path, "gpt2"), []

    def download(*args, **named):
        calls.append((args, named))
        return str(path)

    monkeypatch.setattr(hub, "hf_hub_download", download)
    spec = Gpt2Tokenizer(kind="gpt2")
    tokenizer.fetch(spec, tmp_path / "out" / "tokenizer.json")
    assert (tmp_path / "out" / "tokenizer.json").read_text() == path.read_text()
    assert calls == [(("openai-community/gpt2", "tokenizer.json"), {"revision": spec.revision})]
    assert spec.identity()["vocab_size"] == 50257

    def offline(*args, **named):
        raise ConnectionError("offline\ntrace")

    monkeypatch.setattr(hub, "hf_hub_download", offline)
    other = HubTokenizer(kind="hub", name="a/b", revision="1234567", vocab_size=9)
    with pytest.raises(BlindspotError, match=r"offline\)\. Three ways out: .*HF_HOME.*file.*bpe"):
        tokenizer.fetch(other, tmp_path / "x.json")
    with pytest.raises(BlindspotError, match="fetch its file first, with `blindspot tokenizer`"):
        made(tmp_path, spec)
    study = Study.load(BASE, [], {"tokenizer": {"kind": "gpt2"}})
    assert study.tokenizer.name == "tokenizer.json" and json.dumps(study.data.identity())
    assert Study.load(BASE).tokenizer is None
