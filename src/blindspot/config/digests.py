"""Digests of a user's own files, remembered, because every job of a study asks for them."""

import contextlib
import hashlib
import json
import time
from pathlib import Path
from typing import Literal

from blindspot.config.dataspec import FileTokenizer, LocalCorpus
from blindspot.errors import BlindspotError
from blindspot.files import sha256_file, write_text

#: A file changed so shortly before it was read could change again within one tick of its clock.
SETTLED_NS = 2_000_000_000


class Digests:
    """SHA-256 of files by (path, size, mtime, ctime), kept as JSON in `store`.

    A store that is damaged or can't be written costs time, never truth.
    """

    def __init__(self, store: Path) -> None:
        self.store = store
        self.known: dict[str, list[int | str]] = {}
        with contextlib.suppress(OSError, ValueError):
            read = json.loads(store.read_text(encoding="utf-8"))
            self.known = read if isinstance(read, dict) else {}

    def sha256(self, path: Path) -> str:
        """Hex SHA-256 of the file's content as it is now."""
        key, now = str(path.resolve()), time.time_ns()
        stat = path.stat()
        mark: list[int | str] = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
        entry = self.known.get(key)
        if isinstance(entry, list) and entry[:3] == mark and len(entry) == 4:
            return str(entry[3])
        found = sha256_file(path)
        after = path.stat()
        settled = max(stat.st_mtime_ns, stat.st_ctime_ns) + SETTLED_NS < now
        if settled and mark == [after.st_size, after.st_mtime_ns, after.st_ctime_ns]:
            self.known[key] = [*mark, found]
            with contextlib.suppress(OSError):
                write_text(self.store, json.dumps(self.known, indent=1) + "\n")
        return found


def of_file(split: str, sha256: str) -> bytes:
    """What a file adds to a corpus's digest: its split and its content, not its name."""
    return f"{split} {sha256}\n".encode()


def identified(corpus: LocalCorpus, digests: Digests) -> LocalCorpus:
    """Fill in the digest of the files, or check it against the pinned one. A pinned corpus of which
    no file is there, as in an archive of results, is what its pin says; nothing can be trained."""
    splits: tuple[Literal["train", "validation", "test"], ...] = ("train", "validation", "test")
    if corpus.sha256 and not any(Path(f).exists() for split in splits for f in corpus.files(split)):
        return corpus
    total = hashlib.sha256()
    owners: dict[Path, str] = {}
    for split in splits:
        for name in corpus.files(split):
            path = Path(name)
            if not path.is_file():
                raise BlindspotError(f"corpus.{split}: {name}: no such file")
            if (owner := owners.setdefault(path.resolve(), split)) != split:
                raise BlindspotError(
                    f"corpus.{split}: {name} is a file of corpus.{owner} too, so its scores would "
                    f"mean nothing; take it out of one of them"
                )
            total.update(of_file(split, digests.sha256(path)))
    found = total.hexdigest()
    if corpus.sha256 not in (None, found):
        raise BlindspotError(
            f"corpus.sha256: the files' digest is {found}, the config pins {corpus.sha256}; "
            f"restore the files, or pin the new digest to start a new study"
        )
    return corpus.model_copy(update={"sha256": found})


def pinned(tokenizer: FileTokenizer, digests: Digests) -> FileTokenizer:
    """Fill in the digest of a tokenizer's file, or check it against the pinned one."""
    path = Path(tokenizer.path)
    if tokenizer.sha256 and not path.exists():
        return tokenizer  # as a pinned corpus
    if not path.is_file():
        raise BlindspotError(f"tokenizer.path: {path}: no such file")
    found = digests.sha256(path)
    if tokenizer.sha256 not in (None, found):
        raise BlindspotError(
            f"tokenizer.sha256: {path} has {found}, the config pins {tokenizer.sha256}; restore "
            f"the file, or pin the new digest to start a new study"
        )
    return tokenizer.model_copy(update={"sha256": found})
