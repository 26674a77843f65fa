"""A stand-in for the Hugging Face hub that speaks its HTTP interface, for tests without network.

It serves the repositories below a folder, `{root}/{datasets|models}/{owner}/{name}/{commit}/...`,
to the real `datasets` and `huggingface_hub` (`HF_ENDPOINT`), and remembers what it was asked.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Hub:
    """A server of `root`; `broken` makes it cut every parquet file in half on its way."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.broken = False
        #: (method, path) of every request.
        self.asked: list[tuple[str, str]] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_HEAD(self) -> None:
                hub.answer(self)

            def do_GET(self) -> None:
                hub.answer(self)

            def do_POST(self) -> None:
                hub.answer(self)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        path = unquote(urlsplit(request.path).path)
        self.asked.append((request.command, path))
        parts = path.strip("/").split("/")
        if parts[0] == "api":
            self._api(request, parts[1:], body)
            return
        kind = parts.pop(0) if parts[0] == "datasets" else "models"
        if len(parts) > 4 and parts[2] == "resolve":
            self._file(request, self.root / kind / parts[0] / parts[1], parts[3], parts[4:])
        else:
            self._error(request, "EntryNotFound")

    def _commit(self, repo: Path, revision: str) -> str | None:
        """A commit, or the newest one (last by name) for `main`."""
        if revision == "main" and repo.is_dir():
            return max(path.name for path in repo.iterdir())
        return revision if (repo / revision).is_dir() else None

    def _file(
        self, request: BaseHTTPRequestHandler, repo: Path, revision: str, parts: list[str]
    ) -> None:
        commit = self._commit(repo, revision)
        if commit is None:
            return self._error(request, "RevisionNotFound" if repo.is_dir() else "RepoNotFound")
        file = repo.joinpath(commit, *parts)
        if not file.is_file():
            return self._error(request, "EntryNotFound", commit)
        data = file.read_bytes()
        first, last = 0, len(data) - 1
        if wanted := request.headers.get("Range"):
            begin, _, end = wanted.removeprefix("bytes=").partition("-")
            first, last = int(begin), min(int(end) if end else last, last)
        request.send_response(206 if wanted else 200)
        request.send_header("X-Repo-Commit", commit)
        request.send_header("ETag", f'"{sha1(data).hexdigest()}"')
        request.send_header("Accept-Ranges", "bytes")
        request.send_header("Content-Length", str(last - first + 1))
        if wanted:
            request.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        request.end_headers()
        if request.command == "GET":
            part = data[first : last + 1]
            if self.broken and file.suffix == ".parquet":  # the line goes dead
                request.wfile.write(part[: len(part) // 2])
                request.close_connection = True
                return None
            request.wfile.write(part)
        return None

    def _api(self, request: BaseHTTPRequestHandler, parts: list[str], body: bytes) -> None:
        kind, owner, name, *rest = [*parts, "", "", ""][: max(4, len(parts))]
        repo = self.root / kind / owner / name
        what, revision, *inside = [*rest, "", "main"] if len(rest) < 2 else rest
        commit = self._commit(repo, revision or "main")
        if commit is None:
            return self._error(request, "RevisionNotFound" if repo.is_dir() else "RepoNotFound")
        at = repo / commit
        if what == "tree":
            folder = at.joinpath(*inside)
            if not folder.is_dir():
                return self._error(request, "EntryNotFound", commit)
            return self._json(request, [self._entry(at, p) for p in sorted(folder.rglob("*"))])
        if what == "paths-info":
            wanted = json.loads(body)["paths"]
            found = [self._entry(at, at / p) for p in wanted if (at / p).exists()]
            return self._json(request, found)
        files = [p.relative_to(at).as_posix() for p in sorted(at.rglob("*")) if p.is_file()]
        return self._json(
            request,
            {
                "_id": "0" * 24,
                "id": f"{owner}/{name}",
                "sha": commit,
                "private": False,
                "disabled": False,
                "gated": False,
                "downloads": 0,
                "likes": 0,
                "tags": [],
                "siblings": [{"rfilename": f} for f in files],
            },
        )

    def _entry(self, at: Path, path: Path) -> dict[str, object]:
        name = path.relative_to(at).as_posix()
        if path.is_dir():
            return {"type": "directory", "path": name, "oid": sha256(name.encode()).hexdigest()}
        data = path.read_bytes()
        return {"type": "file", "path": name, "size": len(data), "oid": sha1(data).hexdigest()}

    def _json(self, request: BaseHTTPRequestHandler, value: object) -> None:
        data = json.dumps(value).encode()
        request.send_response(200)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)

    def _error(self, request: BaseHTTPRequestHandler, code: str, commit: str = "") -> None:
        request.send_response(404)
        request.send_header("X-Error-Code", code)
        request.send_header("X-Error-Message", code)
        if commit:
            request.send_header("X-Repo-Commit", commit)
        request.send_header("Content-Length", "0")
        request.end_headers()


@contextmanager
def served(root: Path) -> Iterator[Hub]:
    """A running hub."""
    hub = Hub(root)
    thread = threading.Thread(target=hub.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.server.shutdown()
        hub.server.server_close()
        thread.join()
