"""Files of one's own: text, JSON lines, parquet, read in bounded memory."""

import io
import json
from codecs import getincrementaldecoder
from collections.abc import Iterator
from pathlib import Path

from blindspot.config.dataspec import TABLES
from blindspot.data.corpora.rows import lf, text_of
from blindspot.errors import BlindspotError

#: Between two documents of a split's text.
SEPARATOR = "\n\n"
#: Characters that a document cut from a text file has at least.
BLOCK = 1 << 16


def read(path: Path, column: str) -> Iterator[str]:
    """The documents of a file, by its ending; `column` is where tables have their text."""
    match TABLES.get(path.suffix.lower()):
        case "jsonl":
            return _json_lines(path, column)
        case "parquet":
            return _parquet(path, column)
        case _:
            return blocks(path)


def _json_lines(path: Path, column: str) -> Iterator[str]:
    """One object a line; empty lines are skipped."""
    try:
        handle = open(path, "rb")  # noqa: SIM115
    except OSError as error:
        raise BlindspotError(f"corpus: {path}: cannot be read ({error.strerror})") from None
    with handle:
        for number, line in enumerate(handle, 1):
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


def _parquet(path: Path, column: str) -> Iterator[str]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(path)
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
