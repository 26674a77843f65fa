"""Token files: what is written comes back, and what does not fit is refused by name."""

import hashlib
import json
import shutil

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from blindspot.config.dataspec import BpeTokenizer, DataSpec, LocalCorpus, WordsTokenizer
from blindspot.data import corpus
from blindspot.data.corpora.rows import lf
from blindspot.data.shards import dtype_of, write_ids
from blindspot.data.stream import pieces
from blindspot.data.tokenizer import START, load, train
from blindspot.data.tokens import Tokens, build
from blindspot.errors import BlindspotError
from test_tokenizer import ODD

BPE = BpeTokenizer(kind="bpe", vocab_size=280)
WORDS = WordsTokenizer(kind="words", vocab_size=40, min_frequency=1)
TEXTS = {
    "train": "\n\n".join(ODD) * 3,
    "validation": " The dog, the cat \u00fc\u00fc \u6771. \n",
    "test": "A mat.",
}


def make(folder, tokenizer=BPE, texts=TEXTS):
    """Fetch local texts and build their tokens in `folder`; returns the specification."""
    names = {}
    for split, text in texts.items():
        path = folder / f"{split}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        names[split] = str(path)
    spec = DataSpec(corpus=LocalCorpus(kind="local", **names), tokenizer=tokenizer)
    corpus.fetch(spec.corpus, folder / "corpus")
    build(spec, folder / "corpus", folder / "tokens")
    return spec


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    spec = make(folder)
    return folder, spec


@pytest.fixture
def copied(made, tmp_path):
    shutil.copytree(made[0] / "tokens", tmp_path / "tokens")
    return tmp_path / "tokens"


def test_streams_are_a_start_token_and_the_whole_text(made):
    folder, spec = made
    opened = Tokens.open(folder / "tokens", data=spec.identity())
    model = load(folder / "tokens" / "tokenizer.json")
    for split, text in TEXTS.items():
        ids = opened.split(split)
        text = lf(text)
        assert ids[0] == START and not (ids[1:] == START).any()
        assert model.decode(ids[1:].tolist()) == text
        assert ids[1:].tolist() == model.encode(text).ids
        counts = opened.counts(split)
        assert counts["tokens"] == counts["length"] - 1 == ids.size - 1
        assert counts["bytes"] == len(text.encode()) and counts["words"] == len(text.split())
        assert counts["text_sha256"] == hashlib.sha256(text.encode()).hexdigest()
        assert counts["unk"] == counts["lost_characters"] == 0
        with pytest.raises(ValueError, match="read-only"):
            ids[0] = 1
    assert opened.vocab_size == opened.meta["entries"] == 280


def test_words_streams_count_what_is_lost(tmp_path):
    make(tmp_path, WORDS)
    opened = Tokens.open(tmp_path / "tokens")
    # Three letters are lost; what is left of the text is encoded as the tokenizer does in one go.
    model = load(tmp_path / "tokens" / "tokenizer.json")
    assert opened.split("validation")[1:].tolist() == model.encode(TEXTS["validation"]).ids
    counts = opened.counts("validation")
    assert counts["lost_characters"] == 3
    assert counts["unk"] == (opened.split("validation")[1:] == START).sum() >= 1
    assert opened.meta["entries"] <= opened.vocab_size == 40


def test_what_is_lost_and_another_tokenizers_traces_are_said(tmp_path, capsys):
    """E-03, E-05: in the log, not only in a file."""
    make(tmp_path, WORDS, TEXTS | {"test": "A <unk> mat @-@ mat , 3 @.@ 1 ."})
    lines = capsys.readouterr().err.splitlines()
    counts = Tokens.open(tmp_path / "tokens").counts("validation")
    unk = f"UNK {counts['unk']} ({100 * counts['unk'] / counts['tokens']:.2f}%)"
    expected = f"{counts['tokens']} tokens, {counts['tokens'] / 6:.2f} a word"
    assert [line for line in lines if expected in line and unk in line] == [lines[-2]]
    assert lines[-2].endswith("characters lost 3")
    notes = [line for line in lines if "another tokenizer's traces" in line]
    # The train text has one in 90 words, which is more than one in a thousand.
    assert [note.partition(":")[0] for note in notes] == ["train", "test"]
    assert notes[1].endswith("1 <unk>, 2 of @-@ @,@ @.@")


