"""Text to token ids, fast and in bounded memory, with each token's share of the text.

A batch is cut into units (units.py), only units never met before are tokenized, and the rest is a
gather. That is exact where a boundary before white space is no choice but given: under GPT-2's
pre-tokenization and the paper's pattern. Any other tokenizer is given its pieces of text whole.
"""

import json
import re
import threading
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blindspot.config.dataspec import DEFAULT_PATTERN, Tokenizer, WordsTokenizer
from blindspot.data.tokenizer import START
from blindspot.data.units import units

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Model

Counts = NDArray[np.uint32]
Positions = NDArray[np.int64]

#: What the paper's pattern does not match.
_LOST = re.compile(r"(?![A-Za-z0-9_])\w")
#: Distinct units that are remembered; then memory starts over.
REMEMBERED = 1 << 20

#: Code points that `str.split` splits at; no other is white space.
_WHITE = np.array([chr(i).isspace() for i in range(0x3001)])


class Encoded(NamedTuple):
    """Tokens of a text, and its parts by token.

    `bytes` is a token's UTF-8 length and that of what was lost beside it; `words` is how many words
    (what `str.split` gives) begin in it. Over a whole stream they sum to the text's.
    """

    ids: Counts
    bytes: Counts
    words: Counts
    #: Characters that no token stands for.
    lost: int


class _Units(NamedTuple):
    """Tokens of several texts, laid end to end; `counts` and `lost` are by text."""

    ids: Counts
    bytes: Counts
    words: Counts
    counts: Positions
    lost: Positions


def byte_level(model: "Model") -> bool:
    """Whether this is byte-level BPE with GPT-2's pre-tokenization, so that any text comes back."""
    state = json.loads(model.to_str())
    before = state["pre_tokenizer"] or {}
    return (
        state["model"]["type"] == "BPE"
        and state["normalizer"] is None
        and not state["truncation"]
        and before.get("type") == "ByteLevel"
        and before.get("use_regex", True)
        and not before["add_prefix_space"]
        # An added token that is not special is found in any text, also across white space.
        and all(token["special"] for token in state["added_tokens"])
    )


