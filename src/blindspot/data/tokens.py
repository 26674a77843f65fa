"""Token files: each split is one stream of ids, with a description beside it.

    folder/{train,validation,test}-00000.bin, ...   shards of ids, and more (see shards.py)
    folder/tokenizer.json                           of the `tokenizers` library
    folder/index.json                               the shards of each split, with digests
    folder/tokens.json                              written last: without it, not finished

A stream is one start token, then the ids of the split's text: its documents joined by two
newlines, encoded as if in one go. The start token is never a target, so a model that predicts ids
1 .. N - 1 scores every token of the text exactly once.
"""

import hashlib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from blindspot import provenance
from blindspot.config.dataspec import BpeTokenizer, DataSpec, FileTokenizer, WordsTokenizer
from blindspot.config.revisions import TOKENS_FORMAT
from blindspot.data import corpus, shards, stream
from blindspot.data.shards import Ids, dtype_of
from blindspot.errors import BlindspotError
from blindspot.files import atomic_path, read_json, sha256_file, write_json
from blindspot.settings import canonical, digest

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Model

    from blindspot.data.meter import Meter

_AGAIN = "delete {0} and build the tokens again"


def build(
    data: DataSpec,
    corpus_folder: Path,
    folder: Path,
    given: Path | None = None,
    threads: int | None = None,
) -> None:
    """Fit the tokenizer, encode every split, write `folder`; what is there is replaced.

    `given` is the fetched file of a tokenizer that comes from the hub. `threads` encode at a time;
    by default as many as there are CPUs for this process.

    Where an earlier call was interrupted, its finished shards are kept: the files are the same as
    those of an unbroken one. Memory is bounded by a shard, not by the corpus.

    Raises `BlindspotError` when the corpus folder holds another corpus than `data` names, is
    damaged, or does not suit the tokenizer; then `folder/tokens.json` does not exist.
    """
    from blindspot.data import tokenizer
    from blindspot.data.encode import Encoder
    from blindspot.data.meter import meter

    source = corpus.read(corpus_folder, data.corpus)
    settings = data.tokenizer
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokens.json").unlink(missing_ok=True)
    with meter() as shown:
        if not _resumes(folder, data, source):
            model = _model(data, given, corpus_folder, source, shown)
            with atomic_path(folder / "tokenizer.json") as temporary:
                model.save(str(temporary), pretty=False)
            _begin(folder, data, source)
        model = tokenizer.load(folder / "tokenizer.json")
        encoder = Encoder(model, settings)
        start, unk = tokenizer.start(model, settings), tokenizer.unknown(model)
        index: dict[str, list[dict[str, Any]]] = {}
        for split in corpus.SPLITS:
            shown.start(split, source["splits"][split]["bytes"])
            reader = stream.Reader(corpus_folder, split, source, shown)
            job = stream.SplitWriter(folder, split, settings.vocab_size, start, unk)
            index[split] = job.write(encoder, reader, threads or provenance.cores())
    splits: dict[str, Any] = {}
    for split in corpus.SPLITS:
        parts = index[split]
        described = dict(source["splits"][split])
        text_digest = described.pop("sha256")
        length = sum(part["length"] for part in parts)
        counts = {key: sum(part.pop(key) for part in parts) for key in ("unk", "lost_characters")}
        splits[split] = {"length": length, "tokens": length - 1, **counts, **described}
        paths = [shards.shard_path(folder, split, n) for n in range(len(parts))]
        splits[split] |= {"sha256": _together(paths), "text_sha256": text_digest}
    write_json(folder / "index.json", index)
    write_json(
        folder / "tokens.json",
        {
            "format": TOKENS_FORMAT,
            "data": data.identity(),
            "corpus": source["label"],
            "dtype": dtype_of(settings.vocab_size).name,
            "vocab_size": settings.vocab_size,
            "entries": model.get_vocab_size(),
            "tokenizer": settings.kind,
            "lossless": encoder.lossless,
            "start": start,
            "unk": unk,
            "tokenizer_sha256": sha256_file(folder / "tokenizer.json"),
            "index_sha256": sha256_file(folder / "index.json"),
            "splits": splits,
        },
    )
    for path in [folder / UNFINISHED, *folder.glob("*-?????.json")]:
        path.unlink(missing_ok=True)  # a second process may build the same
    for name, described in splits.items():
        print(_said(name, described), file=sys.stderr)


