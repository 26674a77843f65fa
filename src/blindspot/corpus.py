"""The only stage that uses the network: a corpus becomes three files of documents, one JSON a line.

    folder/{train,validation,test}.jsonl    {"text": ...}
    folder/corpus.json                      written last: a folder without it is not finished

The text of a split is its documents joined by two newlines; bytes, words and digests are those of
that joined text. What is done to the text, and nothing else is:

- line ends become LF (CRLF and lone CR), and a file's byte order mark is dropped;
- a blank document (nothing but white space) is dropped, the others are kept as they stand, with
  blanks and newlines at their ends;
- a row of a hub data set is a document, so the text is the rows joined by two newlines;
- a local text file is cut into documents only at empty lines, at least `BLOCK` characters apart, so
  the joined text is the file again.
"""

import bz2
import hashlib
import io
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from blindspot import wiki
from blindspot.errors import BlindspotError
from blindspot.files import atomic_path, read_json, write_json
from blindspot.spec import Corpus, EnwikiSample, HubCorpus, LocalCorpus

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
#: Between two documents of a split's text.
SEPARATOR = "\n\n"
#: Characters that a document cut from a local text file has at least.
BLOCK = 1 << 16

GENSIM = "gensim==4.4.0"
#: One wheel for every machine: the excerpt is the same in all of them, and none is installed.
WHEEL = ["--implementation", "cp", "--python-version", "3.11", "--abi", "cp311"]
WHEEL += ["--platform", "manylinux_2_28_x86_64"]
EXCERPT = (
    "gensim/test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
)
EXCERPT_SHA256 = "a53f4648dec40467ebdcbc7a1307eddb51fe6e28e9309f6ebde81ba0d04bea2d"
#: Below the first, an article's hash puts it into validation; below the second, into test. Chosen
#: so that each gets about 40 kB of whole articles: scoring all of a split at every depth, once a
#: run, is a good part of the demo's time.
VALIDATION_SHARE, TEST_SHARE = 0.03, 0.0572

WAYS_OUT = (
    "Three ways out: run this step once on a machine with network (its cache, HF_HOME, can be "
    "shared or copied); set corpus.path to a local copy of the data set's folder; or use another "
    "corpus, `kind: enwiki-sample` or `kind: local` (text files of your own)"
)


def fetch(corpus: Corpus, folder: Path) -> None:
    """Write the corpus into `folder`; what is there is replaced.

    Raises `BlindspotError` when the source cannot be had or a split is missing or empty; then
    `folder/corpus.json` does not exist.
    """
    (folder / "corpus.json").unlink(missing_ok=True)
    match corpus:
        case EnwikiSample():
            splits = _write_tagged(_enwiki_documents(_excerpt()), folder)
        case HubCorpus():
            dataset = _load(corpus)
            splits = {
                split: _write(_rows(corpus, dataset, split), folder / f"{split}.jsonl")
                | {"rows": dataset[split].num_rows}
                for split in SPLITS
            }
        case LocalCorpus():
            splits = {
                split: _write(
                    (document for name in corpus.files(split) for document in blocks(Path(name))),
                    folder / f"{split}.jsonl",
                )
                for split in SPLITS
            }
    _check(corpus, splits)
    write_json(
        folder / "corpus.json",
        {"label": corpus.label, "identity": corpus.identity(), "splits": splits},
    )


def read(folder: Path) -> dict[str, Any]:
    """The content of `folder/corpus.json`: label, identity, and counts of each split.

    `splits[name]` holds documents, bytes (UTF-8), words (separated by white space), sha256 of the
    text, `unk_words` and `joined_words` (see `Counter`), and for hub data sets rows, blank ones
    included. The literature's word count of WikiText, which counts line ends, is words + rows.
    """
    value: dict[str, Any] = read_json(folder / "corpus.json")
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


def _write(texts: Iterable[str], path: Path) -> dict[str, Any]:
    """Write the documents that are not blank; return what `read` says of a split."""
    counter = Counter()
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as to:
        for text in texts:
            if not text or text.isspace():
                continue
            counter.add(text)
            to.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    return counter.summary()


def _write_tagged(tagged: Iterable[tuple[str, str]], folder: Path) -> dict[str, dict[str, Any]]:
    """`_write` for few documents that come mixed: (split, text)."""
    members: dict[str, list[str]] = {split: [] for split in SPLITS}
    for split, text in tagged:
        members[split].append(text)
    return {split: _write(texts, folder / f"{split}.jsonl") for split, texts in members.items()}


def _check(corpus: Corpus, splits: dict[str, dict[str, Any]]) -> None:
    for split, counts in splits.items():
        if not counts["documents"]:
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


# --- enwiki-sample ---------------------------------------------------------------------------


def _excerpt() -> bytes:
    """Fetch the Wikipedia excerpt (bzip2) out of the gensim wheel, through pip and its settings."""
    way_out = (
        "check the network and pip's settings (index, proxy: `pip config list`), or use text files "
        "of your own: corpus: {kind: local, train: ..., validation: ..., test: ...}"
    )
    with tempfile.TemporaryDirectory() as temporary:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--only-binary=:all:", *WHEEL]
        done = subprocess.run(
            [*command, "--dest", temporary, GENSIM], capture_output=True, text=True, check=False
        )
        wheels = list(Path(temporary).glob("*.whl"))
        if done.returncode or len(wheels) != 1:
            said = [line for line in done.stderr.splitlines() if line.strip()]
            raise BlindspotError(
                f"corpus.kind enwiki-sample: pip could not download {GENSIM} "
                f"({said[-1].strip() if said else f'exit code {done.returncode}'}); {way_out}"
            )
        try:
            with zipfile.ZipFile(wheels[0]) as wheel:
                data = wheel.read(EXCERPT)
        except (zipfile.BadZipFile, KeyError) as error:
            raise BlindspotError(
                f"corpus.kind enwiki-sample: {wheels[0].name} does not hold the excerpt ({error}); "
                f"{way_out}"
            ) from None
    found = hashlib.sha256(data).hexdigest()
    if found != EXCERPT_SHA256:
        raise BlindspotError(
            f"corpus.kind enwiki-sample: the excerpt in {GENSIM} has SHA-256 {found}, expected "
            f"{EXCERPT_SHA256}: this is another file than the one results rest on; {way_out}"
        )
    return data


