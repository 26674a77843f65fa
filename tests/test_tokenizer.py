"""Tokenizers against plain Python: a `re` loop for words, the text itself for BPE."""

import re
import sys
import unicodedata
from collections import Counter

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from blindspot.config.dataspec import BpeTokenizer, DataSpec, LocalCorpus, WordsTokenizer
from blindspot.data import corpus, tokenizer
from blindspot.data.encode import Encoder
from blindspot.data.tokenizer import END_OF_TEXT, START, load, train
from blindspot.data.tokens import Tokens, build
from blindspot.errors import BlindspotError
from toys import ROOT, WIKITEXT

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
    """The paper's vocabulary, in plain Python: token -> id. Each text is counted by itself."""
    counts = Counter(word for text in texts for word in re.findall(spec.pattern, text))
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    special = 4 if spec.vocabulary == "release" else 1
    kept = [word for word, n in ranked if n >= spec.min_frequency and word != "<unk>"]
    return {word: i for i, word in enumerate(["<unk>", *kept[: spec.vocab_size - special]])}


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


#: Rows whose ends are white space, or that begin with it, or with what no pattern matches.
ROWS = [*ODD, " \n", "\n a", "a", "\u00e9", "b \u00fc", "\u00fc\n", "", "a"]


@pytest.mark.parametrize("batch", [1, 40, 1 << 21])
def test_the_releases_words_are_those_of_each_row(monkeypatch, batch):
    """Nothing is counted across rows, wherever they are put together to be counted fast."""
    monkeypatch.setattr(tokenizer, "BATCH", batch)
    for size in (5, 12, 1000):
        spec = WordsTokenizer(kind="words", vocab_size=size, min_frequency=1, vocabulary="release")
        assert_equals_plain(ROWS, spec, ["\n\n".join(ROWS)])
    own = spec.model_copy(update={"pattern": r"\S+"})
    assert_equals_plain(ROWS, own)
    with pytest.raises(ValueError, match=r"vocab_size 4 has no room .* at least 5"):
        WordsTokenizer(kind="words", vocab_size=4, vocabulary="release")


@pytest.mark.skipif(not WIKITEXT.is_dir(), reason="no WikiText here")
def test_the_releases_words_meet_its_own_counts(tmp_path):
    """What the paper's code gives for the same rows: tokens, and how many of them are UNK."""
    parquet, pa = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")

    def rows(name):
        return parquet.read_table(next(WIKITEXT.glob(name))).column("text").to_pylist()

    train = rows("wikitext-103-raw-v1/test-*") + rows("wikitext-2-v1/train-*")
    texts = {"train": train, "validation": rows("wikitext-103-raw-v1/validation-*")}
    assert len(train) == 41_076
    for split, values in {**texts, "test": ["some test"]}.items():
        parquet.write_table(pa.table({"text": values}), tmp_path / f"{split}.parquet")
    source = LocalCorpus(
        kind="local", **{split: str(tmp_path / f"{split}.parquet") for split in corpus.SPLITS}
    )
    corpus.fetch(source, tmp_path / "corpus")
    paper = yaml.safe_load((ROOT / "config.yaml").read_text())["tokenizer"]
    data = DataSpec.model_validate({"corpus": source.model_dump(), "tokenizer": paper})
    build(data, tmp_path / "corpus", tmp_path / "tokens")
    opened = Tokens.open(tmp_path / "tokens", data=data.identity())
    found = {split: opened.counts(split) for split in texts}
    assert {split: (c["tokens"], c["unk"]) for split, c in found.items()} == {
        "train": (4_774_721, 93_263),
        "validation": (435_582, 12_924),
    }
    # UNK, 19,996 words, and three ids that stand for nothing.
    assert (opened.vocab_size, opened.meta["entries"]) == (20_000, 19_997)


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