class Encoder:
    """A tokenizer that remembers the units it has met; threads may share it."""

    def __init__(self, model: "Model", tokenizer: Tokenizer) -> None:
        self._model = model
        self._pattern: re.Pattern[str] | None = None
        self._widths: Counts | None = None
        if isinstance(tokenizer, WordsTokenizer):
            self._pattern = re.compile(tokenizer.pattern)
            self._vocabulary = model.get_vocab()
            self.cuts = tokenizer.pattern == DEFAULT_PATTERN
            self.lossless = False
        else:
            self.cuts = self.lossless = byte_level(model)
            if self.lossless:
                self._widths = widths(model)
        self._lock = threading.Lock()
        self._forget()

    def __call__(self, pieces: Sequence[str]) -> Encoded:
        """Encode a run of pieces of one text (see `tokens.pieces`), as if in one go."""
        if not self.cuts:
            found = self._tokenize(pieces)
            return _whole(found, pieces, bool((found.counts == 0).any()))
        text = "".join(pieces).encode()
        numbers, distinct = units(text)
        with self._lock:
            rows, pool = self._recall(distinct)
        taken = rows[numbers]
        counts = pool.counts[taken]
        # Positions in the pool: a run of `counts` from where each unit's tokens start. In 32 bits,
        # and each array once: here the time goes.
        shift = (np.cumsum(pool.counts) - pool.counts)[taken] - (np.cumsum(counts) - counts)
        where = np.repeat(shift.astype(np.int32), counts)
        where += np.arange(len(where), dtype=np.int32)
        found = _Units(
            pool.ids.take(where),
            pool.bytes.take(where),
            pool.words.take(where),
            counts,
            pool.lost[taken],
        )
        return _whole(found, pieces, bool((counts == 0).any()))

    def _forget(self) -> None:
        self._known: dict[bytes, int] = {}
        none = np.empty(0, dtype=np.uint32)
        empty = np.empty(0, dtype=np.int64)
        self._pool = _Units(none, none, none, empty, empty)

    def _recall(self, distinct: list[bytes]) -> tuple[Positions, _Units]:
        """Rows of these units in the memory, and the memory; new units are tokenized first."""
        if len(self._known) > REMEMBERED:
            self._forget()
        new = [unit for unit in distinct if unit not in self._known]
        if new:
            found = self._tokenize([unit.decode() for unit in new])
            old = self._pool
            self._pool = _Units(
                np.concatenate([old.ids, found.ids]),
                np.concatenate([old.bytes, found.bytes]),
                np.concatenate([old.words, found.words]),
                np.concatenate([old.counts, found.counts]),
                np.concatenate([old.lost, found.lost]),
            )
            size = len(self._known)
            self._known.update(zip(new, range(size, size + len(new)), strict=True))
        rows = np.fromiter((self._known[unit] for unit in distinct), np.int64, len(distinct))
        return rows, self._pool

    def _tokenize(self, texts: Sequence[str]) -> _Units:
        """The tokens of each text by itself."""
        joined = np.frombuffer("".join(texts).encode("utf-32-le"), dtype="<u4")
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        first = np.cumsum(lengths) - lengths
        # UTF-8 bytes before each character, and before the end.
        at = np.zeros(len(joined) + 1, dtype=np.int64)
        np.cumsum(1 + (joined >= 0x80) + (joined >= 0x800) + (joined >= 0x10000), out=at[1:])
        text_ends = at[first + lengths]
        if self._widths is not None:
            encoded = self._model.encode_batch_fast(list(texts), add_special_tokens=False)
            counts = np.fromiter(map(len, encoded), np.int64, len(texts))
            ids = np.fromiter(chain.from_iterable(e.ids for e in encoded), np.uint32)
            ends = np.cumsum(self._widths[ids], dtype=np.int64)
            lost = np.zeros(len(texts), dtype=np.int64)
        else:
            ids, spans, counts = self._spans(texts)
            starts, stops = (spans + np.repeat(first, counts)[:, None]).T
            stops = np.maximum.accumulate(stops) if len(stops) else stops
            covered = np.maximum(0, stops - np.maximum(starts, np.append(0, stops[:-1])))
            of = np.repeat(np.arange(len(texts)), counts)
            seen = np.bincount(of, weights=covered, minlength=len(texts)).astype(np.int64)
            lost = lengths - seen
            ends = at[stops]
        # What is lost goes to the token behind it, or to the last one of its text.
        last = np.cumsum(counts)[counts > 0] - 1
        ends[last] = text_ends[counts > 0]
        white = _WHITE[np.minimum(joined, len(_WHITE) - 1)] & (joined < len(_WHITE))
        begins = ~white & np.append(True, white[:-1])[: len(white)]
        begins[first[lengths > 0]] = ~white[first[lengths > 0]]
        starts = np.append(0, ends[:-1])[: len(ends)]
        starts[(np.cumsum(counts) - counts)[counts > 0]] = at[first[counts > 0]]
        begun = at[:-1][begins]
        owner = np.searchsorted(ends, begun, side="right")
        owned = owner < len(ids)
        owned[owned] &= starts[owner[owned]] <= begun[owned]
        words = np.bincount(owner[owned], minlength=len(ids))
        sizes = ends - starts
        return _Units(ids, sizes.astype(np.uint32), words.astype(np.uint32), counts, lost)

    def _spans(self, texts: Sequence[str]) -> tuple[Counts, Positions, Positions]:
        """Ids, (start, stop) in characters of their text, and the number of tokens by text."""
        if self._pattern is None:
            encoded = self._model.encode_batch(list(texts), add_special_tokens=False)
            counts = np.fromiter(map(len, encoded), np.int64, len(texts))
            ids = np.fromiter(chain.from_iterable(e.ids for e in encoded), np.uint32)
            offsets = [offset for e in encoded for offset in e.offsets]
            return ids, np.array(offsets, dtype=np.int64).reshape(-1, 2), counts
        if self.cuts:  # then the units' tokens are those of the units laid end to end
            text = "".join(texts)
            words = self._pattern.findall(text)
            sizes = np.fromiter(map(len, words), np.int64, len(words))
            stops = np.cumsum(sizes)
            if len(words) and stops[-1] < len(text):  # something is lost: characters shift
                gone = [match.start() for match in _LOST.finditer(text)]
                stops = np.delete(np.arange(len(text)), gone)[stops - 1] + 1
            ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
            counts = np.diff(np.searchsorted(stops, ends, side="right"), prepend=0)
            inside = np.stack([stops - sizes, stops], axis=1)
            inside -= np.repeat(np.append(0, ends[:-1])[: len(ends)], counts)[:, None]
        else:
            found = [list(self._pattern.finditer(text)) for text in texts]
            words = [match[0] for matches in found for match in matches]
            counts = np.fromiter(map(len, found), np.int64, len(texts))
            inside = np.array([m.span() for ms in found for m in ms], np.int64).reshape(-1, 2)
        ids = np.fromiter((self._vocabulary.get(w, START) for w in words), np.uint32, len(words))
        return ids, inside, counts


def widths(model: "Model") -> Counts:
    """Bytes of each id of a byte-level vocabulary: in its alphabet, one character is one byte."""
    vocabulary = model.get_vocab(with_added_tokens=False)
    size = np.zeros(max(vocabulary.values()) + 1, dtype=np.uint32)
    for token, at in vocabulary.items():
        size[at] = len(token)
    return size


def _whole(found: _Units, pieces: Sequence[str], gaps: bool) -> Encoded:
    """A text's tokens. What stands in pieces without any token goes to the first token."""
    if gaps and len(found.ids):
        text = "".join(pieces)
        found.bytes[0] += len(text.encode()) - int(found.bytes.sum(dtype=np.int64))
        found.words[0] += len(text.split()) - int(found.words.sum(dtype=np.int64))
    return Encoded(found.ids, found.bytes, found.words, int(found.lost.sum()))