def _enwiki_documents(excerpt: bytes) -> Iterator[tuple[str, str]]:
    """(split, article) of every article in a bzip2 MediaWiki export that is prose."""
    with bz2.open(io.BytesIO(excerpt)) as dump:
        for title, markup in wiki.articles(dump):
            text = wiki.prose(title, markup)
            if text:
                yield split_of(title), text


def split_of(title: str) -> str:
    """The split an article belongs to, a function of its title alone."""
    share = int(hashlib.sha256(f"wiki{title}".encode()).hexdigest()[:8], 16) / 2**32
    return "validation" if share < VALIDATION_SHARE else "test" if share < TEST_SHARE else "train"


# --- hub -------------------------------------------------------------------------------------


def _load(corpus: HubCorpus) -> Any:
    """`datasets.load_dataset`, all splits, with one message for whatever goes wrong."""
    import datasets

    if corpus.path is not None and not Path(corpus.path).is_dir():
        raise BlindspotError(f"corpus.path: {corpus.path}: no such folder. {WAYS_OUT}")
    try:
        if corpus.path is not None:
            dataset = datasets.load_dataset(corpus.path, corpus.config)
        else:
            dataset = datasets.load_dataset(corpus.name, corpus.config, revision=corpus.revision)
    except Exception as error:  # the libraries below raise some twenty unrelated types
        where = f"corpus.path {corpus.path}" if corpus.path else f"corpus.name {corpus.name}"
        reason = (str(error).splitlines() or [""])[0]
        raise BlindspotError(
            f"{where}, config {corpus.config}: could not be loaded "
            f"({type(error).__name__}: {reason}). {WAYS_OUT}"
        ) from error
    for split in SPLITS:
        if split not in dataset:
            raise BlindspotError(
                f"{corpus.path or corpus.name}: config {corpus.config!r} has no split {split!r}, "
                f"only {', '.join(dataset)}; all of {', '.join(SPLITS)} are needed. {WAYS_OUT}"
            )
        if corpus.column not in dataset[split].column_names:
            raise BlindspotError(
                f"corpus.column: {corpus.column!r} is not a column of split {split!r}; it has "
                f"{', '.join(dataset[split].column_names)}"
            )
    return dataset


def _rows(corpus: HubCorpus, dataset: Any, split: str) -> Iterator[str]:
    """The rows of a split with LF line ends; a row may be blank."""
    column = dataset[split].select_columns(corpus.column)
    for batch in column.iter(batch_size=1000):
        for row in batch[corpus.column]:
            if not isinstance(row, str | None):
                raise BlindspotError(
                    f"corpus.column: {corpus.column!r} of split {split!r} holds "
                    f"{type(row).__name__}, not text"
                )
            yield lf(row or "")


# --- local -----------------------------------------------------------------------------------


def lf(text: str) -> str:
    """Text with its line ends, CRLF and lone CR, as LF; other line marks (U+2028) are no ends."""
    return re.sub(r"\r\n?", "\n", text)


def blocks(path: Path) -> Iterator[str]:
    """Cut a UTF-8 text file at empty lines into documents of `BLOCK` characters or more.

    Joined by `SEPARATOR` they are the file's text. Memory is bounded by the longest stretch
    without an empty line. Raises `BlindspotError` with file and byte offset on invalid UTF-8.
    """
    rest = ""
    held: str | None = None  # the last block waits: blank text at the file's end belongs to it
    for text in _decoded(path):
        seen = len(rest)
        rest += text
        while (cut := rest.find(SEPARATOR, max(BLOCK, seen - 1))) >= 0:
            if held is not None:
                yield held
            held, rest, seen = rest[:cut], rest[cut + len(SEPARATOR) :], 0
    if held is not None and (not rest or rest.isspace()):
        rest, held = held + SEPARATOR + rest, None
    if held is not None:
        yield held
    yield rest


def _decoded(path: Path, size: int = 1 << 20) -> Iterator[str]:
    """A file's text in pieces, without byte order mark, line ends as LF."""
    decoder = getincrementaldecoder("utf-8")()
    newlines = io.IncrementalNewlineDecoder(None, translate=True)
    offset = 0
    started = ended = False
    try:
        handle = open(path, "rb")  # noqa: SIM115
    except OSError as error:
        raise BlindspotError(f"corpus: {path}: cannot be read ({error.strerror})") from None
    with handle:
        while not ended:
            block = handle.read(size)
            ended = not block
            kept = len(decoder.getstate()[0])
            try:
                text = decoder.decode(block, final=ended)
            except UnicodeDecodeError as error:
                raise BlindspotError(
                    f"corpus: {path}: not UTF-8 at byte {offset - kept + error.start} "
                    f"({error.reason}); convert the file, for example with "
                    f"`iconv -f latin1 -t utf-8`"
                ) from None
            offset += len(block)
            if text and not started:
                text, started = text.removeprefix("\ufeff"), True
            yield newlines.decode(text, final=ended)
