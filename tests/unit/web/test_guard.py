"""Requests for other hosts and from foreign pages end before anything reads them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from racer_local.errors import ConfigError
from racer_local.web.guard import BodyLimit, Guard
from racer_local.web.headers import SecurityHeaders
from racer_local.web.origins import TrustedNames, is_loopback, require_safe_bind

Headers = list[tuple[str, str]]


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the headers that arrived and the size of the body."""
    n_bytes, more = 0, True
    while more:
        event = await receive()
        n_bytes += len(event.get("body", b""))
        more = event.get("more_body", False)
    names = [name.decode() for name, _ in scope["headers"]]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    body = json.dumps({"names": names, "n_bytes": n_bytes}).encode()
    await send({"type": "http.response.body", "body": body})


def ask(
    app: Any, headers: Headers, method: str = "POST", chunks: tuple[bytes, ...] = (b"",)
) -> tuple[int, dict[str, Any], dict[bytes, bytes]]:
    """Send one request through a layer; return status, JSON and headers of the answer."""
    scope = {
        "type": "http",
        "method": method,
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers],
    }
    sent: list[Any] = []
    left = list(chunks)

    async def receive() -> Any:
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def send(event: Any) -> None:
        sent.append(event)

    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], json.loads(sent[1]["body"]), dict(sent[0]["headers"])


def status(headers: Headers, names: TrustedNames | None = None, method: str = "POST") -> int:
    return ask(Guard(echo, names or TrustedNames()), headers, method)[0]


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:7860",
        "127.0.0.1",
        "127.8.8.8:80",
        "localhost:1",
        "LOCALHOST",
        "localhost.:80",
        "app.localhost:3000",
        "[::1]:7860",
        "host.docker.internal:7860",
    ],
)
def test_names_of_this_machine_are_answered(host: str) -> None:
    assert status([("Host", host)]) == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.com",
        "evil-localhost",
        "127.0.0.1.evil.com",
        "192.168.1.5:7860",
        "10.0.0.1",
        "0.0.0.0:7860",
        "[::]:7860",
        "[fe80::1]",
        "",
        "localhost:99999",
        "localhost:port",
        "user@localhost",
        "localhost/evil",
        "evil.com#.localhost",
        "evil.com .localhost",
        "2130706433",
        "0x7f.1",
        "l\u00f6calhost",
    ],
)
def test_other_hosts_are_refused_whatever_the_method(host: str) -> None:
    assert status([("Host", host)]) == 403
    assert status([("Host", host)], method="GET") == 403


def test_a_request_without_a_host_or_with_two_is_refused() -> None:
    assert status([]) == 403
    assert status([("Host", "localhost"), ("Host", "evil.example")]) == 403


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "https://localhost.evil.com",
        "http://localhost:3000",
        "http://127.0.0.1:7860",
        "null",
        "",
        "http://localhost:7860.evil.com",
        "file://",
    ],
)
@pytest.mark.parametrize("method", ["POST", "GET", "PUT", "DELETE"])
def test_pages_of_other_origins_are_refused(origin: str, method: str) -> None:
    assert status([("Host", "localhost:7860"), ("Origin", origin)], method=method) == 403


def test_our_own_page_and_programs_are_served() -> None:
    assert status([("Host", "localhost:7860"), ("Origin", "http://localhost:7860")]) == 200
    assert status([("Host", "localhost:7860")]) == 200
    own = [("Host", "localhost:1"), ("Sec-Fetch-Site", "same-origin")]
    assert status(own) == 200


def test_a_post_that_admits_to_come_from_another_site_is_refused_without_origin_too() -> None:
    headers = [("Host", "localhost:1"), ("Sec-Fetch-Site", "cross-site")]
    assert status(headers) == 403
    # Following a link is not an attack.
    assert status(headers, method="GET") == 200


