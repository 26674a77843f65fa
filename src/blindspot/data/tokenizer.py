"""Tokenizers, each one `tokenizer.json` of the `tokenizers` library.

`bpe`: byte-level BPE with GPT-2's pre-tokenization; any text comes back from its ids unchanged.
`words`: the paper's words; what its pattern does not match is lost, rare words become UNK.
`gpt2`, `hub`, `file`: given, made by others.

The first two are fit here and keep id 0 for the token that starts a stream: `<|endoftext|>` or
`<unk>`. Text that spells a special token's name is ordinary text to all of them.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Model

from blindspot.config.dataspec import (
    DEFAULT_PATTERN,
    BpeTokenizer,
    GivenTokenizer,
    Gpt2Tokenizer,
    HubTokenizer,
    Tokenizer,
    WordsTokenizer,
)
from blindspot.data.units import units
from blindspot.errors import BlindspotError
from blindspot.files import write_text

END_OF_TEXT = "<|endoftext|>"
UNK = "<unk>"
#: Id of the start token of every stream, never a target.
START = 0

#: Distinct units whose counts are held before their words are counted.
HELD = 1 << 20
#: Characters that are cut at a time.
BATCH = 1 << 21

#: Oniguruma's classes differ from Python's: its \w has combining marks, Python's has all numerals.
_CLASSES = {
    r"\w": r"[\p{L}\p{N}_]",
    r"\W": r"[^\p{L}\p{N}_]",
    r"\s": r"[\s\x1c-\x1f]",
    r"\S": r"[^\s\x1c-\x1f]",
    r"\d": r"\p{Nd}",
    r"\D": r"\P{Nd}",
}


def train(tokenizer: BpeTokenizer | WordsTokenizer, documents: Iterable[str]) -> Model:
    """Fit a tokenizer on documents, read once; equal documents give equal files.

    `bpe` has exactly `vocab_size` entries: 256 bytes, the start token, and merges; a text too small
    for that is refused. `words` has at most `vocab_size` entries: UNK, then words by falling
    count, equal counts by code point; a text with fewer words gives a smaller vocabulary. With the
    release's vocabulary it has three fewer: ids at the end that stand for nothing, like the
    release's other special tokens; and words are those of each document alone.
    """
    if isinstance(tokenizer, BpeTokenizer):
        return _bpe(tokenizer, documents)
    return _words(tokenizer, documents)


def given(tokenizer: GivenTokenizer, path: Path) -> Model:
    """Read a tokenizer that someone else made; refuse what would not fit the study.

    Truncation and padding, which such files may ask for, are switched off: a stream has neither.
    """
    model = load(path)
    model.no_truncation()
    model.no_padding()
    highest = max(model.get_vocab().values())
    if highest >= tokenizer.vocab_size:
        raise BlindspotError(
            f"tokenizer.vocab_size: {tokenizer.vocab_size}, but {path} has ids up to {highest}; "
            f"use {highest + 1}"
        )
    start(model, tokenizer)
    return model


def fetch(tokenizer: HubTokenizer | Gpt2Tokenizer, path: Path) -> None:
    """Copy a tokenizer from the hub (or its cache) to `path`. Uses the network."""
    from huggingface_hub import hf_hub_download

    try:
        found = hf_hub_download(tokenizer.name, "tokenizer.json", revision=tokenizer.revision)
    except Exception as error:  # the libraries below raise many unrelated types
        reason = (str(error).splitlines() or [""])[0]
        raise BlindspotError(
            f"tokenizer.name {tokenizer.name}, revision {tokenizer.revision}: tokenizer.json could "
            f"not be had ({type(error).__name__}: {reason}). Three ways out: run this step once on "
            f"a machine with network (its cache, HF_HOME, can be shared or copied); use a copy of "
            f"the file, `tokenizer: {{kind: file, path: ..., vocab_size: "
            f"{tokenizer.vocab_size}}}`; or fit one here, `kind: bpe`"
        ) from None
    load(Path(found))
    write_text(path, Path(found).read_text(encoding="utf-8"))


def start(model: Model, tokenizer: Tokenizer) -> int:
    """Id of the token that starts a stream, never a target."""
    if isinstance(tokenizer, BpeTokenizer | WordsTokenizer):
        return START
    special = [str(t.content) for t in model.get_added_tokens_decoder().values() if t.special]
    name = tokenizer.start or (special[0] if len(special) == 1 else None)
    found = None if name is None else model.token_to_id(name)
    if found is None:
        raise BlindspotError(
            f"tokenizer.start: {tokenizer.start!r} is no token that could start a stream; the "
            f"tokenizer's special tokens are {', '.join(special) or 'none'}"
        )
    return found


def unknown(model: Model) -> int | None:
    """Id of the token that stands for what the vocabulary lacks; None where nothing does."""
    state = json.loads(model.to_str())["model"]
    if state.get("unk_id") is not None:  # Unigram
        return int(state["unk_id"])
    name = state.get("unk_token")
    return None if name is None else model.token_to_id(name)


def load(path: Path) -> Model:
    """Read a `tokenizer.json`. Raises `BlindspotError` when it is missing or damaged."""
    try:
        model = Model.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise BlindspotError(
            f"{path}: not readable as a tokenizer ({error}); build the tokens again"
        ) from None
    # The file does not keep this setting.
    model.encode_special_tokens = True
    return model


def _bpe(tokenizer: BpeTokenizer, documents: Iterable[str]) -> Model:
    model = Model(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    model.decoder = decoders.ByteLevel()
    model.train_from_iterator(
        documents,
        trainers.BpeTrainer(
            vocab_size=tokenizer.vocab_size,
            special_tokens=[END_OF_TEXT],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    size = model.get_vocab_size()
    if size != tokenizer.vocab_size:
        raise BlindspotError(
            f"tokenizer.vocab_size: {tokenizer.vocab_size} is more than the train text gives: "
            f"it has {size} distinct tokens; use at most {size}, or a larger corpus"
        )
    model.encode_special_tokens = True
    return model


def _words(tokenizer: WordsTokenizer, documents: Iterable[str]) -> Model:
    pattern = _checked(tokenizer.pattern)
    counts = _count(tokenizer.pattern, documents, apart=tokenizer.vocabulary == "release")
    counts.pop(UNK, None)  # where the pattern makes it a word, it is UNK and no entry of its own
    ranked = sorted((-n, word) for word, n in counts.items() if n >= tokenizer.min_frequency)
    if not ranked:
        raise BlindspotError(
            f"tokenizer.min_frequency: no word of the text occurs {tokenizer.min_frequency} times; "
            f"use a lower one, or a larger corpus"
        )
    kept = [UNK, *(word for _, word in ranked[: tokenizer.words])]
    model = Model(models.WordLevel({word: i for i, word in enumerate(kept)}, unk_token=UNK))
    # The pattern's matches are the tokens; "removed" takes away what lies between them.
    model.pre_tokenizer = pre_tokenizers.Split(pattern, behavior="removed", invert=True)
    model.decoder = decoders.Fuse()
    return model


def _count(pattern: str, documents: Iterable[str], apart: bool) -> Counter[str]:
    """How often each match of the pattern occurs; `apart`: no match reaches across documents, which
    otherwise only the caller's way of cutting the text sees to."""
    find = re.compile(pattern).findall
    counts: Counter[str] = Counter()
    if pattern != DEFAULT_PATTERN:
        for document in documents:
            counts.update(find(document))
        return counts
    # Text repeats itself: count its units, then look for words in the distinct ones alone.
    held: Counter[bytes] = Counter()

    def settle() -> None:
        for unit, n in held.items():
            for word in find(unit.decode()):
                counts[word] += n
        held.clear()

    for text in _parted(documents) if apart else _joined(documents):
        numbers, distinct = units(text.encode())
        times = np.bincount(numbers, minlength=len(distinct)).tolist()
        for unit, n in zip(distinct, times, strict=True):
            held[unit] += n
        if len(held) > HELD:
            settle()
    settle()
    return counts


