"""``serve --ui``: the chat page and the API in one process, one queue, one cache."""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from conftest import Served  # type: ignore[attr-defined]

pytestmark = pytest.mark.server

CHAT = "/v1/chat/completions"
PATIENCE_S = 300
STORY = "Write a very long story about the sea."
LONG = "These are the rules of the house. " + " ".join(f"Rule {i} is rule {i}." for i in range(20))


@pytest.fixture(scope="module")
def both(start_server: Callable[..., Served], smol_path: Path) -> Served:
    pytest.importorskip("gradio", reason="the chat page's packages are not installed")
    return start_server("--model", str(smol_path), "--ctx", "1024", "--ui").wait()


@contextlib.contextmanager
def kept_busy(served: Served) -> Iterator[None]:
    """Have the model at work for somebody else: whoever asks meanwhile waits."""
    body = {
        "messages": [{"role": "user", "content": "Write a long story about the sea."}],
        **{"max_tokens": 900, "n": 8, "stream": True, "logit_bias": {"2": -100, "0": -100}},
    }
    with served.client() as client, client.stream("POST", CHAT, json=body) as response:
        # Held on to: the connection ends with it.
        lines = response.iter_lines()
        next(lines)
        yield


def wait_for_queue(served: Served, n: int) -> None:
    ends = time.monotonic() + PATIENCE_S
    while served.metrics()["racer_queue_length[]"] != n:
        assert time.monotonic() < ends
        time.sleep(0.05)