@dataclass(frozen=True)
class Tokens:
    """The token files of a folder, opened read-only.

    `meta` is `tokens.json`: format, data (the specification's identity), corpus, dtype, vocab_size,
    entries (of the tokenizer; fewer than vocab_size where `words` found fewer), tokenizer, lossless
    (whether any text comes back from its ids), start and unk (ids; unk may be null),
    tokenizer_sha256, index_sha256, and for each of `splits`:

    - length: ids in the stream, the start token included;
    - tokens: ids of the text, that is targets, length - 1;
    - unk, lost_characters: tokens that are UNK; characters that no token stands for;
    - bytes, words, documents, unk_words, joined_words (and rows): of the text, see `corpus.read`;
    - sha256 of the stream, text_sha256 of the text.
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

    @property
    def digest(self) -> str:
        """Hex SHA-256 of the tokenizer and of every split's ids, however they are sharded: what
        weights that were trained on these files are bound to."""
        ids = {name: split["sha256"] for name, split in self.meta["splits"].items()}
        return digest({"tokenizer": self.meta["tokenizer_sha256"], "ids": ids}, 64)

    def split(self, name: str) -> Ids:
        """The ids of a split, memory-mapped and read-only: shape (length,)."""
        self.counts(name)
        return shards.open_ids(self.folder, name, self._index[name], self.vocab_size)

    def spans(self, name: str) -> NDArray[np.uint32]:
        """Bytes and words of the text by token of a scored split: shape (length, 2).

        A row holds a token's UTF-8 bytes (and those lost beside it), and how many words begin in
        it; the start token's are 0. They sum to the split's `bytes` and `words`.
        """
        if name not in stream.SCORED:
            raise BlindspotError(
                f"{self.folder}: spans are kept of {', '.join(stream.SCORED)}, not of {name!r}"
            )
        return shards.open_spans(self.folder, name, self._index[name])

    def documents(self, name: str) -> NDArray[np.int64]:
        """Where documents begin: position in the stream of the token with their first byte."""
        self.counts(name)
        return shards.open_documents(self.folder, name, self._index[name])

    def counts(self, name: str) -> dict[str, Any]:
        """What `meta` says of a split."""
        if name not in self.meta["splits"]:
            raise BlindspotError(
                f"{self.folder}: no split {name!r}; it has {', '.join(self.meta['splits'])}"
            )
        return dict(self.meta["splits"][name])

    @cached_property
    def _index(self) -> dict[str, Any]:
        index: dict[str, Any] = read_json(self.folder / "index.json")
        return index

    def _check(self, verify: bool, data: Mapping[str, Any] | None) -> None:
        again = _AGAIN.format(self.folder)
        _ = self.meta["data"], self.meta["splits"]
        if self.meta.get("format") != TOKENS_FORMAT:
            raise BlindspotError(
                f"{self.folder}: token files of format {self.meta.get('format', 1)}, this version "
                f"reads {TOKENS_FORMAT}; {again}"
            )
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
        for name, meaning in (
            ("tokenizer", "the tokenizer the ids were made with"),
            ("index", "the index of these shards"),
        ):
            path = self.folder / f"{name}.json"
            if not path.is_file():
                raise BlindspotError(f"{path}: no such file; {again}")
            if (verify or name == "index") and sha256_file(path) != self.meta[f"{name}_sha256"]:
                raise BlindspotError(f"{path}: not {meaning}; {again}")
        for split in corpus.SPLITS:
            index = self._index[split]
            if sum(part["length"] for part in index) != self.meta["splits"][split]["length"]:
                raise ValueError(f"{split}: its shards do not add up")
            shards.check(self.folder, split, index, self.vocab_size, verify)


def require_same(tokens: Tokens, recorded: str | None, path: Path) -> str | None:
    """Refuse weights in `path` that were trained on token files of another digest.

    Returns what is to be said where none is recorded (weights from before it was): they count as
    trained on these.
    """
    if recorded is None:
        return (
            f"{path}: from before weights named their token files; taken to be of "
            f"{tokens.folder} ({tokens.digest})"
        )
    if recorded != tokens.digest:
        raise BlindspotError(
            f"{path}: was trained on token files of digest {recorded}, those in {tokens.folder} "
            f"have {tokens.digest} (tokenizer and ids); put the former back, or move the weights "
            f"away to train on the latter"
        )
    return None


# --- building --------------------------------------------------------------------------------

#: Of what corpus and settings the finished shards of an interrupted `build` are.
UNFINISHED = "unfinished.json"


def _model(
    data: DataSpec, given: Path | None, folder: Path, source: Mapping[str, Any], shown: "Meter"
) -> "Model":
    """The study's tokenizer, fit on this corpus or read."""
    from blindspot.data import tokenizer

    settings = data.tokenizer
    if isinstance(settings, BpeTokenizer | WordsTokenizer):
        both = isinstance(settings, WordsTokenizer) and settings.fit == "train+validation"
        fit_on = ["train", "validation"] if both else ["train"]
        shown.start("tokenizer", sum(source["splits"][split]["bytes"] for split in fit_on))
        readers = [stream.Reader(folder, split, source, shown) for split in fit_on]
        by_row = isinstance(settings, WordsTokenizer) and settings.vocabulary == "release"
        texts: list[Iterable[str]] = [r if by_row else stream.pieces(r) for r in readers]
        return tokenizer.train(settings, chain.from_iterable(texts))
    if isinstance(settings, FileTokenizer):
        path = Path(settings.path)
        if path.is_file() and sha256_file(path) != settings.sha256:
            raise BlindspotError(
                f"tokenizer.path: {path} is not the file of this study (SHA-256 differs from "
                f"{settings.sha256}); restore it, or start a new study with it"
            )
        return tokenizer.given(settings, path)
    if given is None:
        raise BlindspotError(
            f"tokenizer.kind {settings.kind}: fetch its file first, with `blindspot tokenizer`"
        )
    return tokenizer.given(settings, given)


