"""Data sets of the Hugging Face hub, or local folders of the same layout, through `datasets`."""

import errno
import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from blindspot.config.dataspec import HubCorpus, Limit
from blindspot.data.corpora.rows import lf, text_of
from blindspot.errors import BlindspotError

WAYS_OUT = (
    "Three ways out: run this step once on a machine with network (its cache, HF_HOME, can be "
    "shared or copied); set corpus.path to a local copy of the data set's folder; or use another "
    "corpus, `kind: enwiki-sample` or `kind: local` (text files of your own)"
)
#: What files raise that were cut.
DAMAGE = ("ArrowInvalid", "JSONDecodeError")
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
        if corpus.path is not None and not Path(corpus.path).is_dir():
            raise BlindspotError(f"corpus.path: {corpus.path}: no such folder. {WAYS_OUT}")
        with _explained(corpus):
            #: The commit that the rows are of, whole; None of a folder, which has none.
            self.commit, self._dataset = _load(corpus)
            self._check()

    def read(self, split: str) -> Iterator[str]:
        """The rows of a split with LF line ends; a row may be blank."""
        name = getattr(self.corpus, split)
        texts = self._texts(split, name)
        limit = self.corpus.limit
        return _limited(texts, limit) if limit is not None and split == "train" else texts

    def _texts(self, split: str, name: str) -> Iterator[str]:
        column = self.corpus.column
        self.rows[split] = 0
        batches = iter(self._dataset[name].select_columns(column).iter(batch_size=BATCH))
        while True:
            with _explained(self.corpus):  # streamed rows are fetched here
                batch = next(batches, None)
            if batch is None:
                break
            for row in batch[column]:
                self.rows[split] += 1
                yield lf(text_of(row, f"corpus.column: {column!r} of split {name!r}"))
        told = (self._dataset[name].info.splits or {}).get(name)
        count = told.num_examples if told and self.corpus.limit is None else None
        if count and count != self.rows[split]:
            raise BlindspotError(
                f"{self.corpus.path or self.corpus.name}: split {name!r} gave {self.rows[split]} "
                f"rows where its description says {count}: cut, or damaged in the "
                f"cache; fetch it again. {WAYS_OUT}"
            )

    def _check(self) -> None:
        """Refuse splits and a column that the data set does not have."""
        corpus, dataset = self.corpus, self._dataset
        for split in ("train", "validation", "test"):
            name = getattr(corpus, split)
            if isinstance(name, float):
                continue
            if name not in dataset:
                raise BlindspotError(
                    f"{corpus.path or corpus.name}: config {corpus.config!r} has no split "
                    f"{name!r}, only {', '.join(dataset)}; name one of these as corpus.{split}, or "
                    f"take a share of the train documents (corpus.{split}: 0.01). {WAYS_OUT}"
                )
            columns = dataset[name].column_names or list(next(iter(dataset[name]), {}))
            if corpus.column not in columns:
                raise BlindspotError(
                    f"corpus.column: {corpus.column!r} is not a column of split {name!r}; it has "
                    f"{', '.join(columns)}"
                )


def _load(corpus: HubCorpus) -> tuple[str | None, Any]:
    """(commit, all splits): what `datasets.load_dataset` does, with a look at the commit between.

    Whatever goes wrong on the way to the hub, `datasets` takes the newest commit of that name in
    its cache, whichever was asked for, and a folder of that name in the current one comes first.
    """
    import datasets

    if corpus.path is not None:
        builder = datasets.load_dataset_builder(corpus.path, corpus.config)
    else:
        builder = datasets.load_dataset_builder(
            corpus.name, corpus.config, revision=corpus.revision
        )
        _check_commit(corpus, str(builder.hash))
    if corpus.limit is not None:
        dataset = builder.as_streaming_dataset()
    else:
        builder.download_and_prepare()
        dataset = builder.as_dataset()
    return None if corpus.path is not None else str(builder.hash), dataset


def _check_commit(corpus: HubCorpus, found: str) -> None:
    # Exactly a commit: a folder that a kill left half made ends in `.incomplete`.
    if re.fullmatch(r"[0-9a-f]{40}", found) and found.startswith(corpus.revision):
        return
    if Path(corpus.name).is_dir():
        raise BlindspotError(
            f"corpus.name {corpus.name}: the current folder has a folder of that name, which "
            f"`datasets` takes for the data set; set corpus.path to it if it is meant, or run "
            f"elsewhere"
        )
    from huggingface_hub import constants

    kept = Path(constants.HF_HUB_CACHE) / f"datasets--{corpus.name.replace('/', '--')}"
    kept = kept / "snapshots" / corpus.revision
    raise BlindspotError(
        f"corpus.name {corpus.name}: the hub could not be reached (or has no such revision), and "
        f"the cache has revision {found} where corpus.revision {corpus.revision} was asked for"
        + (f"; its files are in {kept}: set corpus.path to that" if kept.is_dir() else "")
        + f". {WAYS_OUT}"
    )


@contextmanager
def _explained(corpus: HubCorpus) -> Iterator[None]:
    """One message for whatever goes wrong in `datasets`, which raises some twenty types."""
    try:
        yield
    except BlindspotError:
        raise
    except Exception as error:
        where = f"corpus.path {corpus.path}" if corpus.path else f"corpus.name {corpus.name}"
        # Some say in their second line which configs there are; some show whole pages.
        reason = textwrap.shorten(str(error), 300)
        raise BlindspotError(
            f"{where}, config {corpus.config}: could not be loaded "
            f"({type(error).__name__}: {reason}). {_remedy(error)}"
        ) from error


def _remedy(error: Exception) -> str:
    """What to do about an error: of the cache on the disk, or the ways out."""
    from datasets import config

    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, OSError) and chain.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return (
                "The cache must be writable, since data sets are locked and unpacked there: set "
                "HF_DATASETS_CACHE to a folder of your own (and HF_HOME to a copy of the cache, if "
                "files are to be downloaded); offline, set corpus.path to the folder "
                "snapshots/<revision> of the cache"
            )
        if isinstance(chain, OSError) and chain.errno in (errno.ENOSPC, errno.EDQUOT):
            return "The disk of the cache is full: set HF_HOME to a folder with room"
        if str(config.HF_DATASETS_CACHE) in str(chain) or type(chain).__name__ in DAMAGE:
            return (
                f"The cache seems to be damaged, perhaps by a kill: delete this data set's folder "
                f"in {config.HF_DATASETS_CACHE} and run this step again. {WAYS_OUT}"
            )
        chain = chain.__cause__ or chain.__context__
    return WAYS_OUT


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