def test_words_may_be_fit_on_validation_as_the_release_does(tmp_path):
    texts = {"train": "a a b b", "validation": "a c c", "test": "a"}
    for fit, unk in [("train", 2), ("train+validation", 0)]:
        spec = WordsTokenizer(kind="words", vocab_size=9, fit=fit)
        make(tmp_path / fit, spec, texts)
        assert Tokens.open(tmp_path / fit / "tokens").counts("validation")["unk"] == unk


def test_each_split_is_its_own_text(tmp_path):
    """E-07: toy splits that share no word; a swapped split would show."""
    texts = {"train": "aaa aaa", "validation": "bbb bbb", "test": "ccc ccc"}
    make(tmp_path, BpeTokenizer(kind="bpe", vocab_size=257), texts)
    opened, model = Tokens.open(tmp_path / "tokens"), load(tmp_path / "tokens" / "tokenizer.json")
    for split, text in texts.items():
        assert model.decode(opened.split(split)[1:].tolist()) == text


def test_building_twice_gives_the_same_bytes(made, tmp_path):
    folder, spec = made
    build(spec, folder / "corpus", tmp_path)
    for path in sorted((folder / "tokens").iterdir()):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_line_ends_and_byte_order_mark_do_not_change_ids(tmp_path):
    plain = {split: lf(text) for split, text in TEXTS.items()}
    ways = {
        "lf": plain,
        "crlf": {k: v.replace("\n", "\r\n") for k, v in plain.items()},
        "cr": {k: v.replace("\n", "\r") for k, v in plain.items()},
        "bom": {k: b"\xef\xbb\xbf" + v.encode() for k, v in plain.items()},
    }
    built = {}
    for way, texts in ways.items():
        make(tmp_path / way, BPE, texts)
        built[way] = {p.name: p.read_bytes() for p in (tmp_path / way / "tokens").glob("*.bin")}
    assert all(files == built["lf"] for files in built.values())


@pytest.fixture(scope="module", params=[BPE, WORDS], ids=["bpe", "words"])
def model(request):
    # Runs of white space become tokens of their own, so that one cut inside a run would show.
    return train(request.param, ODD + ["a. \n\n\n b\n\n \t\nc\n\n\n\nd  \n"] * 50)


# White space of every kind that any of the patterns may see in its own way.
near_whitespace = st.text(st.sampled_from("ab'\u00e9.7_ \n\r\t\x1c\x1f\u0085\u00a0\u2028\u3000s"))


@given(st.lists(near_whitespace | st.text()))
@example(["a.\x1c", "b"])
@example(["a.\x1c ", "\x1f", ".b \u00a0", "\u3000"])
@settings(max_examples=300)
def test_ids_do_not_depend_on_where_the_text_is_cut(model, documents):
    text = "\n\n".join(documents)
    cut = list(pieces(documents))
    assert "".join(cut) == text
    ids = [i for piece in cut for i in model.encode(piece, add_special_tokens=False).ids]
    assert ids == model.encode(text, add_special_tokens=False).ids
    # Merges that this vocabulary lacks could still tell the difference: compare what they act on.
    words = model.pre_tokenizer.pre_tokenize_str
    assert [w for piece in cut for w, _ in words(piece)] == [w for w, _ in words(text)]


@pytest.mark.parametrize("size", [20_000, 32_767, 32_769, 65_535, 65_536, 65_537, 2**32])
def test_the_highest_id_comes_back(tmp_path, size):
    """T-07: nothing wraps around, and an id equal to the vocabulary's size is refused."""
    written = np.array([0, size - 1, 1], dtype=np.int64)
    write_ids(tmp_path / "x.bin", written, size)
    dtype = dtype_of(size)
    assert dtype.itemsize == (2 if size <= 65_536 else 4)
    assert np.fromfile(tmp_path / "x.bin", dtype).tolist() == written.tolist()
    for wrong in ([size], [-1]):
        with pytest.raises(BlindspotError, match=f"outside the vocabulary of {size}"):
            write_ids(tmp_path / "y.bin", np.array(wrong), size)
    assert [p.name for p in tmp_path.iterdir()] == ["x.bin"]


