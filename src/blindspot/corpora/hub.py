"""Data sets of the Hugging Face hub, or local folders of the same layout, through `datasets`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blindspot.corpora.rows import lf, text_of
from blindspot.errors import BlindspotError
from blindspot.spec import HubCorpus, Limit

WAYS_OUT = (
    "Three ways out: run this step once on a machine with network (its cache, HF_HOME, can be "
    "shared or copied); set corpus.path to a local copy of the data set's folder; or use another "
    "corpus, `kind: enwiki-sample` or `kind: local` (text files of your own)"
)
#: Rows that are read at a time.
BATCH = 1000
#: Bytes of UTF-8 that a token is reckoned to have where a limit is in tokens.
BYTES_A_TOKEN = 4


class Hub:
    """A data set, loaded; with a limit it is streamed, so that no more is fetched than is read."""

    def __init__(self, corpus: HubCorpus) -> None:
        self.corpus = corpus
        #: Rows by split that were read, blank ones included.
        self.rows: dict[str, int] = {}
        self._dataset = _load(corpus)

    def read(self, split: str) -> Iterator[str]:
        """The rows of a split with LF line ends; a row may be blank."""
        name = getattr(self.corpus, split)
        texts = self._texts(split, name)
        limit = self.corpus.limit
        return _limited(texts, limit) if limit is not None and split == "train" else texts

    def _texts(self, split: str, name: str) -> Iterator[str]:
        column = self.corpus.column
        self.rows[split] = 0
        for batch in self._dataset[name].select_columns(column).iter(batch_size=BATCH):
            for row in batch[column]:
                self.rows[split] += 1
                yield lf(text_of(row, f"corpus.column: {column!r} of split {name!r}"))


def _load(corpus: HubCorpus) -> Any:
    """`datasets.load_dataset`, all splits, with one message for whatever goes wrong."""
    import datasets

    if corpus.path is not None and not Path(corpus.path).is_dir():
        raise BlindspotError(f"corpus.path: {corpus.path}: no such folder. {WAYS_OUT}")
    named: dict[str, Any] = {} if corpus.path is not None else {"revision": corpus.revision}
    if corpus.limit is not None:
        named["streaming"] = True
    try:
        dataset = datasets.load_dataset(corpus.path or corpus.name, corpus.config, **named)
    except Exception as error:  # the libraries below raise some twenty unrelated types
        where = f"corpus.path {corpus.path}" if corpus.path else f"corpus.name {corpus.name}"
        reason = (str(error).splitlines() or [""])[0]
        raise BlindspotError(
            f"{where}, config {corpus.config}: could not be loaded "
            f"({type(error).__name__}: {reason}). {WAYS_OUT}"
        ) from error
    for split in ("train", "validation", "test"):
        name = getattr(corpus, split)
        if isinstance(name, float):
            continue
        if name not in dataset:
            raise BlindspotError(
                f"{corpus.path or corpus.name}: config {corpus.config!r} has no split {name!r}, "
                f"only {', '.join(dataset)}; name one of these as corpus.{split}, or take a share "
                f"of the train documents (corpus.{split}: 0.01). {WAYS_OUT}"
            )
        columns = dataset[name].column_names or list(next(iter(dataset[name]), {}))
        if corpus.column not in columns:
            raise BlindspotError(
                f"corpus.column: {corpus.column!r} is not a column of split {name!r}; it has "
                f"{', '.join(columns)}"
            )
    return dataset


def _limited(texts: Iterator[str], limit: Limit) -> Iterator[str]:
    """Texts, in order, as long as they stay within the limit."""
    most = limit.documents or limit.words or (limit.tokens or 0) * BYTES_A_TOKEN
    total = 0
    for text in texts:
        if text and not text.isspace():
            if limit.documents is not None:
                total += 1
            elif limit.words is not None:
                total += len(text.split())
            else:
                total += len(text.encode())
        if total > most:
            return
        yield text
        if limit.documents is not None and total == most:
            return
