"""Two tokenizers, each one `tokenizer.json` of the `tokenizers` library.

`bpe`: byte-level BPE with GPT-2's pre-tokenization; any text comes back from its ids unchanged.
`words`: the paper's words; what its pattern does not match is lost, rare words become UNK.

Both keep id 0 for the token that starts a stream: `<|endoftext|>` or `<unk>`. Text that spells such
a name is ordinary text to both.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Model

from blindspot.errors import BlindspotError
from blindspot.spec import BpeTokenizer, Tokenizer, WordsTokenizer

END_OF_TEXT = "<|endoftext|>"
UNK = "<unk>"
#: Id of the start token of every stream, never a target.
START = 0

#: Oniguruma's classes differ from Python's: its \w has combining marks, Python's has all numerals.
_CLASSES = {
    r"\w": r"[\p{L}\p{N}_]",
    r"\W": r"[^\p{L}\p{N}_]",
    r"\s": r"[\s\x1c-\x1f]",
    r"\S": r"[^\s\x1c-\x1f]",
    r"\d": r"\p{Nd}",
    r"\D": r"\P{Nd}",
}


def train(tokenizer: Tokenizer, documents: Iterable[str]) -> Model:
    """Fit a tokenizer on documents, read once; equal documents give equal files.

    `bpe` has exactly `vocab_size` entries: 256 bytes, the start token, and merges; a text too small
    for that is refused. `words` has at most `vocab_size` entries: UNK, then words by falling
    count, equal counts by code point; a text with fewer words gives a smaller vocabulary.
    """
    if isinstance(tokenizer, BpeTokenizer):
        return _bpe(tokenizer, documents)
    return _words(tokenizer, documents)


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


def lost(tokenizer: Tokenizer, text: str) -> int:
    """How many characters of `text` no token stands for, not even UNK."""
    if isinstance(tokenizer, BpeTokenizer):
        return 0
    return len(re.sub(tokenizer.pattern, "", text))


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
    # The pattern's matches are the tokens; "removed" takes away what lies between them.
    split = pre_tokenizers.Split(pattern, behavior="removed", invert=True)
    counted = Model(models.WordLevel(unk_token=UNK))
    counted.pre_tokenizer = split
    counted.train_from_iterator(
        documents,
        trainers.WordLevelTrainer(
            vocab_size=tokenizer.vocab_size,
            min_frequency=tokenizer.min_frequency,
            show_progress=False,
        ),
    )
    # UNK is put in here and not as the trainer's special token: that would be found inside
    # WikiText's own "<unk>", which the pattern cuts into three.
    ids = counted.get_vocab()
    ranked = [word for word in sorted(ids, key=ids.__getitem__) if word != UNK]
    if not ranked:
        raise BlindspotError(
            f"tokenizer.min_frequency: no word of the text occurs {tokenizer.min_frequency} times; "
            f"use a lower one, or a larger corpus"
        )
    vocabulary = {word: i for i, word in enumerate([UNK, *ranked][: tokenizer.vocab_size])}
    model = Model(models.WordLevel(vocabulary, unk_token=UNK))
    model.pre_tokenizer = split
    model.decoder = decoders.Fuse()
    return model


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
