"""A hub on this machine: what huggingface_hub asks of one, answered from a folder, by revision.

with serve({"main": folder}) as url:         # for a process with HF_ENDPOINT=url
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

REPO = "team/goldens"


def commit_of(revision: str) -> str:
    """What the hub calls the commit of a revision here: 40 hexadecimal digits."""
    return hashlib.sha1(revision.encode()).hexdigest()


@contextlib.contextmanager
def serve(revisions: Mapping[str, Path]) -> Iterator[str]:
    """Serve the repository `REPO`; each revision is the content of a folder."""
    folders = {name: folder for revision, folder in revisions.items() for name in (revision, commit_of(revision))}
    commits = {name: commit_of(revision) for revision in revisions for name in (revision, commit_of(revision))}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            for start, answer in (
                (f"/api/models/{REPO}/revision/", self._repo),
                (f"/api/models/{REPO}/tree/", self._tree),
                (f"/{REPO}/resolve/", self._file),
            ):
                if path.startswith(start):
                    revision, _, rest = path.removeprefix(start).partition("/")
                    if revision in folders:
                        return answer(revision, rest)
                    return self._json({"error": "Revision not found"}, 404, "RevisionNotFound")
            if path == f"/api/models/{REPO}":
                return self._repo("main", "")
            self._json({"error": "Repository not found"}, 404, "RepoNotFound")

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            revision = unquote(self.path).rpartition("/paths-info/")[2]
            if "/paths-info/" not in self.path or revision not in folders:
                return self._json({"error": "Revision not found"}, 404, "RevisionNotFound")
            found = [folders[revision] / path for path in asked["paths"]]
            self._json([self._entry(revision, file) for file in found if file.exists()])

        def _repo(self, revision: str, rest: str) -> None:
            files = [f for f in sorted(folders[revision].rglob("*")) if f.is_file()]
            names = [{"rfilename": f.relative_to(folders[revision]).as_posix()} for f in files]
            self._json({"id": REPO, "sha": commits[revision], "siblings": names})

        def _tree(self, revision: str, rest: str) -> None:
            where = folders[revision] / rest
            if not where.exists():
                return self._json({"error": "no such path"}, 404, "EntryNotFound")
            self._json(
                [
                    self._entry(revision, f)
                    for f in sorted(where.glob("**/*" if "recursive=true" in self.path.lower() else "*"))
                ]
            )

        def _entry(self, revision: str, file: Path) -> dict[str, Any]:
            kind = "directory" if file.is_dir() else "file"
            size = 0 if file.is_dir() else file.stat().st_size
            oid = hashlib.sha1(b"" if file.is_dir() else file.read_bytes()).hexdigest()
            return {"type": kind, "path": file.relative_to(folders[revision]).as_posix(), "size": size, "oid": oid}

        def _file(self, revision: str, rest: str) -> None:
            file = folders[revision] / rest
            if not file.is_file():
                return self._json({"error": "no such file"}, 404, "EntryNotFound")
            content = file.read_bytes()
            self._send(content, {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": commits[revision]})

        def _json(self, answer: object, code: int = 200, error: str = "") -> None:
            headers = {"Content-Type": "application/json", **({"X-Error-Code": error} if error else {})}
            self._send(json.dumps(answer).encode(), headers, code)

        def _send(self, content: bytes, headers: Mapping[str, str], code: int = 200) -> None:
            self.send_response(code)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, *given: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
