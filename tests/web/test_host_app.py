"""The app on a real socket: checks, headers, CORS, ports, Ctrl-C."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from racer_local.errors import ConfigError, RacerError
from racer_local.web.origins import TrustedNames

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from racer_local.web.app import make_app
from racer_local.web.runner import bind, serve, url_of

pytestmark = pytest.mark.server

_ORIGIN = "https://app.example"


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def serve_a_stream_without_end() -> None:
    """Serve until told to stop; run in a process of its own."""
    import asyncio

    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, StreamingResponse

    app = make_app(TrustedNames(origins=frozenset({_ORIGIN})), max_body_bytes=1000)

    async def length(request: Request) -> PlainTextResponse:
        return PlainTextResponse(str(len(await request.body())))

    async def endless(_: Request) -> StreamingResponse:
        async def ticks() -> object:
            while True:
                yield b"tick\n"
                await asyncio.sleep(0.01)

        return StreamingResponse(ticks())

    app.add_route("/length", length, methods=["POST"])
    app.add_route("/endless", endless)
    listener = bind("127.0.0.1", 0)
    serve(
        app,
        listener,
        on_ready=lambda: say(url_of(listener)),
        on_stop=lambda: say("stopping"),
    )
    say("closed")


class Server:
    def __init__(self) -> None:
        self.connections: list[http.client.HTTPConnection | http.client.HTTPResponse] = []
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().rsplit(":", 1)[1])

    def ask(
        self, method: str, path: str, body: bytes | Iterator[bytes] | None = None, **headers: str
    ) -> http.client.HTTPResponse:
        self.close_connections()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        self.connections.append(connection)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, named)
        answer = connection.getresponse()
        self.connections.append(answer)
        return answer

    def close_connections(self) -> None:
        while self.connections:
            self.connections.pop().close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close_connections()
    server.process.kill()
    server.process.communicate()


def test_a_good_request_is_answered_with_the_page_policy(server: Server) -> None:
    answer = server.ask("POST", "/length", b"12345")
    assert (answer.status, answer.read()) == (200, b"5")
    assert "default-src 'self'" in (answer.headers["Content-Security-Policy"] or "")
    assert answer.headers["Server"] is None
    assert answer.headers["Access-Control-Allow-Origin"] is None


def test_strangers_are_refused_and_told_so_in_json(server: Server) -> None:
    answer = server.ask("POST", "/length", b"1", Host="evil.example")
    assert (answer.status, b"host_not_allowed" in answer.read()) == (403, True)
    answer = server.ask("POST", "/length", b"1", Origin="http://evil.example")
    assert (answer.status, b"origin_not_allowed" in answer.read()) == (403, True)


def test_a_listed_origin_gets_cors_headers_and_no_other(server: Server) -> None:
    answer = server.ask("POST", "/length", b"1", Origin=_ORIGIN)
    assert answer.headers["Access-Control-Allow-Origin"] == _ORIGIN
    assert answer.headers["Access-Control-Allow-Credentials"] is None
    asked = {"Origin": _ORIGIN, "Access_Control_Request_Method": "POST"}
    assert server.ask("OPTIONS", "/length", **asked).status == 200


def test_a_large_body_is_refused(server: Server) -> None:
    assert server.ask("POST", "/length", b"x" * 1001).status == 413
    # An iterable is sent in chunks, without a length.
    assert server.ask("POST", "/length", iter([b"x" * 1001])).status == 413
    assert server.ask("POST", "/length", iter([b"x" * 500, b"x" * 500])).read() == b"1000"


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json"])
def test_there_are_no_documentation_pages(server: Server, path: str) -> None:
    assert server.ask("GET", path).status == 404


@pytest.mark.skipif(os.name == "nt", reason="no SIGINT for one process")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly_even_in_the_middle_of_a_stream(
    server: Server, number: int
) -> None:
    stream = server.ask("GET", "/endless")
    assert stream.read(5) == b"tick\n"
    server.process.send_signal(number)
    out, err = server.process.communicate(timeout=300)
    assert out.split() == ["stopping", "closed"]
    assert err == ""
    assert server.process.returncode == 0


def test_a_port_in_use_and_a_wrong_address_are_explained() -> None:
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(RacerError, match=f"port {port} is in use"):
            bind("127.0.0.1", port)
    with pytest.raises(ConfigError, match="65535"):
        bind("127.0.0.1", 65536)
    with pytest.raises(ConfigError, match="no such address"):
        bind("no such host", 0)
    with pytest.raises(RacerError, match="cannot serve on"):
        bind("192.0.2.1", 0)


if __name__ == "__main__":
    serve_a_stream_without_end()
