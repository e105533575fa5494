"""A real server and a real browser. Without a browser these tests are skipped, and say so."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from racer_local.setup.browser import find_browser

ROOT = Path(__file__).resolve().parents[2]
_SHOTS = Path(os.environ.get("RACER_SCREENSHOTS", ROOT / "build" / "screenshots"))
# Looked for before tests have a home of their own: Playwright keeps its browsers in the user's.
BROWSER = find_browser()
# No wait for a page is a test of speed: a busy machine only makes them longer.
_PATIENCE_MS = int(os.environ.get("RACER_UI_PATIENCE_MS", "300000"))
_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.ui)


class UiServer:
    """The page's server, and what reached its model."""

    def __init__(self, folder: Path, models: Path, *arguments: str) -> None:
        self.record = folder / "record.jsonl"
        self.record.touch()
        script = Path(__file__).with_name("served.py")
        command = [sys.executable, str(script), str(self.record), "--port", "0", *arguments]
        self._log = (folder / "log").open("w+", encoding="utf-8")
        self.process = subprocess.Popen(
            command,
            stderr=self._log,
            env={**os.environ, "RACER_MODELS_DIR": str(models), "PYTHONPATH": str(ROOT)},
        )
        while (found := re.search(r"the page is at (\S+)", self.log())) is None:
            assert self.process.poll() is None, self.log()
            try:
                self.process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
        self.url = found[1]

    def log(self) -> str:
        return Path(self._log.name).read_text(encoding="utf-8")

    def entries(self, key: str) -> list[dict[str, Any]]:
        lines = self.record.read_text(encoding="utf-8").splitlines()
        return [entry for entry in map(json.loads, lines) if key in entry]

    def prompts(self) -> list[str]:
        return [entry["prompt"] for entry in self.entries("prompt")]

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(300)
        self._log.close()


@pytest.fixture(scope="session")
def server(
    tmp_path_factory: pytest.TempPathFactory, smol_path: Path, gemma_path: Path
) -> Iterator[UiServer]:
    pytest.importorskip("gradio", reason="the chat page's packages are not installed")
    folder = tmp_path_factory.mktemp("ui")
    (folder / "broken.gguf").write_bytes(b"GGUF" + bytes(100))
    # With no core to spare the page follows a growing answer by itself.
    threads = str(os.cpu_count() or 1)
    server = UiServer(
        folder, smol_path.parent, "--model", str(smol_path), "--ctx", "1024", "--threads", threads
    )
    yield server
    server.stop()
    assert server.process.returncode == 0, server.log()
    assert "Traceback" not in server.log(), server.log()


@pytest.fixture(scope="session")
def broken_path(server: UiServer) -> Path:
    return server.record.with_name("broken.gguf")


# Not longer: Playwright leaves an event loop running on this thread as long as it lives.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright")
    if BROWSER is None:
        pytest.skip("no Chromium; `make test` installs one where it can, RACER_BROWSER names one")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=BROWSER, args=_FLAGS)
        yield browser
        browser.close()


class Chat:
    """One browser tab with the page in it."""

    def __init__(self, page: Any, server: UiServer) -> None:
        self.page = page
        self.url = server.url
        self._server = server
        self.complaints: list[str] = []
        self.foreign: list[str] = []
        page.set_default_timeout(_PATIENCE_MS)
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", self._watch)

    def _note(self, message: Any) -> None:
        if message.type == "error":
            self.complaints.append(message.text)

    def _watch(self, request: Any) -> None:
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.foreign.append(request.url)

    def open(self, query: str = "", *, max_tokens: int | None = 48) -> None:
        self.page.goto(f"{self.url}/{query}")
        self.page.wait_for_selector("#rl-box textarea")
        # Waits that count frames would be ended with the page's own clocks.
        self.page.wait_for_function("window.rlPick && window.rlCalm", polling=100)
        if max_tokens is not None:
            self.set("max-tokens", max_tokens)
            self.set("temperature", 0)

    def set(self, name: str, value: float) -> None:
        field = self.page.locator(f"#rl-{name} input[type=number]")
        if not field.is_visible():
            self.page.get_by_role("button", name="Answer").click()
        field.fill(str(value))
        field.press("Tab")

    def submit(self, text: str) -> None:
        self.page.fill("#rl-box textarea", text)
        self.page.press("#rl-box textarea", "Enter")

    def begin(self, action: Callable[[], object]) -> None:
        """Act, and wait until an answer begins: a short one may be over before one looks."""
        n_before = len(self._server.prompts())
        action()
        deadline = time.monotonic() + _PATIENCE_MS / 1000
        while len(self._server.prompts()) == n_before:
            assert time.monotonic() < deadline, "no answer began"
            self.page.wait_for_timeout(50)

    def send(self, text: str) -> None:
        self.begin(lambda: self.submit(text))

    def wait(self) -> None:
        self.page.wait_for_selector("#rl-send")
        self.page.wait_for_selector("#rl-stop", state="hidden")

    def ask(self, text: str) -> str:
        self.send(text)
        self.wait()
        return self.answers()[-1]

    def answers(self) -> list[str]:
        return [
            text.strip() for text in self.page.locator("#rl-chat .bot.message").all_inner_texts()
        ]

    def questions(self) -> list[str]:
        return [
            text.strip() for text in self.page.locator("#rl-chat .user.message").all_inner_texts()
        ]

    def text(self, selector: str) -> str:
        return str(self.page.inner_text(selector))

    def until(self, selector: str, text: str) -> str:
        self.page.wait_for_function(
            "([s, t]) => document.querySelector(s)?.innerText.includes(t)",
            arg=[selector, text],
        )
        return self.text(selector)

    def tab(self, name: str) -> None:
        self.page.get_by_role("tab", name=name).click()

    def shoot(self, name: str, **options: Any) -> None:
        _SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.mouse.move(0, 0)
        self.page.screenshot(path=_SHOTS / f"{name}.png", **options)


@pytest.fixture
def new_chat(browser: Any, server: UiServer) -> Iterator[Callable[..., Chat]]:
    chats: list[Chat] = []

    def make(width: int = 1280, height: int = 820, **options: Any) -> Chat:
        context = browser.new_context(
            viewport={"width": width, "height": height}, accept_downloads=True, **options
        )
        chats.append(Chat(context.new_page(), server))
        return chats[-1]

    yield make
    for chat in chats:
        chat.page.context.close()
    for chat in chats:
        assert chat.complaints == []
        assert chat.foreign == []


@pytest.fixture
def chat(new_chat: Callable[..., Chat]) -> Chat:
    chat = new_chat()
    chat.open()
    return chat
