"""Token files: each split is one flat, memory-mapped stream of ids, with a description beside it.

    folder/{train,validation,test}.bin   ids, little-endian uint16 or uint32, no header
    folder/tokenizer.json                of the `tokenizers` library
    folder/tokens.json                   written last: a folder without it is not finished

A stream is one start token, then the ids of the split's text: its documents joined by two
newlines, encoded as if in one go. The start token is never a target, so a model that predicts ids
1 .. N - 1 scores every token of the text exactly once.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from blindspot import corpus
from blindspot.errors import BlindspotError
from blindspot.files import atomic_path, read_json, sha256_file, write_json
from blindspot.spec import DataSpec, Tokenizer, WordsTokenizer, canonical

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Model

Ids = NDArray[np.unsignedinteger]

#: Characters that are encoded at a time: bounds memory, and is enough to keep two cores busy.
BATCH = 1 << 20
#: Ids that are checked at a time.
CHUNK = 1 << 22
#: What Python calls white space and the tokenizers' patterns may not.
_SEPARATORS = ("\x1c", "\x1d", "\x1e", "\x1f")
_AGAIN = "delete {0} and build the tokens again"


def dtype_of(vocab_size: int) -> np.dtype[np.unsignedinteger]:
    """The smaller of little-endian uint16 and uint32 that holds ids 0 .. vocab_size - 1."""
    if not 1 <= vocab_size <= 2**32:
        raise BlindspotError(f"tokenizer.vocab_size: {vocab_size} is outside 1 to 2**32")
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


def pieces(documents: Iterable[str]) -> Iterator[str]:
    """Cut the text (documents joined by two newlines) where tokens never span.

    The pieces, put together, are the text. A piece begins with the white space between two
    documents, all of it: to both tokenizers a boundary before white space is no choice but given,
    so the ids of the pieces are those of the text, wherever it was cut into documents.
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


def build(data: DataSpec, corpus_folder: Path, folder: Path) -> None:
    """Train the tokenizer, encode every split, write `folder`; what is there is replaced.

    Raises `BlindspotError` when the corpus folder holds another corpus than `data` names, is
    damaged, or does not suit the tokenizer; then `folder/tokens.json` does not exist.
    """
    from blindspot import tokenizer

    source = corpus.read(corpus_folder)
    if canonical(source["identity"]) != canonical(data.corpus.identity()):
        raise BlindspotError(
            f"{corpus_folder}: holds corpus {source['identity']}, the study names "
            f"{data.corpus.identity()}; fetch the corpus again"
        )
    (folder / "tokens.json").unlink(missing_ok=True)
    settings = data.tokenizer
    both = isinstance(settings, WordsTokenizer) and settings.fit == "train+validation"
    fit_on = ["train", "validation"] if both else ["train"]
    model = tokenizer.train(
        settings,
        chain.from_iterable(pieces(_checked(corpus_folder, split, source)) for split in fit_on),
    )
    splits: dict[str, Any] = {}
    for split in corpus.SPLITS:
        counts = {"tokens": 0, "unk": 0, "lost_characters": 0}
        text = pieces(_checked(corpus_folder, split, source))
        length, digest = write_ids(
            folder / f"{split}.bin", _encode(model, settings, text, counts), settings.vocab_size
        )
        described = dict(source["splits"][split])
        text_digest = described.pop("sha256")
        splits[split] = {"length": length, **counts, **described}
        splits[split] |= {"sha256": digest, "text_sha256": text_digest}
    with atomic_path(folder / "tokenizer.json") as temporary:
        model.save(str(temporary), pretty=False)
    write_json(
        folder / "tokens.json",
        {
            "data": data.identity(),
            "corpus": source["label"],
            "dtype": dtype_of(settings.vocab_size).name,
            "vocab_size": settings.vocab_size,
            "entries": model.get_vocab_size(),
            "tokenizer": settings.kind,
            "tokenizer_sha256": sha256_file(folder / "tokenizer.json"),
            "splits": splits,
        },
    )


def write_ids(path: Path, chunks: Iterable[Ids], vocab_size: int) -> tuple[int, str]:
    """Write a stream of ids atomically; return how many, and the file's SHA-256.

    Raises `BlindspotError` on an id outside the vocabulary: it would wrap around unseen.
    """
    dtype = dtype_of(vocab_size)
    digest = hashlib.sha256()
    length = 0
    with atomic_path(path) as temporary, open(temporary, "wb") as to:
        for ids in chunks:
            if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= vocab_size):
                raise BlindspotError(
                    f"{path}: id {int(ids.max())} is outside the vocabulary of {vocab_size} "
                    f"(ids 0 to {vocab_size - 1})"
                )
            data = ids.astype(dtype).tobytes()
            digest.update(data)
            to.write(data)
            length += ids.size
    return length, digest.hexdigest()


