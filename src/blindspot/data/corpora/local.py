"""Files of one's own: text, JSON lines, parquet, read in bounded memory.

A file may change while it is read, and change back. So whoever reads one may give a digest, which
then takes in the very bytes that became documents.
"""

import hashlib
import io
import json
import tempfile
from codecs import getincrementaldecoder
from collections.abc import Iterator
from pathlib import Path

from blindspot.config.localfiles import TABLES
from blindspot.data.corpora.rows import lf, text_of
from blindspot.errors import BlindspotError

#: Between two documents of a split's text.
SEPARATOR = "\n\n"
#: Characters that a document cut from a text file has at least.
BLOCK = 1 << 16


def read(path: Path, column: str, seen: "hashlib._Hash", scratch: Path) -> Iterator[str]:
    """The documents of a file, by its ending; `column` is where tables have their text.

    `seen` takes in the bytes that are read; a table that is read out of order is copied to the
    folder `scratch` for it.
    """
    match TABLES.get(path.suffix.lower()):
        case "jsonl":
            return _json_lines(path, column, seen)
        case "parquet":
            return _parquet(path, column, seen, scratch)
        case _:
            return blocks(path, seen)


def _json_lines(path: Path, column: str, seen: "hashlib._Hash") -> Iterator[str]:
    """One object a line; empty lines are skipped."""
    try:
        handle = open(path, "rb")  # noqa: SIM115
    except OSError as error:
        raise BlindspotError(f"corpus: {path}: cannot be read ({error.strerror})") from None
    with handle:
        for number, line in enumerate(handle, 1):
            seen.update(line)
            line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if not line.strip():
                continue
            where = f"corpus: {path}: line {number}"
            try:
                value = json.loads(line.decode())
            except ValueError as error:  # not UTF-8, or not JSON
                raise BlindspotError(
                    f"{where} is not a JSON object ({error}); JSON lines are needed, one object "
                    f"a line, in UTF-8"
                ) from None
            if not isinstance(value, dict) or column not in value:
                keys = ", ".join(map(str, value)) if isinstance(value, dict) else "no keys"
                raise BlindspotError(
                    f"{where} has no key {column!r}, only {keys}; set corpus.column to the key "
                    f"with the text"
                )
            yield lf(text_of(value[column], where))


def _parquet(path: Path, column: str, seen: "hashlib._Hash", scratch: Path) -> Iterator[str]:
    with tempfile.NamedTemporaryFile(dir=scratch, prefix=".reading-") as copy:
        try:
            with open(path, "rb") as handle:
                while block := handle.read(1 << 20):
                    seen.update(block)
                    copy.write(block)
        except OSError as error:
            raise BlindspotError(f"corpus: {path}: cannot be read ({error.strerror})") from None
        copy.flush()
        yield from _rows(path, Path(copy.name), column)


def _rows(path: Path, copy: Path, column: str) -> Iterator[str]:
    """The column's texts in the copy of a parquet file; `path` is for messages."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(copy)
    except (OSError, pa.ArrowInvalid) as error:
        raise BlindspotError(f"corpus: {path}: not readable as parquet ({error})") from None
    with file:
        if column not in file.schema_arrow.names:
            raise BlindspotError(
                f"corpus.column: {column!r} is not a column of {path}; it has "
                f"{', '.join(file.schema_arrow.names)}"
            )
        row = 0
        for batch in file.iter_batches(batch_size=1000, columns=[column]):
            for value in batch.column(0):
                row += 1
                where = f"corpus: {path}: row {row}"
                try:
                    text = value.as_py()
                except UnicodeDecodeError as error:
                    raise BlindspotError(f"{where} is not UTF-8 ({error.reason})") from None
                yield lf(text_of(text, where))


def blocks(path: Path, digest: "hashlib._Hash | None" = None) -> Iterator[str]:
    """Cut a UTF-8 text file at empty lines into documents of `BLOCK` characters or more.

    Joined by `SEPARATOR` they are the file's text. Memory is bounded by the longest stretch
    without an empty line. Raises `BlindspotError` with file and byte offset on invalid UTF-8.
    """
    rest = ""
    held: str | None = None  # the last block waits: blank text at the file's end belongs to it
    for text in _decoded(path, digest or hashlib.sha256()):
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


def _decoded(path: Path, seen: "hashlib._Hash", size: int = 1 << 20) -> Iterator[str]:
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
            seen.update(block)
            ended = not block
            kept = len(decoder.getstate()[0])
            try:
                text = decoder.decode(block, final=ended)
            except UnicodeDecodeError as error:
                # UTF-16 shows: its mark, or the zeros of its ASCII.
                other = "utf-16" if b"\0" in block[:64] else "latin1"
                raise BlindspotError(
                    f"corpus: {path}: not UTF-8 at byte {offset - kept + error.start} "
                    f"({error.reason}); convert the file, for example with "
                    f"`iconv -f {other} -t utf-8`"
                ) from None
            offset += len(block)
            if text and not started:
                text, started = text.removeprefix("\ufeff"), True
            yield newlines.decode(text, final=ended)
