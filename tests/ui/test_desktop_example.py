"""The desktop example of ``docs/embedding.md``, under a virtual display where there is no other."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.ui
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "desktop.py"


@pytest.fixture(scope="module")
def display() -> Iterator[None]:
    pytest.importorskip("tkinter")
    if sys.platform in ("win32", "darwin") or os.environ.get("DISPLAY"):
        yield
        return
    if shutil.which("Xvfb") is None:
        pytest.skip("there is no display, and no Xvfb to make one")
    reading, writing = os.pipe()
    command = ["Xvfb", "-displayfd", str(writing), "-screen", "0", "800x600x24"]
    server = subprocess.Popen(command, pass_fds=[writing], stderr=subprocess.DEVNULL)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        os.environ["DISPLAY"] = ":" + pipe.readline().strip()
    yield
    del os.environ["DISPLAY"]
    server.terminate()
    server.wait()


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("desktop_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def window(display: None, example: ModuleType, tiny_path: Callable[[str], Path]) -> Iterator[Any]:
    import tkinter

    root = tkinter.Tk()
    # It never ends by itself, and drafts of what it says are taken.
    llama = example.RacerLlama(str(tiny_path("cycle")), n_ctx=4096, draft="racer", budget=8)
    yield example.ChatWindow(root, llama)
    llama.close()


def until(window: Any, is_so: Callable[[], bool]) -> None:
    ends = time.monotonic() + 300
    while not is_so():
        assert time.monotonic() < ends, window.status["text"]
        window.root.update()
        time.sleep(0.01)


def test_a_question_is_answered_in_colour_and_the_next_one_can_be_asked(window: Any) -> None:
    for question in ("Write the numbers 1 2 3 1 2 3 1 2 3.", "Again!"):
        window.entry.insert(0, question)
        window.send.invoke()
        assert str(window.send["state"]) == "disabled"
        until(window, lambda: window.thread is None)
    assert [m["role"] for m in window.messages] == ["user", "assistant"] * 2
    assert window.messages[1]["content"] in window.text.get("1.0", "end")
    assert window.text.tag_ranges("target")
    assert window.text.tag_ranges("retrieval") or window.text.tag_ranges("logits")
    assert "tok/s" in window.status["text"]
    window.close()


def test_stop_ends_the_answer_and_closing_ends_the_program(window: Any) -> None:
    window.entry.insert(0, "Tell a very long story about the sea.")
    window.send.invoke()
    until(window, lambda: len(window.text.get("1.0", "end")) > 60)
    window.stop.invoke()
    until(window, lambda: window.thread is None)
    assert str(window.send["state"]) == "normal"
    window.entry.insert(0, "And another one.")
    window.send.invoke()
    window.close()