@dataclass(frozen=True)
class Tokens:
    """The token files of a folder, opened read-only.

    `meta` is `tokens.json`: data (the specification's identity), corpus, dtype, vocab_size,
    entries (of the tokenizer; fewer than vocab_size where `words` found fewer), tokenizer,
    tokenizer_sha256, and for each of `splits`:

    - length: ids in the file, the start token included;
    - tokens: ids of the text, that is targets, length - 1;
    - unk, lost_characters: tokens that are UNK; characters that no token stands for;
    - bytes, words, documents, unk_words, joined_words (and rows): of the text, see `corpus.read`;
    - sha256 of the file, text_sha256 of the text.
    """

    folder: Path
    meta: Mapping[str, Any]

    @classmethod
    def open(cls, folder: Path, verify: bool = True, data: Mapping[str, Any] | None = None) -> Self:
        """Open a folder that `build` made; `data` is the `DataSpec.identity()` it must be of.

        Raises `BlindspotError` naming file and reason when anything is missing, was altered or
        does not fit. `verify=False` skips what needs reading all ids (digests, range).
        """
        description = folder / "tokens.json"
        if not description.is_file():
            raise BlindspotError(f"{description}: no such file; build the tokens first")
        tokens = cls(folder, read_json(description))
        try:
            tokens._check(verify, data)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BlindspotError(
                f"{description}: damaged ({error!r}); {_AGAIN.format(folder)}"
            ) from None
        return tokens

    @property
    def vocab_size(self) -> int:
        """Every id is below it; a model's vocabulary."""
        return int(self.meta["vocab_size"])

    def split(self, name: str) -> Ids:
        """The ids of a split, memory-mapped and read-only: shape (length,)."""
        length = self.counts(name)["length"]
        path = self.folder / f"{name}.bin"
        return np.memmap(path, dtype=dtype_of(self.vocab_size), mode="r", shape=(length,))

    def counts(self, name: str) -> dict[str, Any]:
        """What `meta` says of a split."""
        if name not in self.meta["splits"]:
            raise BlindspotError(
                f"{self.folder}: no split {name!r}; it has {', '.join(self.meta['splits'])}"
            )
        return dict(self.meta["splits"][name])

    def _check(self, verify: bool, data: Mapping[str, Any] | None) -> None:
        again = _AGAIN.format(self.folder)
        if data is not None and canonical(self.meta["data"]) != canonical(data):
            raise BlindspotError(
                f"{self.folder}: holds tokens of {canonical(self.meta['data'])}, the run wants "
                f"{canonical(data)}; build the tokens of this study"
            )
        dtype = dtype_of(self.vocab_size)
        if self.meta["dtype"] != dtype.name:
            raise BlindspotError(
                f"{self.folder / 'tokens.json'}: dtype is {self.meta['dtype']!r}, a vocabulary of "
                f"{self.vocab_size} is stored as {dtype.name}; {again}"
            )
        vocabulary = self.folder / "tokenizer.json"
        files = [vocabulary, *(self.folder / f"{s}.bin" for s in corpus.SPLITS)]
        for path in files:
            if not path.is_file():
                raise BlindspotError(f"{path}: no such file; {again}")
        if verify and sha256_file(vocabulary) != self.meta["tokenizer_sha256"]:
            raise BlindspotError(f"{vocabulary}: not the tokenizer the ids were made with; {again}")
        for split, path in zip(corpus.SPLITS, files[1:], strict=True):
            counts = self.meta["splits"][split]
            expected, found = counts["length"] * dtype.itemsize, path.stat().st_size
            if found != expected:
                raise BlindspotError(
                    f"{path}: {found} bytes long, {expected} expected ({counts['length']} ids of "
                    f"{dtype.name}): cut, or of another type; {again}"
                )
            if not verify:
                continue
            ids = self.split(split)
            for start in range(0, ids.size, CHUNK):
                highest = int(ids[start : start + CHUNK].max())
                if highest >= self.vocab_size:
                    raise BlindspotError(
                        f"{path}: id {highest} is outside the vocabulary of {self.vocab_size}; "
                        f"{again}"
                    )
            if sha256_file(path) != counts["sha256"]:
                raise BlindspotError(f"{path}: its content was altered (SHA-256 differs); {again}")


def _encode(
    model: "Model", settings: Tokenizer, texts: Iterable[str], counts: dict[str, int]
) -> Iterator[Ids]:
    """The ids of a stream, start token first; adds to `counts` as it goes."""
    from blindspot import tokenizer

    yield np.array([tokenizer.START], dtype=np.uint32)
    for batch in _batches(texts):
        encoded = model.encode_batch_fast(batch, add_special_tokens=False)
        ids = np.fromiter(chain.from_iterable(e.ids for e in encoded), dtype=np.uint32)
        counts["tokens"] += ids.size
        if isinstance(settings, WordsTokenizer):
            counts["unk"] += int(np.count_nonzero(ids == tokenizer.START))
            counts["lost_characters"] += sum(tokenizer.lost(settings, text) for text in batch)
        yield ids


def _checked(folder: Path, split: str, source: Mapping[str, Any]) -> Iterator[str]:
    """The documents of a split; at their end, an error if they are not those that were fetched."""
    counter = corpus.Counter()
    for document in corpus.documents(folder, split):
        counter.add(document)
        yield document
    if counter.summary()["sha256"] != source["splits"][split]["sha256"]:
        raise BlindspotError(
            f"{folder / f'{split}.jsonl'}: its text was altered (SHA-256 differs from corpus.json);"
            f" fetch the corpus again"
        )


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Lists of texts of about `BATCH` characters."""
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