def ask_api(served: Served, text: str, n: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    body = {"messages": messages, "max_tokens": n, "temperature": 0}
    with served.client() as client:
        response = client.post(CHAT, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


class Page:
    """Does what the page's script does: sends an event, and follows what comes of it."""

    def __init__(self, served: Served) -> None:
        self._client = served.client()
        self._config = self._client.get("/ui/config").json()
        self._session = uuid.uuid4().hex[:12]

    def close(self) -> None:
        self._client.close()

    def _id(self, element: str) -> int:
        components = self._config["components"]
        return next(each["id"] for each in components if each["props"].get("elem_id") == element)

    def has(self, element: str) -> bool:
        return any(c["props"].get("elem_id") == element for c in self._config["components"])

    def _run(self, first: str, data: list[Any]) -> Iterator[list[Any]]:
        """Run the function whose first input is this element; yield its outputs as they come."""
        from gradio_client.utils import apply_diff

        function = next(
            each
            for each in self._config["dependencies"]
            if each["inputs"][:1] == [self._id(first)] and len(each["inputs"]) == len(data)
        )
        body = {"data": data, "fn_index": function["id"], "session_hash": self._session}
        joined = self._client.post("/ui/gradio_api/queue/join", json=body)
        assert joined.status_code == 200, joined.text
        address = f"/ui/gradio_api/queue/data?session_hash={self._session}"
        outputs: list[Any] = []
        with self._client.stream("GET", address) as stream:
            for line in stream.iter_lines():
                if not line.startswith("data:"):
                    continue
                message = json.loads(line[5:])
                assert message.get("success", True), message
                if message["msg"] == "process_generating":
                    new = message["output"]["data"]
                    outputs = (
                        [
                            apply_diff(old, diff) if diff else old
                            for old, diff in zip(outputs, new, strict=True)
                        ]
                        if outputs
                        else new
                    )
                    yield outputs
                if message["msg"] == "close_stream":
                    return

    def settings(self, mode: str, n: int) -> list[Any]:
        return [mode, 64, "", 0, n, "", 40, 0.95, 0.05, 1]

    def chat(self, text: str, n: int, mode: str = "auto") -> Iterator[str]:
        """Ask, and yield the answer as it grows."""
        said = [{"role": "user", "content": [{"type": "text", "text": text}]}]
        for outputs in self._run("rl-chat", [said, *self.settings(mode, n)]):
            shown = outputs[0]
            if isinstance(shown, list) and shown[-1]["role"] == "assistant":
                content = shown[-1]["content"]
                yield content if isinstance(content, str) else content[0]["text"]

    def race(self, text: str, n: int) -> str:
        """Race, and return the verdict."""
        settings = self.settings("racer", n)
        shown = [outputs[2] for outputs in self._run("rl-race-prompt", [text, *settings])]
        return next(each for each in reversed(shown) if isinstance(each, str))


@pytest.fixture
def open_page(both: Served) -> Iterator[Callable[[], Page]]:
    with contextlib.ExitStack() as pages:
        yield lambda: pages.enter_context(contextlib.closing(Page(both)))


def test_a_page_and_a_program_take_turns_and_leave_each_other_as_they_were(
    both: Served, open_page: Callable[[], Page]
) -> None:
    page = open_page()
    before = ask_api(both, LONG, 12)
    assert before["usage"]["prompt_tokens_details"]["cached_tokens"] < 40
    texts: list[str] = []
    with ThreadPoolExecutor(2) as pool:
        with kept_busy(both):
            told = pool.submit(lambda: texts.extend(page.chat(STORY, 64)))
            wait_for_queue(both, 1)
            program = pool.submit(ask_api, both, LONG, 12)
            wait_for_queue(both, 2)
        during = program.result()
        told.result()
    # It streamed, the other one came after it, and found its text in the cache.
    assert len(set(texts)) > 2
    assert during["choices"] == before["choices"]
    n_prompt = before["usage"]["prompt_tokens"]
    assert during["usage"]["prompt_tokens_details"]["cached_tokens"] == n_prompt - 1
    # Another way of drafting, and a race from an empty cache: the program's text is still there.
    again = list(page.chat(STORY, 64, "racer"))
    assert again[-1] == texts[-1]
    verdict = page.race("Name three fruits.", 16)
    assert "wrote exactly the same text" in verdict or "The texts part" in verdict
    after = ask_api(both, LONG, 12)
    assert after["choices"] == before["choices"]
    assert after["usage"]["prompt_tokens_details"]["cached_tokens"] == n_prompt - 1
    both.wait_until_idle()


def test_the_page_is_behind_the_same_checks_and_cannot_change_the_model(
    both: Served, open_page: Callable[[], Page]
) -> None:
    with both.client(follow_redirects=True) as client:
        found = client.get("/")
        assert (found.status_code, found.url.path) == (200, "/ui/")
        assert "gradio" in found.text
        assert client.get("/manifest.json").status_code == 200
        for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
            assert client.get("/ui/", headers=headers).status_code == 403
        assert client.get("/v1/nothing").json()["error"]["code"] == "not_found"
        names = client.get("/openapi.json").json()["paths"]
        assert not any(name.startswith("/ui") for name in names)
    page = open_page()
    assert page.has("rl-chat")
    assert not page.has("rl-bench-go")
    wired = {number for each in page._config["dependencies"] for number in each["inputs"]}
    assert page._id("rl-model") not in wired
    assert page._id("rl-exact") not in wired


def test_with_a_key_a_browser_is_asked_for_it(
    start_server: Callable[..., Served], tiny_path: Callable[[str], Path]
) -> None:
    pytest.importorskip("gradio", reason="the chat page's packages are not installed")
    served = start_server("--model", str(tiny_path("cycle")), "--ui", RACER_API_KEY="sésame")
    served.wait()

    def basic(user: str, password: str) -> dict[str, str]:
        return {
            "Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        }

    with served.client() as client:
        for path in ("/", "/ui", "/ui/", "/ui/config", "/ui/gradio_api/info"):
            refused = client.get(path)
            assert refused.status_code == 401, path
            assert refused.headers["www-authenticate"].startswith("Basic ")
            assert client.get(path, headers=basic("me", "wrong")).status_code == 401
        assert client.get("/ui/", headers=basic("anybody", "sésame")).status_code == 200
        assert client.get("/ui/", headers={"Authorization": "Basic !"}).status_code == 401
        # Programs bring it as they always did, and no browser is made to ask for a program.
        for headers in ({}, basic("anybody", "sésame")):
            refused = client.get("/v1/models", headers=headers)
            assert refused.status_code == 401
            assert "www-authenticate" not in refused.headers
        bearer = {b"Authorization": "Bearer sésame".encode()}
        assert client.get("/v1/models", headers=bearer).status_code == 200  # type: ignore[arg-type]


def test_without_gradio_it_says_what_to_install(smol_path: Path) -> None:
    code = (
        "import sys; sys.modules['gradio'] = None\n"
        "from racer_local.cli import main; main(['serve', '--ui', '--port', '0'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "gradio is missing" in done.stderr
    assert "racer-local[server,ui]" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_page_that_waits_gives_its_place_up(both: Served, open_page: Callable[[], Page]) -> None:
    first, second = open_page(), open_page()

    def stop(page: Page) -> None:
        targets = [[page._id("rl-stop"), "click"]]
        number = next(e["id"] for e in page._config["dependencies"] if e["targets"] == targets)
        sent = {"data": [], "fn_index": number, "session_hash": page._session}
        with both.client() as client:
            assert client.post("/ui/gradio_api/run/predict", json=sent).status_code == 200

    with kept_busy(both):
        thread = threading.Thread(target=lambda: list(second.chat("Say hi.", 16)))
        thread.start()
        wait_for_queue(both, 1)
        stop(second)
        thread.join()
        assert both.metrics()["racer_queue_length[]"] == 0
        assert both.metrics()["racer_running[]"] == 1
    both.wait_until_idle()
    running = first.chat(STORY, 400)
    next(running)
    stop(first)
    list(running)
    both.wait_until_idle()
    assert httpx.get(f"{both.url}/health").json()["model_loaded"] is True