def _plan(folder: Path, data: DataSpec, source: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "format": TOKENS_FORMAT,
        "data": data.identity(),
        "text": {split: source["splits"][split]["sha256"] for split in corpus.SPLITS},
        "tokenizer": sha256_file(folder / "tokenizer.json"),
        "batch": stream.BATCH,
        "shard": shards.SHARD,
    }


def _resumes(folder: Path, data: DataSpec, source: Mapping[str, Any]) -> bool:
    """Whether what is in the folder is the beginning of this very build; if not, it is removed."""
    path = folder / UNFINISHED
    if path.is_file() and (folder / "tokenizer.json").is_file():
        try:
            if canonical(read_json(path)) == canonical(_plan(folder, data, source)):
                return True
        except BlindspotError:
            pass
    path.unlink(missing_ok=True)
    for part in ("bin", "spans", "documents", "json"):
        for old in folder.glob(f"*-?????.{part}"):
            old.unlink()
    return False


def _begin(folder: Path, data: DataSpec, source: Mapping[str, Any]) -> None:
    write_json(folder / UNFINISHED, _plan(folder, data, source))


def _said(split: str, counts: Mapping[str, Any]) -> str:
    """What a split became, and what it lost, in a line for the log."""
    tokens = counts["tokens"]
    return (
        f"{split}: {tokens:,} tokens, {tokens / max(1, counts['words']):.2f} a word, "
        f"{counts['bytes'] / max(1, tokens):.2f} bytes each; UNK {counts['unk']:,} "
        f"({counts['unk'] / max(1, tokens):.2%}), characters lost {counts['lost_characters']:,}"
    )


def _together(paths: Iterable[Path]) -> str:
    """SHA-256 of files laid end to end."""
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as handle:
            while block := handle.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
