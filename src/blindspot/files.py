"""Files that are either whole or absent: every result is written beside its place, then renamed.

Text, CSV, JSON, sealed records, digests.
"""

import csv
import errno
import hashlib
import io
import json
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from blindspot.errors import BlindspotError, UnwritableError
from blindspot.settings import canonical

#: Names of the temporary files of `atomic_path`.
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}(\.\w+)?")


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; on success sync it and rename it to `path`.

    A reader sees the old file or the new one, never half of one. On an exception nothing is left.
    `UnwritableError` names the file that a full disk, say, keeps from being written.
    """
    # The ending stays last, because some writers (matplotlib, pandas) choose the format by it.
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with open(temporary, "rb") as handle:
            os.fsync(handle.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        # One that names another file is of what was read on the way.
        if error.filename is None or Path(error.filename) in (temporary, path, *path.parents):
            raise UnwritableError(
                f"{path}: could not be written ({error.strerror or error}); make room or mend the "
                f"folder, then run the same command again"
            ) from error
        raise
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def leftovers(folder: Path) -> list[Path]:
    """Temporary files in a folder, of processes that were killed while they wrote, or write now."""
    return sorted(p for p in folder.glob(".*") if _TEMPORARY.fullmatch(p.name) and p.is_file())


def _sync_folder(folder: Path) -> None:
    """Make a rename in it last. Some file systems (SMB, some FUSE mounts) can't sync a folder, and
    say that the call is invalid or not supported; there the rename lasts when they see to it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    finally:
        os.close(handle)


def date_no_later(paths: Iterable[str | Path]) -> None:
    """Files dated ahead of this clock, as another machine's may be, are dated now: Snakemake takes
    what is made of them for older than they are, and deletes it.

    Those that are not there, or another user's, stay as they are.
    """
    for path in paths:
        with suppress(OSError):
            if Path(path).stat().st_mtime > (now := time.time()):
                os.utime(path, (now, now))


def first_unwritable(paths: Iterable[str | Path]) -> str:
    """The first of these files or folders that can't be made or written by this user, and whose it
    is, in words; empty where all can be."""
    seen: set[Path] = set()
    for path in map(Path, paths):
        # A file that is there is replaced, so its folder counts.
        there = path if path.is_dir() else path.parent
        while not there.exists():
            there = there.parent
        if there in seen or os.access(there, os.W_OK | os.X_OK):
            seen.add(there)
            continue
        try:
            return f"{there} (it belongs to {there.owner()})"
        except (OSError, KeyError):
            return str(there)
    return ""


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8 with LF line ends, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def to_csv(columns: Sequence[str], table: Sequence[Sequence[Any]]) -> str:
    """CSV text with LF line ends."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(table)
    return buffer.getvalue()


def write_json(path: Path, value: Any) -> None:
    """Write JSON a person can read, atomically. NaN and infinity are refused: they are not JSON."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def write_record(path: Path, value: dict[str, Any]) -> None:
    """Write the record beside a result, sealed by `sha256`: whether it was edited can be told."""
    write_json(path, value | {"sha256": seal(value)})


def seal(value: dict[str, Any]) -> str:
    """Hex SHA-256 of what a record says (canonical JSON, all but `sha256`), however it is set."""
    return sha256_text(canonical({k: member for k, member in value.items() if k != "sha256"}))


def read_json(path: Path) -> Any:
    """Read JSON; a missing or damaged file is named in the error."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BlindspotError(f"{path}: no such file") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BlindspotError(
            f"{path}: not readable as JSON ({error}); delete it and run the workflow again"
        ) from None


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes, in bounded memory."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def sha256_text(text: str) -> str:
    """Hex SHA-256 of the file that `write_text` would make of `text`."""
    return hashlib.sha256(text.encode()).hexdigest()
