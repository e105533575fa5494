"""Strangers, limits and bad requests: what is refused, and that nothing breaks."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from conftest import Served  # type: ignore[attr-defined]

pytestmark = pytest.mark.server

CHAT = "/v1/chat/completions"
GOOD: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}


def error_of(response: httpx.Response) -> dict[str, Any]:
    """Return the error object, which has the form that clients expect."""
    error: dict[str, Any] = response.json()["error"]
    assert {"message", "type", "param", "code"} <= set(error)
    assert "/" not in error["message"].replace("application/json", "") or "'" in error["message"]
    assert "Traceback" not in response.text
    return error


# --- who may come in -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"host": "evil.example"}, "host_not_allowed"),
        ({"host": "localhost.evil.example"}, "host_not_allowed"),
        ({"origin": "https://evil.example"}, "origin_not_allowed"),
        ({"origin": "null"}, "origin_not_allowed"),
        ({"sec-fetch-site": "cross-site"}, "origin_not_allowed"),
    ],
)
def test_strangers_are_refused(client: httpx.Client, headers: dict[str, str], code: str) -> None:
    refused = client.post(CHAT, json=GOOD, headers=headers)
    assert (refused.status_code, error_of(refused)["code"]) == (403, code)


def test_a_preflight_of_a_foreign_page_fails(client: httpx.Client) -> None:
    asked = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    refused = client.options(CHAT, headers=asked)
    assert refused.status_code == 403
    assert "access-control-allow-origin" not in refused.headers


def test_a_web_socket_is_refused(client: httpx.Client) -> None:
    upgrade = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    refused = client.get(CHAT, headers={**upgrade, "origin": "https://evil.example"})
    assert refused.status_code == 403
    assert client.get(CHAT, headers=upgrade).status_code in (400, 404, 405, 426)


def test_a_form_that_any_page_could_post_is_refused(client: httpx.Client) -> None:
    body = json.dumps(GOOD)
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        headers = {"content-type": kind} if kind else {}
        refused = client.post(CHAT, content=body, headers=headers)
        assert refused.status_code == 415
        assert error_of(refused)["code"] == "unsupported_media_type"


def test_a_listed_origin_and_a_key(
    start_server: Callable[..., Served], tiny_path: Callable[[str], Path]
) -> None:
    origin = "https://app.example"
    served = start_server(
        *("--model", str(tiny_path("cycle")), "--ctx", "256", "--allow-origin", origin),
        RACER_API_KEY="sésame",
    ).wait()
    key = "Bearer sésame".encode()
    with served.client() as client:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": "sesame"}):
            refused = client.post(CHAT, json=GOOD, headers=headers)
            assert (refused.status_code, error_of(refused)["code"]) == (401, "invalid_api_key")
            assert client.get("/metrics", headers=headers).status_code == 401
        good = {b"authorization": key, b"origin": origin.encode()}
        answer = client.post(CHAT, json=GOOD, headers=good)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == origin
        assert client.get("/v1/models", headers={b"x-api-key": key[7:]}).status_code == 200
        preflight = {
            "origin": origin,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type",
        }
        assert client.options(CHAT, headers=preflight).status_code == 200
    # Nothing of what was asked or sent is written anywhere.
    assert served.stop() == 0
    assert not any("sésame" in line or "Hi" in line for line in served.lines)


# --- what may come in ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b"null", 400),
        (b'{"messages": []}', 400),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 400),
        (b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}', 400),
        (b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 1e999}', 400),
        (b'{"messages": [{"role": "user", "content": "x"}], "seed": ' + b"9" * 5000 + b"}", 400),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400),
        (b"\xff\xfe", 400),
    ],
)
def test_a_broken_body_is_the_callers_fault(client: httpx.Client, body: bytes, status: int) -> None:
    refused = client.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert refused.status_code == status
    error_of(refused)
    assert refused.headers["x-should-retry"] == "false"


def test_unknown_addresses_and_methods(client: httpx.Client) -> None:
    assert error_of(client.get("/nowhere"))["code"] == "not_found"
    refused = client.get(CHAT)
    assert (refused.status_code, error_of(refused)["code"]) == (405, "method_not_allowed")
    assert client.get("/v1/../../etc/passwd").status_code == 404
    assert client.get("/docs").status_code == 404


def test_a_hundred_megabytes_are_refused_unread(served: Served, client: httpx.Client) -> None:
    host, port = served.url.removeprefix("http://").split(":")
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {10**8}\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=300) as connection:
        connection.sendall(head.encode())
        answer = connection.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"request_too_large" in answer

    def pieces() -> Iterator[bytes]:
        yield b'{"messages": "'
        for _ in range(100):
            yield b"x" * 10**6

    try:
        refused = client.post(CHAT, content=pieces(), headers={"content-type": "application/json"})
        assert refused.status_code == 413
    except httpx.TransportError:
        pass  # refused while it was still being sent
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_does_not_fit_is_told_with_both_counts(
    client: httpx.Client, stream: bool
) -> None:
    content = "word " * 2000
    body = {**GOOD, "messages": [{"role": "user", "content": content}], "stream": stream}
    error = error_of(client.post(CHAT, json=body))
    assert error["code"] == "context_length_exceeded"
    assert error["n_ctx"] == 1024
    assert error["n_prompt_tokens"] > 2000
    body["messages"][0]["content"] = "x" * 2_000_000
    assert error_of(client.post(CHAT, json=body))["code"] == "context_length_exceeded"


def test_more_messages_than_fit_are_refused_before_they_are_read(client: httpx.Client) -> None:
    body = {**GOOD, "messages": [{"role": "tool"}] * 10_000}
    error = error_of(client.post(CHAT, json=body))
    assert (error["code"], error["n_ctx"]) == ("context_length_exceeded", 1024)


@pytest.mark.parametrize(
    "text", ["a", " ", "\n", "1", "!", "é", "世", "🦝", "\u0301", "a1", "<|im_end|>"]
)
def test_long_texts_of_one_kind_break_nothing(client: httpx.Client, text: str) -> None:
    reply = client.post("/tokenize", json={"content": (text * 60_000)[:60_000]})
    assert reply.status_code == 200


def test_images_and_files_are_refused_by_name(client: httpx.Client) -> None:
    for part in (
        {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
        {"type": "input_audio", "input_audio": {}},
        {"type": "file", "file": {"file_id": "x"}},
    ):
        messages = [{"role": "user", "content": [part]}]
        error = error_of(client.post(CHAT, json={**GOOD, "messages": messages}))
        assert error["param"].startswith("messages")
        assert "passwd" not in error["message"]


# --- fuzzing ---------------------------------------------------------------------------------

ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    10**40,
    -(10**40),
    2**31,
    2**63,
    1e308,
    float("nan"),
    float("inf"),
    -float("inf"),
    0.5,
    "",
    "x",
    "\ud800",
    "🦝" * 300,
    [],
    {},
    [[]],
    ["x"],
    [1],
    [-1],
    {"a": 1},
    {"type": "function"},
    {"type": "json_schema", "json_schema": {"schema": {"type": ["string", 3]}}},
    {"type": "json_object", "schema": {"anyOf": []}},
    {"type": "json_object", "schema": {"enum": ["\u0000", None, 1.5]}},
    {"1": 5, "99999999": 3},
    [{"type": "function", "function": {"name": "f", "parameters": {"$ref": "#/x"}}}],
    [{"role": "user", "content": "Hi"}],
    [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
    [{"role": "tool", "content": [{"type": "text", "text": "x"}]}],
    json.loads("[" * 200 + "]" * 200),
]
# fmt: off
KEYS = [
    "messages", "prompt", "model", "max_tokens", "max_completion_tokens", "temperature",
    "top_p", "top_k", "min_p", "typical_p", "presence_penalty", "frequency_penalty",
    "repeat_penalty", "seed", "stop", "logit_bias", "n", "stream", "stream_options", "logprobs",
    "top_logprobs", "tools", "tool_choice", "parallel_tool_calls", "response_format", "suffix",
    "echo", "user", "content", "tokens", "add_special", "unheard_of",
]
# fmt: on
PATHS = (CHAT, "/v1/completions", "/tokenize", "/detokenize")
BODIES: dict[str, dict[str, Any]] = {
    CHAT: GOOD,
    "/v1/completions": {"prompt": "Hi", "max_tokens": 1},
    "/tokenize": {"content": "Hi"},
    "/detokenize": {"tokens": [1]},
}


def fuzzed(random_: random.Random) -> tuple[str, bytes]:
    path = random_.choice(PATHS)
    body = dict(BODIES[path])
    for _ in range(random_.choice((1, 1, 1, 2, 3))):
        body[random_.choice(KEYS)] = random_.choice(ODD)
    # An answer up to the end of the context would only take time.
    if path in PATHS[:2] and (body.get("max_tokens") or 0) not in (1,):
        body["max_tokens"] = random_.choice((1, 2, -2, 10**40, "x", [], 1.5))
    if "max_completion_tokens" in body and body["max_completion_tokens"] in (None, 0, -1, 2**31):
        body["max_completion_tokens"] = -5
    text = json.dumps(body).encode()
    if random_.random() < 0.05:
        place = random_.randrange(len(text))
        text = text[:place] + bytes([random_.randrange(256)]) + text[place + 1 :]
    return path, text


def test_no_fuzzed_body_is_a_fault_of_ours(served: Served, client: httpx.Client) -> None:
    random_ = random.Random(9)
    counts: dict[int, int] = {}
    for _ in range(1000):
        path, body = fuzzed(random_)
        response = client.post(path, content=body, headers={"content-type": "application/json"})
        counts[response.status_code] = counts.get(response.status_code, 0) + 1
        assert response.status_code in (200, 400), (path, body, response.text)
        if response.status_code == 400:
            error_of(response)
    assert min(counts[200], counts[400]) > 300
    assert served.process.poll() is None
    assert client.get("/health").status_code == 200


# --- starting --------------------------------------------------------------------------------


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-X", "utf8", "-m", "racer_local", "serve", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", check=False, timeout=300
    )


def test_other_machines_are_served_only_with_a_key(smol_path: Path) -> None:
    done = run("--host", "0.0.0.0", "--port", "0", "--model", str(smol_path))
    assert done.returncode == 2
    assert "API key" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_and_a_missing_model_are_explained(smol_path: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run("--port", port, "--model", str(smol_path))
    assert (done.returncode, f"port {port} is in use" in done.stderr) == (1, True)
    done = run("--port", "0", "--model", str(tmp_path / "nothing.gguf"))
    assert (done.returncode, "nothing.gguf" in done.stderr) == (1, True)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\0" * 100)
    done = run("--port", "0", "--model", str(broken))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    key = tmp_path / "key"
    key.write_text("")
    done = run("--port", "0", "--model", str(smol_path), "--book", str(tmp_path / "none.npz"))
    assert (done.returncode, "none.npz" in done.stderr) == (2, True)
    done = run("--api-key-file", str(key), "--model", str(smol_path))
    assert (done.returncode, "empty" in done.stderr) == (2, True)
