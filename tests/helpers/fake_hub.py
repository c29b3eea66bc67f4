"""A server that plays the hub, so that the library meets its answers and not ours.

It serves folders ``<owner>/<name>/<revision>/``, a revision being ``main`` or ``parquet`` (what the
hub calls ``refs/convert/parquet``), and knows the few requests that loading a data set makes.
"""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

REVISIONS = {"main": "main", "refs/convert/parquet": "parquet"}


@contextmanager
def fake_hub(root: Path, renamed: dict[str, str] | None = None) -> Iterator[str]:
    """Serve a folder while the block runs."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    server.root, server.renamed = root, renamed or {}  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        n_bytes = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(n_bytes).decode()
        path = unquote(urlsplit(self.path).path).strip("/")
        api = path.startswith("api/")
        path = path.removeprefix("api/")
        if path == "":
            return self.answer(b"")
        if not path.startswith("datasets/"):
            return self.missing("EntryNotFound")
        old, _, rest = path.removeprefix("datasets/").partition("/")
        if new := self.server.renamed.get(old):  # type: ignore[attr-defined]
            where = f"/{'api/' if api else ''}datasets/{new}/{quote(rest, safe='/')}"
            return self.answer(b"", 307, {"Location": where.rstrip("/")})
        owner, name, *rest_of_path = path.removeprefix("datasets/").split("/")
        repository = self.server.root / owner / name  # type: ignore[attr-defined]
        if not repository.is_dir():
            return self.missing("RepoNotFound")
        kind, *words = rest_of_path or ["revision", "main"]
        revision, inside = self.split_revision(repository, "/".join(words))
        folder = repository / revision
        if not folder.is_dir():
            return self.missing("RevisionNotFound")
        sha = hashlib.sha1(str(folder).encode()).hexdigest()
        if kind == "revision":
            return self.json({"id": f"{owner}/{name}", "sha": sha, "siblings": [], "tags": []})
        if kind == "tree":
            found = (folder / inside).rglob("*") if (folder / inside).is_dir() else []
            return self.json([self.described(path, folder) for path in sorted(found)])
        if kind == "paths-info":
            names = parse_qs(self.body).get("paths") or json.loads(self.body)["paths"]
            found = [folder / name for name in names if name and (folder / name).exists()]
            return self.json([self.described(path, folder) for path in found])
        if kind == "resolve" and (folder / inside).is_file():
            data = (folder / inside).read_bytes()
            return self.file(data, sha)
        return self.missing("EntryNotFound")

    do_HEAD = do_POST = do_GET

    def split_revision(self, repository: Path, words: str) -> tuple[str, str]:
        """Return the folder of a revision that a path begins with, by name or hash; the rest."""
        for name, folder in REVISIONS.items():
            sha = hashlib.sha1(str(repository / folder).encode()).hexdigest()
            for known in (name, sha):
                if words == known or words.startswith(known + "/"):
                    return folder, words[len(known) + 1 :]
        return "none", ""

    def described(self, path: Path, folder: Path) -> dict[str, object]:
        name = path.relative_to(folder).as_posix()
        oid = hashlib.sha1(name.encode()).hexdigest()
        if path.is_dir():
            return {"type": "directory", "path": name, "oid": oid, "size": 0}
        return {"type": "file", "path": name, "oid": oid, "size": path.stat().st_size}

    def file(self, data: bytes, sha: str) -> None:
        headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": sha}
        headers["Accept-Ranges"] = "bytes"
        asked = self.headers.get("Range", "")
        if not asked.startswith("bytes="):
            return self.answer(data, 200, headers)
        first, last = asked.removeprefix("bytes=").split("-")
        start, end = int(first), min(int(last) if last else len(data) - 1, len(data) - 1)
        headers["Content-Range"] = f"bytes {start}-{end}/{len(data)}"
        return self.answer(data[start : end + 1], 206, headers)

    def json(self, content: object) -> None:
        self.answer(json.dumps(content).encode(), 200, {"Content-Type": "application/json"})

    def missing(self, why: str) -> None:
        self.answer(b"{}", 404, {"X-Error-Code": why, "Content-Type": "application/json"})

    def answer(self, body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
