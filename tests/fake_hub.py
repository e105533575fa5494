"""A server on this machine that speaks the part of the Hugging Face hub that a download needs.

Not a mock: the hub's own library talks to it over HTTP. It can cut connections, ask to wait,
refuse, and hand out wrong contents.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """Serves ``files`` of one repository.

    Attributes:
        requests: (method, path, range header) of all requests, in order.
        statuses: answers to give to the next requests instead, as (status, headers).
        always: the status of every answer, or None.
        cut_after: bytes after which the next file's connection is dropped, or None.
        wrong: contents to send instead of the right ones, by file.
    """

    def __init__(self, repo: str, files: dict[str, bytes]) -> None:
        self.repo = repo
        self.files = files
        self.requests: list[tuple[str, str, str | None]] = []
        self.statuses: deque[tuple[int, dict[str, str]]] = deque()
        self.always: tuple[int, dict[str, str]] | None = None
        self.cut_after: int | None = None
        self.keeps_cutting = False
        self.wrong: dict[str, bytes] = {}
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        # Closing waits for the next look at whether it is time to end.
        serve = partial(self._server.serve_forever, poll_interval=0.01)
        threading.Thread(target=serve, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def ranges(self) -> list[str | None]:
        """Return the range headers of all requests for contents."""
        return [at for method, path, at in self.requests if method == "GET" and "/resolve/" in path]


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_HEAD(self) -> None:
        self._answer(self._head)

    def _answer(self, normally: Callable[[], None]) -> None:
        hub = self.hub
        path = self.path.partition("?")[0]
        hub.requests.append((self.command, path, self.headers.get("Range")))
        refusal = hub.statuses.popleft() if hub.statuses else hub.always
        if refusal is not None:
            self._send(refusal[0], refusal[1], b"no")
        else:
            normally()

    def _send(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def _file(self) -> str | None:
        start = f"/{self.hub.repo}/resolve/"
        path = self.path.partition("?")[0]
        if not path.startswith(start):
            return None
        name = path[len(start) :].partition("/")[2]
        return name if name in self.hub.files else None

    def _not_found(self) -> None:
        code = "EntryNotFound" if self.hub.repo in self.path else "RepoNotFound"
        self._send(404, {"X-Error-Code": code}, b"{}")

    def _head(self) -> None:
        name = self._file()
        if name is None:
            self._not_found()
            return
        content = self.hub.files[name]
        etag = f'"{hashlib.sha256(content).hexdigest()}"'
        self._send(
            200,
            {
                "X-Repo-Commit": COMMIT,
                "X-Linked-Etag": etag,
                "X-Linked-Size": str(len(content)),
                "ETag": etag,
                "Accept-Ranges": "bytes",
                "Content-Length": str(len(content)),
            },
        )

    def _get(self) -> None:
        name = self._file()
        if name is None:
            if self.path.partition("?")[0] == f"/api/models/{self.hub.repo}":
                self._send(200, {"Content-Type": "application/json"}, self._listing())
            else:
                self._not_found()
            return
        content = self.hub.wrong.get(name, self.hub.files[name])
        start = 0
        asked = self.headers.get("Range")
        if asked:
            start = int(asked.removeprefix("bytes=").partition("-")[0])
        rest = content[start:]
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(rest)))
        self.send_header("X-Repo-Commit", COMMIT)
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if self.hub.cut_after is not None:
            self.wfile.write(rest[: self.hub.cut_after])
            self.wfile.flush()
            if not self.hub.keeps_cutting:
                self.hub.cut_after = None
            self.close_connection = True
            self.connection.close()
            return
        self.wfile.write(rest)

    def _listing(self) -> bytes:
        siblings = []
        for name, content in self.hub.files.items():
            sibling: dict[str, object] = {"rfilename": name, "size": len(content)}
            if name.endswith(".gguf"):
                digest = hashlib.sha256(content).hexdigest()
                sibling["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 134}
            siblings.append(sibling)
        listing = {"id": self.hub.repo, "sha": COMMIT, "siblings": siblings}
        return json.dumps(listing).encode()
