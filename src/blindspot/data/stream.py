"""A split on its way from documents to shards: read, cut into pieces, encoded in batches, written.

Batches are encoded by several threads and written in order, a few at a time; what the files hold is
a function of the text and the tokenizer, not of threads or of interruptions.
"""

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blindspot.data import corpus, shards
from blindspot.errors import BlindspotError

if TYPE_CHECKING:
    from blindspot.data.encode import Encoded, Encoder
    from blindspot.data.meter import Meter

#: Characters that are encoded at a time: bounds memory, and amortizes what a batch costs.
BATCH = 1 << 21
#: Splits whose tokens are scored, so their share of the text is kept by token.
SCORED = ("validation", "test")
#: What Python calls white space and the tokenizers' patterns may not.
_SEPARATORS = ("\x1c", "\x1d", "\x1e", "\x1f")


def pieces(documents: Iterable[str]) -> Iterator[str]:
    """Cut the text (documents joined by two newlines) where tokens never span.

    The pieces, put together, are the text. A piece begins with the white space between two
    documents, all of it: to `bpe`, `words` and `gpt2` a boundary before white space is no choice
    but given, so the ids of the pieces are those of the text, wherever it was cut into documents.
    """
    held = ""
    for number, document in enumerate(documents):
        text = held + (corpus.SEPARATOR if number else "") + document
        body = text.rstrip()
        held = text[len(body) :]
        if not body or held.startswith(_SEPARATORS):
            held = text  # no boundary that every pattern sees
        else:
            yield body
    if held:
        yield held


class Reader:
    """The documents of a split, where each begins, and an error if they are not those fetched."""

    def __init__(self, folder: Path, split: str, source: Mapping[str, Any], shown: "Meter") -> None:
        self._folder, self._split, self._shown = folder, split, shown
        self._expected = source["splits"][split]["sha256"]
        #: Bytes of the text before each document that was read, until someone takes them.
        self.begins: deque[int] = deque()

    def __iter__(self) -> Iterator[str]:
        digest, done = hashlib.sha256(), 0
        separator = b""
        for document in corpus.documents(self._folder, self._split):
            data = document.encode()
            digest.update(separator + data)
            self.begins.append(done + len(separator))
            done += len(separator) + len(data)
            self._shown.add(len(separator) + len(data))
            separator = corpus.SEPARATOR.encode()
            yield document
        if digest.hexdigest() != self._expected:
            raise BlindspotError(
                f"{self._folder / f'{self._split}.jsonl'}: its text was altered (SHA-256 differs "
                f"from corpus.json); fetch the corpus again"
            )


class Batch(NamedTuple):
    pieces: list[str]
    bytes: int


def _batches(texts: Iterable[str]) -> Iterator[Batch]:
    """Batches of texts of about `BATCH` characters."""
    held: list[str] = []
    size = 0
    for text in texts:
        held.append(text)
        size += len(text)
        if size >= BATCH:
            yield Batch(held, sum(len(t.encode()) for t in held))
            held, size = [], 0
    if held:
        yield Batch(held, sum(len(t.encode()) for t in held))


class SplitWriter:
    """One split on its way into shards."""

    def __init__(
        self, folder: Path, split: str, vocab_size: int, start: int, unk: int | None
    ) -> None:
        self.folder, self.split, self.vocab_size = folder, split, vocab_size
        self.start, self.unk = start, unk
        self.index: list[dict[str, Any]] = []
        self._clear()

    def write(self, encoder: "Encoder", reader: Reader, threads: int) -> list[dict[str, Any]]:
        """Write the shards that are not there yet; the records of all."""
        done = 0
        batches = _batches(pieces(reader))
        while record := shards.finished(self.folder, self.split, len(self.index)):
            for batch in [next(batches) for _ in range(record.pop("batches"))]:
                done += batch.bytes
            while reader.begins and reader.begins[0] < done:
                reader.begins.popleft()
            self.index.append(record)
        if not self.index:
            self._start()
        for batch, encoded in _in_turn(encoder, batches, threads):
            self._add(batch, encoded, reader.begins, done)
            done += batch.bytes
            if self.length >= shards.SHARD:
                self._flush()
        if self.length or not self.index:
            self._flush()
        return self.index

    def _clear(self) -> None:
        self.length = 0
        self.ids: list[NDArray[np.uint32]] = []
        self.spans: list[NDArray[np.uint32]] = []
        self.documents: list[NDArray[np.int64]] = []
        self.counts = {"unk": 0, "lost_characters": 0, "batches": 0}

    def _start(self) -> None:
        self.ids.append(np.array([self.start], dtype=np.uint32))
        self.spans.append(np.zeros((1, 2), dtype=np.uint32))
        self.length = 1

    def _add(self, batch: Batch, encoded: "Encoded", begins: deque[int], done: int) -> None:
        here = []
        while begins and begins[0] < done + batch.bytes:
            here.append(begins.popleft() - done)
        ends = np.cumsum(encoded.bytes, dtype=np.int64)
        self.documents.append(self.length + np.searchsorted(ends, here, side="right"))
        self.ids.append(encoded.ids)
        if self.split in SCORED:
            self.spans.append(np.stack([encoded.bytes, encoded.words], axis=1))
        if self.unk is not None:
            self.counts["unk"] += int(np.count_nonzero(encoded.ids == self.unk))
        self.counts["lost_characters"] += encoded.lost
        self.counts["batches"] += 1
        self.length += len(encoded.ids)

    def _flush(self) -> None:
        arrays: dict[str, NDArray[Any]] = {"bin": np.concatenate(self.ids)}
        arrays["documents"] = np.concatenate([np.empty(0, dtype=np.int64), *self.documents])
        if self.split in SCORED:
            arrays["spans"] = np.concatenate(self.spans)
        record = shards.write_shard(
            self.folder, self.split, len(self.index), self.vocab_size, arrays, self.counts
        )
        record.pop("batches")
        self.index.append(record)
        self._clear()


def _in_turn(
    encoder: "Encoder", batches: Iterator[Batch], threads: int
) -> Iterator[tuple[Batch, "Encoded"]]:
    """Encode batches on several threads, a few ahead of the reader; the order is theirs."""
    ahead: deque[tuple[Batch, Future[Encoded]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for batch in batches:
            ahead.append((batch, pool.submit(encoder, batch.pieces)))
            if len(ahead) > threads:
                first, future = ahead.popleft()
                yield first, future.result()
        while ahead:
            first, future = ahead.popleft()
            yield first, future.result()
