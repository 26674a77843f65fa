"""Digests of a user's own text files, remembered, because every job of a study asks for them."""

import contextlib
import json
import time
from pathlib import Path

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
