"""The chat page that ``serve --ui`` offers, in a real browser that has to bring the key."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
KEY = "open sésame"

pytestmark = pytest.mark.slow


@pytest.fixture
def url(smol_path: Path) -> Iterator[str]:
    pytest.importorskip("gradio", reason="the chat page's packages are not installed")
    command = [sys.executable, "-m", "racer_local", "serve", "--ui", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--model", str(smol_path), "--ctx", "1024"],
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": str(ROOT), "RACER_API_KEY": KEY},
    )
    assert process.stderr is not None
    found = None
    for line in process.stderr:
        found = re.search(r"the chat page is at (\S+)", line) or found
        if "is ready" in line:
            break
    assert found is not None
    yield found[1]
    process.terminate()
    assert process.wait(300) == 0
    process.stderr.close()


def test_a_browser_with_the_key_chats_and_one_without_sees_nothing(browser: Any, url: str) -> None:
    stranger = browser.new_context()
    # What Chromium says where nobody is there to type a password.
    with pytest.raises(Exception, match="ERR_INVALID_AUTH_CREDENTIALS"):
        stranger.new_page().goto(url)
    stranger.close()
    context = browser.new_context(http_credentials={"username": "me", "password": KEY})
    page = context.new_page()
    page.set_default_timeout(300_000)
    faults: list[str] = []
    page.on("response", lambda r: faults.append(r.url) if r.status >= 400 else None)
    page.goto(url)
    page.wait_for_selector("#rl-box textarea")
    page.fill("#rl-box textarea", "Name a colour.")
    page.press("#rl-box textarea", "Enter")
    page.wait_for_selector("#rl-chat .bot.message")
    page.wait_for_selector("#rl-stop", state="hidden")
    assert page.locator("#rl-chat .bot.message").first.inner_text().strip()
    assert [name for name in page.get_by_role("tab").all_inner_texts() if name == "Benchmark"] == []
    # Browsers ask for a manifest without any credentials.
    assert [each for each in faults if not each.endswith("/manifest.json")] == []
    context.close()