def _parted(texts: Iterable[str]) -> Iterator[str]:
    """Texts put together to about `BATCH` characters, with something between them that is neither
    a word nor white space: the default pattern does not match it, nor anything across it."""
    held: list[str] = []
    size = 0
    for text in texts:
        held.append(text)
        size += len(text)
        if size >= BATCH:
            yield "ü".join(held)
            held, size = [], 0
    yield "ü".join(held)


def _joined(texts: Iterable[str]) -> Iterator[str]:
    """Texts put together to about `BATCH` characters, where no unit reaches across."""
    held: list[str] = []
    size = 0
    for text in texts:
        apart = held and (held[-1][-1:].isspace() or not text.startswith(tuple(" \t\n\r\x0b\x0c")))
        if apart or size >= BATCH:
            yield "".join(held)
            held, size = [], 0
        if text:
            held.append(text)
            size += len(text)
    yield "".join(held)


def _checked(pattern: str) -> Regex:
    """A Python pattern as the tokenizers library's; refused where it cannot cut a text."""
    try:
        if re.compile(pattern).match(""):
            raise BlindspotError(f"tokenizer.pattern: {pattern!r} matches the empty text")
        return Regex(re.sub(r"\\.", lambda m: _CLASSES.get(m[0], m[0]), pattern))
    except BlindspotError:
        raise
    except Exception as error:  # re.error, or the library's bare Exception
        raise BlindspotError(f"tokenizer.pattern: {pattern!r}: {error}") from None
