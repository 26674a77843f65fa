"""The only stage that uses the network: a corpus becomes three files of documents, one JSON a line.

    folder/{train,validation,test}.jsonl    {"text": ...}
    folder/corpus.json                      written last: a folder without it is not finished

The text of a split is its documents joined by two newlines; bytes, words and digests are those of
that joined text. What is done to the text, and nothing else is:

- line ends become LF (CRLF and lone CR), and a file's byte order mark is dropped; what is not UTF-8
  is refused, with its place;
- a blank document (nothing but white space) is dropped, the others are kept as they stand, with
  blanks and newlines at their ends;
- a row of a hub data set, of JSON lines or of parquet is a document, so the text is the rows
  joined by two newlines;
- a local text file is cut into documents only at empty lines, at least `BLOCK` characters apart, so
  the joined text is the file again;
- where validation or test is a share, each train document goes there or stays by a hash of its
  text: whatever their order, and equal documents stay together.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from blindspot.config.dataspec import Corpus, EnwikiSample, HubCorpus, LocalCorpus
from blindspot.config.digests import of_file
from blindspot.data.corpora import known, local
from blindspot.data.corpora.local import SEPARATOR
from blindspot.errors import BlindspotError
from blindspot.files import atomic_path, read_json, write_json
from blindspot.settings import canonical

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


def fetch(corpus: Corpus, folder: Path) -> None:
    """Write the corpus into `folder`; what is there is replaced.

    Raises `BlindspotError` when the source cannot be had or a split is missing or empty; then
    `folder/corpus.json` does not exist.
    """
    (folder / "corpus.json").unlink(missing_ok=True)
    rows: dict[str, int] = {}
    commit: str | None = None
    match corpus:
        case EnwikiSample():
            from blindspot.data.corpora import enwiki

            splits = _write(enwiki.tagged(), folder)
        case HubCorpus():
            from blindspot.data.corpora.hub import Hub

            hub = Hub(corpus)
            splits = _write(_shared(corpus, hub.read), folder)
            rows, commit = {} if corpus.shares else hub.rows, hub.commit
        case LocalCorpus():
            splits = _read_files(corpus, folder)
    for split, count in rows.items():
        splits[split]["rows"] = count
    _check(corpus, splits)
    write_json(
        folder / "corpus.json",
        {
            "label": corpus.label,
            "identity": corpus.identity(),
            "commit": commit,
            "splits": splits,
        },
    )
    for split, counts in splits.items():
        print(_said(split, counts), file=sys.stderr)


def read(folder: Path, corpus: Corpus | None = None) -> dict[str, Any]:
    """The content of `folder/corpus.json`: label, identity, commit, and counts of each split.

    `commit` is the hub's, whole, where the hub (or its cache) was asked by name; else null.

    `splits[name]` holds documents, bytes (UTF-8), words (separated by white space), sha256 of the
    text, `unk_words` and `joined_words` (see `Counter`), and for hub data sets rows, blank ones
    included. The literature's word count of WikiText, which counts line ends, is words + rows.

    Raises `BlindspotError` where it is missing or damaged, or of another corpus than `corpus`.
    """
    value: dict[str, Any] = read_json(folder / "corpus.json")
    if corpus is not None and canonical(value["identity"]) != canonical(corpus.identity()):
        raise BlindspotError(
            f"{folder}: holds corpus {value['identity']}, the study names {corpus.identity()}; "
            f"fetch the corpus again"
        )
    return value


def documents(folder: Path, split: str) -> Iterator[str]:
    """The documents of a split, in order, one in memory at a time."""
    path = folder / f"{split}.jsonl"
    try:
        with open(path, "rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    yield json.loads(line)["text"]
                except (ValueError, KeyError, TypeError) as error:
                    raise BlindspotError(
                        f"{path}: line {number} is not a document ({error}); delete {folder} and "
                        f"fetch the corpus again"
                    ) from None
    except FileNotFoundError:
        raise BlindspotError(f"{path}: no such file; fetch the corpus first") from None


class Counter:
    """Counts and digest of a text that arrives in documents."""

    def __init__(self) -> None:
        self.documents = self.bytes = self.words = 0
        #: Traces of another's tokenizer: WikiText's `<unk>`, and its `@-@`, `@,@`, `@.@`.
        self.unk_words = self.joined_words = 0
        self._digest = hashlib.sha256()

    def add(self, document: str) -> None:
        data = ((SEPARATOR if self.documents else "") + document).encode()
        words = document.split()
        self._digest.update(data)
        self.documents += 1
        self.bytes += len(data)
        self.words += len(words)
        self.unk_words += words.count("<unk>")
        self.joined_words += sum(words.count(mark) for mark in ("@-@", "@,@", "@.@"))

    def summary(self) -> dict[str, Any]:
        return {
            "documents": self.documents,
            "bytes": self.bytes,
            "words": self.words,
            "unk_words": self.unk_words,
            "joined_words": self.joined_words,
            "sha256": self._digest.hexdigest(),
        }


def _read_files(corpus: LocalCorpus, folder: Path) -> dict[str, dict[str, Any]]:
    """Write the documents of a user's files; what `read` says of each split.

    The digest that names the corpus must be that of the bytes that became documents: a text that
    was changed in between, even if it is put back now, is refused.
    """
    total = hashlib.sha256()
    folder.mkdir(parents=True, exist_ok=True)

    def files(split: Split) -> Iterator[str]:
        if hidden := corpus.hidden(split):
            print(f"{split}: left out, because hidden: {', '.join(hidden)}", file=sys.stderr)
        for name in corpus.files(split):
            seen = hashlib.sha256()
            yield from local.read(Path(name), corpus.column, seen, folder)
            total.update(of_file(split, seen.hexdigest()))

    splits = _write(_shared(corpus, files), folder)
    if corpus.sha256 not in (None, total.hexdigest()):
        for split in SPLITS:
            (folder / f"{split}.jsonl").unlink(missing_ok=True)
        raise BlindspotError(
            f"corpus: what was read has digest {total.hexdigest()}, what the study names has "
            f"{corpus.sha256}: files were changed, added or taken away since it was planned. Start "
            f"again, and leave them alone while they are read"
        )
    return splits


def _shared(
    corpus: HubCorpus | LocalCorpus, read: Callable[[Split], Iterator[str]]
) -> Iterator[tuple[str, str]]:
    """(split, document) of all splits that are read, and of those that are shares of train."""
    for split in SPLITS:
        if split not in corpus.shares:
            for text in read(split):
                yield (_share(text, corpus.shares) if split == "train" else split), text


def _share(text: str, shares: dict[str, float]) -> str:
    """The split of a train document, a function of its text alone."""
    if not shares:
        return "train"
    place = int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 2**32
    for split, share in shares.items():
        if place < share:
            return split
        place -= share
    return "train"


def _write(tagged: Iterable[tuple[str, str]], folder: Path) -> dict[str, dict[str, Any]]:
    """Write documents, but for blank ones, to the file of their split; what `read` says of each."""
    counters: dict[str, Counter] = {split: Counter() for split in SPLITS}
    with ExitStack() as stack:
        files = {
            split: stack.enter_context(
                open(
                    stack.enter_context(atomic_path(folder / f"{split}.jsonl")),
                    "w",
                    encoding="utf-8",
                    newline="\n",
                )
            )
            for split in counters
        }
        for split, text in tagged:
            if text and not text.isspace():
                counters[split].add(text)
                files[split].write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    return {split: counter.summary() for split, counter in counters.items()}


#: Words in a thousand that are another tokenizer's traces, from which on they are mentioned.
TRACES = 1


def _said(split: str, counts: dict[str, Any]) -> str:
    """What a split holds, in a line for the log, and whether another's tokenizer was there."""
    line = f"{split}: {counts['documents']:,} documents, {counts['words']:,} words"
    line += f", {counts['bytes']:,} bytes"
    if 1000 * (counts["unk_words"] + counts["joined_words"]) > TRACES * counts["words"]:
        line += (
            f"; with another tokenizer's traces: {counts['unk_words']:,} <unk>, "
            f"{counts['joined_words']:,} of @-@ @,@ @.@"
        )
    return line


def _check(corpus: Corpus, splits: dict[str, dict[str, Any]]) -> None:
    for split, counts in splits.items():
        if not counts["documents"]:
            shares = {} if isinstance(corpus, EnwikiSample) else corpus.shares
            if split in shares:
                raise BlindspotError(
                    f"corpus.{split}: {shares[split]} of the train documents are none, of "
                    f"{splits['train']['documents']}; use a larger share, or name files or a split "
                    f"(a text file is cut into documents at empty lines, {local.BLOCK} characters "
                    f"apart or more)"
                )
            raise BlindspotError(
                f"corpus {corpus.label!r}: split {split!r} is empty (no text but white space); "
                f"check what corpus names for it"
            )
    for one, other in combinations(splits, 2):
        if splits[one]["sha256"] == splits[other]["sha256"]:
            raise BlindspotError(
                f"corpus {corpus.label!r}: splits {one!r} and {other!r} are the same text, so a "
                f"result on {other!r} would mean nothing; give each split its own text"
            )
    if isinstance(corpus, HubCorpus):
        known.check(corpus, splits)
