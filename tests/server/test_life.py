"""Streams that break off, clients that share the server, idle times and the end."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from conftest import Served  # type: ignore[attr-defined]

PATIENCE_S = 300

pytestmark = pytest.mark.server

CHAT = "/v1/chat/completions"


def body_of(text: str, n: int, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    # The most likely tokens, and never an end: a bias against it.
    return {"messages": messages, "max_tokens": n, "temperature": 0, **more}


def answer_of(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def endless(n: int = 400, **more: Any) -> dict[str, Any]:
    return body_of(
        "Write a long story about the sea.", n, logit_bias={"2": -100, "0": -100}, **more
    )


def held() -> dict[str, Any]:
    """Ask for what nobody waits to the end of: eight answers, one after the other."""
    return {**endless(900, stream=True), "n": 8}


@contextmanager
def raw_request(served: Served, body: dict[str, Any]) -> Iterator[socket.socket]:
    """Send a request and leave the connection to the test."""
    host, port = served.url.removeprefix("http://").split(":")
    sent = json.dumps(body).encode()
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(sent)}\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        connection.sendall(head.encode() + sent)
        yield connection


def wait_for(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < ends, "it did not come to that"
        time.sleep(0.02)


def test_a_client_that_leaves_a_stream_frees_the_model(
    served: Served, client: httpx.Client
) -> None:
    before = answer_of(client.post(CHAT, json=body_of("Name a colour.", 4)))
    n_before = served.n_cancelled
    with client.stream("POST", CHAT, json=held()) as response:
        lines = response.iter_lines()
        for _ in range(6):
            next(lines)
    after = answer_of(client.post(CHAT, json=body_of("Name a colour.", 4)))
    assert after["choices"] == before["choices"]
    served.wait_until_idle()
    # It did not come to its end.
    assert served.n_cancelled == n_before + 1


def test_a_client_that_leaves_while_its_prompt_is_read_frees_the_model(served: Served) -> None:
    n_before = served.n_cancelled
    text = " ".join(str(random.Random(i).random()) for i in range(40))
    with raw_request(served, {**held(), "messages": body_of(text, 1)["messages"]}):
        wait_for(lambda: served.metrics()["racer_running[]"] == 1)
    wait_for(lambda: served.n_cancelled == n_before + 1)
    served.wait_until_idle()


def test_clients_that_leave_before_the_first_byte_do_no_harm(
    served: Served, client: httpx.Client
) -> None:
    for _ in range(20):
        with raw_request(served, endless()):
            pass
    wait_for(lambda: served.metrics()["racer_queue_length[]"] == 0)
    served.wait_until_idle()
    assert client.post(CHAT, json=body_of("Hi", 2)).status_code == 200
    assert not any("rror" in line or "Traceback" in line for line in served.lines)


def test_a_second_client_does_not_disturb_the_first(served: Served) -> None:
    bodies = [endless(60), body_of("Say hello.", 20)]
    with served.client() as client:
        alone = [answer_of(client.post(CHAT, json=body))["choices"] for body in bodies]
        with ThreadPoolExecutor(2) as pool:
            together = list(pool.map(lambda body: answer_of(client.post(CHAT, json=body)), bodies))
    assert [reply["choices"] for reply in together] == alone


def test_eight_clients_with_disconnects_get_what_they_would_alone(served: Served) -> None:
    bodies = [
        body_of(f"Write {n} words about {topic}.", 24)
        for n, topic in enumerate(("the sea", "a dog", "snow", "tea", "paper", "trains"), 3)
    ]
    with served.client() as client:
        alone = [answer_of(client.post(CHAT, json=body))["choices"] for body in bodies]

    def visit(number: int) -> int:
        random_ = random.Random(number)
        n_done = 0
        with served.client() as client:
            for _ in range(4):
                i = random_.randrange(len(bodies))
                if random_.random() < 0.3:
                    with raw_request(served, {**bodies[i], "stream": True}) as connection:
                        connection.settimeout(random_.random() * 0.3)
                        try:
                            connection.recv(100)
                        except TimeoutError:
                            continue
                else:
                    reply = client.post(CHAT, json=bodies[i])
                    assert reply.json()["choices"] == alone[i]
                    n_done += 1
        return n_done

    with ThreadPoolExecutor(8) as pool:
        assert all(list(pool.map(visit, range(8))))
    served.wait_until_idle()


def test_a_full_queue_says_so_and_turns_come_in_order(
    start_server: Callable[..., Served], smol_path: Path
) -> None:
    served = start_server("--model", str(smol_path), "--ctx", "1024", "--queue", "1").wait()
    finished: list[str] = []

    def ask(name: str) -> None:
        with served.client() as client:
            answer_of(client.post(CHAT, json=body_of(name, 2)))
        finished.append(name)

    with served.client() as client:
        with client.stream("POST", CHAT, json=held()) as response:
            lines = response.iter_lines()
            next(lines)
            second = threading.Thread(target=ask, args=("second",))
            second.start()
            wait_for(lambda: served.metrics()["racer_queue_length[]"] == 1)
            refused = httpx.post(
                f"{served.url}{CHAT}", json=body_of("third", 2), timeout=PATIENCE_S
            )
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) > 0
            assert refused.json()["error"]["code"] == "queue_full"
            assert finished == []
        second.join()
    assert finished == ["second"]


def test_an_idle_model_is_unloaded_and_comes_back(
    start_server: Callable[..., Served], tiny_path: Callable[[str], Path]
) -> None:
    model = ("--model", str(tiny_path("cycle")), "--ctx", "512")
    served = start_server(*model, "--idle-unload", "0.01").wait()
    with served.client() as client:
        first = answer_of(client.post(CHAT, json=body_of("Name a colour.", 6)))["choices"]
        wait_for(lambda: not client.get("/health").json()["model_loaded"])
        assert client.get("/v1/models").json()["data"][0]["meta"]["n_ctx"] == 512
        assert client.post("/tokenize", json={"content": "Hi"}).json()["count"] > 0
        wait_for(lambda: not client.get("/health").json()["model_loaded"])
        assert answer_of(client.post(CHAT, json=body_of("Name a colour.", 6)))["choices"] == first
    assert served.stop() == 0


def test_models_are_listed_and_requests_put_off_while_it_loads(
    start_server: Callable[..., Served], smol_path: Path
) -> None:
    served = start_server("--model", str(smol_path), "--ctx", "512").wait_for_address()
    with served.client() as client:
        assert client.get("/v1/models").status_code == 200
        health = client.get("/health")
        if health.status_code != 200:
            assert health.json()["error"]["message"] == "Loading model"
            refused = client.post(CHAT, json=body_of("Hi", 1))
            assert (refused.status_code, "retry-after" in refused.headers) == (503, True)
    served.wait()


@pytest.mark.skipif(os.name == "nt", reason="no signals for one process")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_of_a_stream_ends_it_cleanly(
    start_server: Callable[..., Served], smol_path: Path, number: int
) -> None:
    served = start_server("--model", str(smol_path), "--ctx", "1024").wait()
    with (
        served.client() as client,
        client.stream("POST", CHAT, json=held()) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.post, CHAT, json=body_of("Hi", 2))
            wait_for(lambda: served.metrics()["racer_queue_length[]"] == 1)
            served.process.send_signal(number)
            rest = [line for line in lines if line]
            refused = waiting.result()
    assert served.process.wait(PATIENCE_S) == 0
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
    # Cut off, it says so: an error event, and nothing that looks like an end.
    last = json.loads(rest[-1].removeprefix("data: "))
    assert last["error"]["code"] == "cancelled"
    assert not any("Traceback" in line for line in served.lines)


def test_small_contexts_keep_limits_and_count_the_same_both_ways(
    start_server: Callable[..., Served], smol_path: Path
) -> None:
    served = start_server("--model", str(smol_path), "--ctx", "256").wait()
    with served.client() as client:
        for limit in (None, 0, -1, 1):
            body = endless(1, max_completion_tokens=limit)
            body["messages"][0]["content"] += " It has to be long." * 25
            reply = answer_of(client.post(CHAT, json=body))
            assert reply["usage"]["total_tokens"] <= 256
            assert reply["choices"][0]["finish_reason"] == "length"
        body = body_of("Say OK.", 20, stream_options={"include_usage": True})
        whole = answer_of(client.post(CHAT, json=body))["usage"]
        events = client.post(CHAT, json={**body, "stream": True}).text.split("\n\n")
        assert events[-2] == "data: [DONE]"
        streamed = json.loads(events[-3][6:])["usage"]
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert streamed[name] == whole[name]
        assert client.post(CHAT, json={**body, "n": 2}).status_code == 200
