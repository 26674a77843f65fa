"""Tokenizers against plain Python: a `re` loop for words, the text itself for BPE."""

import re
import sys
import unicodedata
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindspot.config.spec import BpeTokenizer, WordsTokenizer
from blindspot.data.encode import Encoder
from blindspot.data.tokenizer import END_OF_TEXT, START, load, train
from blindspot.errors import BlindspotError
from toys import WIKITEXT

#: English with everything in it that has changed a corpus before (fault E-05).
ODD = [
    " = Title = \n",
    "The cat sat on the mat, and the dog sat on the cat's mat; 3.14 < 42.",
    "caf\u00e9 \u6771\u4eac \U0001f600 a\u0301 \u0301 x\u00b2 \u2167 _under_score_",
    "line\u2028mark\u0085next\u000btab\u00a0hard\x1cunit\tend\r\n",
    f"<unk> and {END_OF_TEXT} are ordinary text",
]


@pytest.fixture(scope="module")
def bpe():
    return train(BpeTokenizer(kind="bpe", vocab_size=300), ODD * 3)


def plain_words(texts, spec):
    """The paper's vocabulary, in plain Python: token -> id."""
    counts = Counter(word for text in texts for word in re.findall(spec.pattern, text))
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    kept = [word for word, n in ranked if n >= spec.min_frequency and word != "<unk>"]
    return {word: i for i, word in enumerate(["<unk>", *kept[: spec.vocab_size - 1]])}


def assert_equals_plain(texts, spec, others=()):
    model = train(spec, texts)
    vocabulary = plain_words(texts, spec)
    assert model.get_vocab() == vocabulary
    encoder = Encoder(model, spec)
    for text in [*texts, *others]:
        expected = [vocabulary.get(word, START) for word in re.findall(spec.pattern, text)]
        assert model.encode(text, add_special_tokens=False).ids == expected
        encoded = encoder([text])
        assert encoded.ids.tolist() == expected
        assert encoded.lost == len(text) - sum(map(len, re.findall(spec.pattern, text)))


def test_words_equal_a_plain_loop_on_odd_text():
    for size in (5, 12, 1000):
        spec = WordsTokenizer(kind="words", vocab_size=size, min_frequency=1)
        assert_equals_plain(ODD, spec, ["never seen before \u00fc"])
    assert_equals_plain(ODD, WordsTokenizer(kind="words", vocab_size=50, min_frequency=2))
    # A pattern of one's own, under which "<unk>" is a word: it is UNK, not an entry of its own.
    own = WordsTokenizer(kind="words", vocab_size=50, min_frequency=1, pattern=r"\S+")
    assert_equals_plain(ODD, own)


@pytest.mark.skipif(not WIKITEXT.is_dir(), reason="no WikiText here")
def test_words_equal_a_plain_loop_on_wikitext():
    table = pytest.importorskip("pyarrow.parquet").read_table(
        next(WIKITEXT.glob("wikitext-103-raw-v1/validation-*"))
    )
    rows = [row for row in table.column("text").to_pylist() if row][:1500]
    assert_equals_plain(rows, WordsTokenizer(kind="words", vocab_size=3000))


def test_words_cut_every_character_as_python_does():
    """Combining marks, numerals and the separators \\x1c-\\x1f differ between regex engines."""
    spec = WordsTokenizer(kind="words", vocab_size=2, min_frequency=1)
    model = train(spec, ["a"])
    known = [
        c
        for i in range(sys.maxunicode + 1)
        if unicodedata.category(c := chr(i)) not in ("Cn", "Cs")
    ]
    text = "".join(known)
    found = [word for word, _ in model.pre_tokenizer.pre_tokenize_str(text)]
    assert found == re.findall(spec.pattern, text)


def test_words_start_is_unk_and_id_zero():
    model = train(WordsTokenizer(kind="words", vocab_size=9, min_frequency=1), ["a b"])
    assert model.token_to_id("<unk>") == START == 0
    assert model.get_vocab_size() == 4  # <unk>, " ", "a", "b": smaller than allowed, and said so


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"pattern": "("}, r"tokenizer\.pattern: '\('"),
        ({"pattern": r"\w*"}, "matches the empty text"),
        ({"min_frequency": 99}, r"min_frequency: no word of the text occurs 99 times"),
    ],
)
def test_words_that_cannot_be_are_refused(values, message):
    with pytest.raises(BlindspotError, match=message):
        train(WordsTokenizer.model_validate({"kind": "words", "vocab_size": 9} | values), ODD)


@given(st.text())
@settings(max_examples=300)
def test_bpe_loses_nothing(bpe, text):
    ids = bpe.encode(text, add_special_tokens=False).ids
    assert bpe.decode(ids) == text
    assert START not in ids


def test_bpe_loses_nothing_of_odd_text(bpe, tmp_path):
    bpe.save(str(tmp_path / "tokenizer.json"))
    for model in (bpe, load(tmp_path / "tokenizer.json")):
        for text in [*ODD, END_OF_TEXT, "\ufeff\x00" + "".join(map(chr, range(0x250)))]:
            ids = model.encode(text, add_special_tokens=False).ids
            assert model.decode(ids) == text and START not in ids


def test_bpe_has_exactly_its_entries_and_all_bytes(bpe):
    assert bpe.get_vocab_size() == 300
    assert sorted(bpe.get_vocab().values()) == list(range(300))
    assert bpe.token_to_id(END_OF_TEXT) == START
    # Without one merge every byte is a token of its own.
    plain = train(BpeTokenizer(kind="bpe", vocab_size=257), ODD)
    for text in ODD:
        assert len(plain.encode(text).ids) == len(text.encode())


def test_bpe_merges_the_most_frequent_pair_first():
    model = train(BpeTokenizer(kind="bpe", vocab_size=258), ["ab ab ab cd"])
    assert model.encode("ab").tokens == ["ab"] and model.encode("cd").tokens == ["c", "d"]


def test_bpe_too_large_for_its_text_is_refused():
    with pytest.raises(BlindspotError, match=r"vocab_size: 5000 .* at most (\d+)") as error:
        train(BpeTokenizer(kind="bpe", vocab_size=5000), ODD)
    most = int(re.search(r"at most (\d+)", str(error.value))[1])
    assert train(BpeTokenizer(kind="bpe", vocab_size=most), ODD).get_vocab_size() == most


def test_training_twice_gives_the_same_file():
    for spec in (
        BpeTokenizer(kind="bpe", vocab_size=290),
        WordsTokenizer(kind="words", vocab_size=30, min_frequency=1),
    ):
        assert len({train(spec, ODD * 5).to_str() for _ in range(4)}) == 1


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(BlindspotError, match=r"tokenizer\.json: not readable"):
        load(tmp_path / "tokenizer.json")