def test_listed_origins_and_hosts_are_served() -> None:
    names = TrustedNames(
        hosts=frozenset({"Box.example"}),
        origins=frozenset({"https://app.example", "tauri://localhost", "null"}),
    )
    assert status([("Host", "box.example"), ("Origin", "https://app.example")], names) == 200
    assert status([("Host", "localhost"), ("Origin", "tauri://localhost")], names) == 200
    assert status([("Host", "localhost"), ("Origin", "null")], names) == 200
    assert status([("Host", "localhost"), ("Origin", "https://app.example.evil")], names) == 403


def test_bound_to_a_network_addresses_are_answered_and_names_are_not() -> None:
    names = TrustedNames(bind="0.0.0.0")
    assert status([("Host", "192.168.1.5:7860")], names) == 200
    assert status([("Host", "evil.example")], names) == 403


@pytest.mark.parametrize("origin", ["app.example", "https://app.example/", "https://a b", ""])
def test_an_allowed_origin_has_to_be_one(origin: str) -> None:
    with pytest.raises(ConfigError, match="not a web origin"):
        TrustedNames(origins=frozenset({origin}))


def test_the_refusal_has_the_form_that_api_clients_understand() -> None:
    _, answer, _ = ask(Guard(echo, TrustedNames()), [("Host", "evil.example")])
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert answer["error"]["code"] == "host_not_allowed"


def test_what_only_a_proxy_may_say_is_dropped() -> None:
    headers = [
        ("Host", "localhost"),
        ("X-Forwarded-Host", "evil.example"),
        ("X-Forwarded-Proto", "https"),
        ("Forwarded", "host=evil.example"),
        ("Accept", "*/*"),
    ]
    _, answer, _ = ask(Guard(echo, TrustedNames()), headers)
    assert answer["names"] == ["host", "accept"]


def test_a_web_socket_from_a_foreign_page_is_closed() -> None:
    sent: list[Any] = []

    async def send(event: Any) -> None:
        sent.append(event)

    scope = {
        "type": "websocket",
        "headers": [(b"host", b"localhost"), (b"origin", b"http://evil.example")],
    }
    asyncio.run(Guard(echo, TrustedNames())(scope, None, send))  # type: ignore[arg-type]
    assert [event["type"] for event in sent] == ["websocket.close"]


class TestBodyLimit:
    def test_a_body_up_to_the_limit_passes(self) -> None:
        code, answer, _ = ask(BodyLimit(echo, 10), [], chunks=(b"12345", b"67890"))
        assert (code, answer["n_bytes"]) == (200, 10)

    @pytest.mark.parametrize("announced", ["11", "999999999999999999999", "-1", "1e3", "\u0661"])
    def test_what_is_announced_as_too_large_is_not_read(self, announced: str) -> None:
        header = [("Content-Length", announced.encode("utf-8").decode("latin-1"))]
        assert ask(BodyLimit(echo, 10), header)[0] == 413

    def test_what_grows_too_large_is_cut(self) -> None:
        code, answer, _ = ask(BodyLimit(echo, 10), [], chunks=(b"12345", b"678901"))
        assert (code, answer["error"]["code"]) == (413, "request_too_large")


def test_every_answer_says_what_the_page_may_do() -> None:
    _, _, headers = ask(SecurityHeaders(echo), [])
    policy = headers[b"content-security-policy"].decode()
    assert "img-src 'self' data: blob:" in policy
    assert "frame-ancestors 'none'" in policy
    assert headers[b"x-content-type-options"] == b"nosniff"


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("127.9.9.9", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.0.2", False),
        ("example.org", False),
        ("", False),
    ],
)
def test_serving_others_needs_a_key(host: str, is_local: bool) -> None:
    assert is_loopback(host) is is_local
    if is_local:
        require_safe_bind(host, has_key=False)
    else:
        with pytest.raises(ConfigError, match="API key"):
            require_safe_bind(host, has_key=False)
        require_safe_bind(host, has_key=True)
        require_safe_bind(host, has_key=False, is_forced=True)