def rewrite(folder, change):
    """Alter tokens.json by a function."""
    meta = json.loads((folder / "tokens.json").read_text())
    change(meta)
    (folder / "tokens.json").write_text(json.dumps(meta))


def flip(path, at=10):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


def too_high(folder):
    path = folder / "test-00000.bin"
    ids = np.fromfile(path, "<u2")
    ids[2] = 280
    ids.tofile(path)


FAULTS = {
    "no description": (lambda f: (f / "tokens.json").unlink(), r"tokens\.json: no such file"),
    "half description": (
        lambda f: (f / "tokens.json").write_text('{"data":'),
        r"tokens\.json: not readable",
    ),
    "empty description": (lambda f: (f / "tokens.json").write_text("{}"), r"json: damaged"),
    "missing file": (
        lambda f: (f / "validation-00000.bin").unlink(),
        r"validation-00000\.bin: no such file",
    ),
    "cut file": (
        lambda f: (f / "train-00000.bin").write_bytes((f / "train-00000.bin").read_bytes()[:-2]),
        r"train-00000\.bin: \d+ bytes long, \d+ expected",
    ),
    "altered file": (
        lambda f: flip(f / "train-00000.bin"),
        r"train-00000\.bin: its content was altered",
    ),
    "high id": (too_high, r"test-00000\.bin: id 280 is outside the vocabulary of 280"),
    "other dtype": (
        lambda f: rewrite(f, lambda m: m.update(dtype="uint32")),
        r"dtype is 'uint32', a vocabulary of 280 is stored as uint16",
    ),
    "other vocabulary": (
        lambda f: rewrite(f, lambda m: m.update(vocab_size=70_000, dtype="uint32")),
        r"train-00000\.bin: \d+ bytes long, \d+ expected .* uint32",
    ),
    "other tokenizer": (
        lambda f: (f / "tokenizer.json").write_text("{}"),
        r"tokenizer\.json: not the tokenizer the ids were made with",
    ),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), r"tokenizer\.json: no such file"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_does_not_fit_is_refused(copied, fault):
    Tokens.open(copied)
    spoil, message = FAULTS[fault]
    spoil(copied)
    with pytest.raises(BlindspotError, match=message):
        Tokens.open(copied)
    if fault in ("altered file", "high id", "other tokenizer"):
        Tokens.open(copied, verify=False)  # only reading everything can tell


def test_tokens_of_another_study_are_refused(copied, made):
    other = made[1].model_copy(update={"tokenizer": WORDS})
    with pytest.raises(BlindspotError, match=r"the run wants .*\"kind\":\"words\""):
        Tokens.open(copied, data=other.identity())
    with pytest.raises(BlindspotError, match="no split 'trian'; it has train, validation, test"):
        Tokens.open(copied).split("trian")


def test_a_corpus_of_another_study_or_an_altered_one_is_refused(made, tmp_path):
    folder, spec = made
    shutil.copytree(folder / "corpus", tmp_path / "corpus")
    pinned = spec.corpus.model_copy(update={"sha256": "0" * 64})
    with pytest.raises(BlindspotError, match=r"holds corpus .* the study names"):
        build(DataSpec(corpus=pinned, tokenizer=BPE), tmp_path / "corpus", tmp_path / "tokens")
    path = tmp_path / "corpus" / "test.jsonl"
    for text, message in [
        ('{"text": "B mat."}\n', r"test\.jsonl: its text was altered"),
        ('{"text": "A m', r"test\.jsonl: line 1 is not a document"),
    ]:
        path.write_text(text)
        with pytest.raises(BlindspotError, match=message):
            build(spec, tmp_path / "corpus", tmp_path / "tokens")
        assert not (tmp_path / "tokens" / "tokens.json").exists()
