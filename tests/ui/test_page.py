"""The chat page in a real browser, on a real model."""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

LONG = "Write a very long story about a robot who learns to paint."
# Slow to be answered: see ``served.py``.
STOPPED = f"{LONG} Then stop me."


def wait_for_end(server: Any, n_before: int, n_most: int) -> None:
    """Wait until one more answer has ended; it must not be by its own end."""
    while len(server.entries("ended")) == n_before:
        time.sleep(0.05)
    assert server.entries("ended")[-1]["n_tokens"] < n_most
    assert server.entries("ended")[-1]["ended"] in ("cancelled", "None")


def test_first_load_says_what_this_is(new_chat: Callable[..., Any]) -> None:
    chat = new_chat()
    page = chat.page
    page.add_init_script(
        "const frame = requestAnimationFrame; window.frames_drawn = 0;"
        "window.requestAnimationFrame = (f) => { window.frames_drawn++; return frame(f); }"
    )
    chat.open(max_tokens=None)
    assert "racer_local" in page.title()
    assert "SmolLM2" in chat.text("#rl-header")
    names = [name.strip() for name in page.get_by_role("tab").all_inner_texts()]
    assert list(dict.fromkeys(names)) == ["Chat", "Race", "Draft tree", "Benchmark"]
    page.wait_for_function("document.activeElement.closest('#rl-box') !== null")
    assert chat.text("#rl-meter").strip() == "0 of 1,024 tokens in context"
    chat.shoot("empty")
    # A page that rests draws nothing.
    drawn: list[int] = []
    while len(drawn) < 2 or drawn[-1] != drawn[-2]:
        assert len(drawn) < 30
        page.wait_for_timeout(1000)
        drawn.append(page.evaluate("window.frames_drawn"))


def test_an_answer_streams_and_is_coloured_by_source(chat: Any, server: Any) -> None:
    page = chat.page
    chat.set("max-tokens", 240)
    chat.send(LONG)
    page.wait_for_selector("#rl-chat .rl-tail")
    chat.until("#rl-chat .rl-tail", "t")
    chat.shoot("streaming")
    chat.wait()
    assert page.locator("#rl-chat .rl-tail").count() == 0
    counts = [int(text) for text in page.locator("#rl-panel .rl-legend b").all_inner_texts()]
    marked = "".join(page.locator("#rl-panel .rl-coloured mark").all_inner_texts())
    n_tokens = int(re.search(r"(\d+) tokens ·", chat.text("#rl-panel"))[1])  # type: ignore[index]
    assert sum(counts) in (n_tokens, n_tokens - 1)
    # Markdown shows the numbers of a list by itself.
    letters = [re.sub(r"[\W\d_]+", "", text) for text in (marked, chat.answers()[-1])]
    assert letters[0] == letters[1] != ""
    assert float(page.locator("#rl-panel .rl-figures b").nth(0).inner_text()) > 0
    assert page.locator("#rl-panel .rl-plot rect").count() > 0
    assert re.match(r"[1-9]\d* of 1,024 tokens", chat.text("#rl-meter").strip())
    chat.shoot("answer")


def test_stop_ends_the_work_and_the_next_question_is_answered(chat: Any, server: Any) -> None:
    n_ended = len(server.entries("ended"))
    chat.set("max-tokens", 400)
    chat.send(STOPPED)
    chat.page.wait_for_selector("#rl-chat .bot.message")
    chat.page.keyboard.press("Escape")
    wait_for_end(server, n_ended, 400)
    chat.wait()
    assert "stopped" in chat.text("#rl-panel")
    chat.set("max-tokens", 16)
    assert chat.ask("Say hello.")
    assert "Say hello." in server.prompts()[-1]
    assert len(chat.questions()) == 2


def test_stop_ends_the_reading_of_a_prompt_and_the_next_question_is_answered(
    chat: Any, server: Any
) -> None:
    page = chat.page
    n_steps = len(server.entries("step"))
    chat.send("stop reading me " + " ".join(f"word {number}" for number in range(180)))
    reading = chat.until("#rl-notice", "Reading the prompt")
    chat.shoot("reading")
    page.keyboard.press("Escape")
    chat.wait()
    n_read, n_all = (int(n) for n in re.findall(r"\d+", reading.replace(",", "")))
    assert n_read < n_all > 500
    # Not one token of the answer was computed.
    assert len(server.entries("step")) == n_steps
    assert chat.answers() == []
    chat.set("max-tokens", 16)
    assert chat.ask("Say hello.")
    assert "word 7" not in server.prompts()[-1]
    assert chat.questions() == ["Say hello."]


def test_retry_edit_undo_and_clear(chat: Any, server: Any) -> None:
    page = chat.page
    messages = page.locator("#rl-chat")
    assert chat.ask("Name a colour.")
    chat.begin(lambda: messages.locator("button[aria-label=Retry]").click())
    chat.wait()
    assert chat.questions() == ["Name a colour."]
    assert len(chat.answers()) == 1
    assert server.prompts()[-1] == server.prompts()[-2]
    messages.locator("button[aria-label=Edit]").first.click()
    box = page.locator("#rl-chat textarea").first
    box.fill("Name a fruit.")
    chat.begin(lambda: messages.locator("button[aria-label=Submit]").first.click())
    chat.wait()
    assert chat.questions() == ["Name a fruit."]
    assert "Name a fruit." in server.prompts()[-1]
    assert "Name a colour." not in server.prompts()[-1]
    messages.locator("button[aria-label=Undo]").click()
    page.wait_for_function("document.querySelectorAll('#rl-chat .message').length === 0")
    assert page.input_value("#rl-box textarea") == "Name a fruit."
    chat.ask("Name a river.")
    messages.locator("button[aria-label=Clear]").first.click()
    chat.until("#rl-panel", "Ask something")
    assert chat.questions() == []


def test_clear_while_an_answer_is_written_leaves_nothing(chat: Any, server: Any) -> None:
    page = chat.page
    chat.set("max-tokens", 400)
    chat.send(STOPPED)
    page.wait_for_selector("#rl-chat .rl-tail")
    page.locator("#rl-chat button[aria-label=Clear]").first.click()
    chat.wait()
    page.wait_for_timeout(1000)
    assert chat.questions() == chat.answers() == []
    chat.set("max-tokens", 16)
    assert chat.ask("Say hello.")
    assert STOPPED not in server.prompts()[-1]


def test_another_model_and_back_and_a_broken_one(chat: Any, broken_path: Path) -> None:
    page = chat.page

    def load(name: str) -> None:
        page.fill("#rl-model input", name)
        page.press("#rl-model input", "Enter")
        page.press("#rl-model input", "Tab")
        page.click("#rl-load")

    load(str(broken_path))
    page.wait_for_selector("#rl-model-status .rl-error")
    assert "broken.gguf" in chat.text("#rl-model-status")
    chat.shoot("error")
    assert chat.ask("Say hello.")
    load("gemma-3-270m-q4_k_m.gguf")
    chat.until("#rl-header", "gemma-3-270m")
    assert "base model" in chat.text("#rl-header")
    assert chat.ask("The capital of France is")
    load("SmolLM2-135M-Instruct.Q4_1.gguf")
    chat.until("#rl-header", "SmolLM2")
    assert chat.ask("Say hello.")


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(chat: Any) -> None:
    chat.send("long " * 2000)
    chat.wait()
    text = chat.until("#rl-notice", "1024")
    assert re.search(r"the prompt has \d{4} tokens but the context holds 1024", text)
    # The next question takes its place.
    assert chat.ask("Say hello.")
    assert len(chat.questions()) == 1


def test_two_tabs_take_turns_and_never_see_each_other(
    new_chat: Callable[..., Any], server: Any
) -> None:
    one, other = new_chat(), new_chat()
    one.open(max_tokens=200)
    other.open(max_tokens=32)
    before = len(server.prompts())
    # It goes on until it is stopped, and the other one waits for that.
    one.send(f"The secret word is blue-kite. {STOPPED}")
    one.page.wait_for_selector("#rl-chat .bot.message")
    other.submit("The secret word is red-anchor. Say hello.")
    other.until("#rl-notice", "Waiting for 1 before you.")
    one.page.keyboard.press("Escape")
    one.wait()
    other.wait()
    one.set("max-tokens", 16)
    one.ask("What is the secret word? Is it red?")
    other.ask("What is the secret word? Is it blue?")
    prompts = server.prompts()[before:]
    assert len(prompts) == 4
    mine = [prompt for prompt in prompts if "blue-kite" in prompt]
    theirs = [prompt for prompt in prompts if "red-anchor" in prompt]
    assert len(mine) == len(theirs) == 2
    assert not any("red-anchor" in prompt for prompt in mine)
    assert len(one.answers()) == len(other.answers()) == 2


def test_a_closed_tab_ends_its_answer(new_chat: Callable[..., Any], server: Any) -> None:
    chat = new_chat()
    n_ended = len(server.entries("ended"))
    chat.open(max_tokens=900)
    chat.send(STOPPED)
    chat.page.wait_for_selector("#rl-chat .bot.message")
    chat.page.close()
    wait_for_end(server, n_ended, 900)


def test_a_race_has_two_clocks_and_a_verdict(chat: Any) -> None:
    page = chat.page
    chat.set("max-tokens", 64)
    chat.tab("Race")
    page.click("#rl-race-go")
    page.wait_for_selector("#rl-verdict .rl-verdict")
    verdict = chat.text("#rl-verdict")
    assert re.search(r"RACER was|Equally fast", verdict)
    texts = [page.inner_text(f"#rl-race-{side} .rl-lane-text") for side in ("plain", "drafted")]
    assert ("exactly the same text" in verdict) == (texts[0] == texts[1])
    for side in ("plain", "drafted"):
        assert float(page.inner_text(f"#rl-race-{side} .rl-clock").removesuffix(" s")) > 0
    chat.shoot("race")


def test_exact_keeps_the_chat_and_makes_the_race_end_with_equal_texts(
    chat: Any, server: Any
) -> None:
    page = chat.page
    answer = chat.ask("Name a colour.")
    chat.set("max-tokens", 64)
    page.evaluate(
        "new MutationObserver(() => { window.saw_progress ||= "
        "!!document.querySelector('#rl-model-status .rl-progress'); })"
        ".observe(document.querySelector('#rl-model-status'), {childList: true, subtree: true})"
    )
    page.check("#rl-exact input")
    chat.until("#rl-header", "· exact")
    # The model was opened anew in sight of the user, and the conversation goes on.
    assert page.evaluate("window.saw_progress")
    assert chat.answers() == [answer]
    assert chat.ask("And a fruit.")
    assert "Name a colour." in server.prompts()[-1]
    chat.shoot("exact")
    chat.tab("Race")
    page.click("#rl-race-go")
    page.wait_for_selector("#rl-verdict .rl-verdict")
    assert "exactly the same text" in chat.text("#rl-verdict")
    page.uncheck("#rl-exact input")
    page.wait_for_function("!document.querySelector('#rl-header').innerText.includes('· exact')")


def test_the_draft_tree_can_be_stepped_through(chat: Any) -> None:
    page = chat.page
    page.click("#rl-mode input")
    page.get_by_role("option", name="racer").click()
    chat.page.locator("#rl-budget input[type=number]").fill("8")
    chat.page.locator("#rl-budget input[type=number]").press("Tab")
    chat.ask("Write the word house ten times.")
    chat.tab("Draft tree")
    page.wait_for_selector("#rl-tree svg")
    first = chat.text("#rl-tree-said")
    assert re.search(r"Step \d+: \d+ guess(es)? checked in one pass", first)
    assert page.locator("#rl-tree .rl-node.rl-root").count() == 1
    page.click("#rl-tree-on")
    page.wait_for_function(
        "old => document.querySelector('#rl-tree-said').innerText !== old", arg=first
    )
    page.click("#rl-tree-on")
    page.wait_for_timeout(500)
    chat.shoot("tree")
    taken = page.locator("#rl-tree .rl-node.rl-taken").count()
    told = int(re.search(r"pass, (\d+) taken", chat.text("#rl-tree-said"))[1])  # type: ignore[index]
    assert taken == told + 1


def test_a_benchmark_can_be_started_and_stopped(chat: Any, server: Any) -> None:
    page = chat.page
    chat.tab("Benchmark")
    for name, value in (("tokens", "64"), ("count", "3")):
        page.locator(f"#rl-bench-{name} input[type=number]").fill(value)
        page.locator(f"#rl-bench-{name} input[type=number]").press("Tab")
    page.click("#rl-bench-go")
    page.wait_for_selector("#rl-bench-plot .rl-bench-row")
    page.click("#rl-bench-stop")
    page.wait_for_selector("#rl-bench-go")
    assert re.search(r"\d prompts? measured", chat.text("#rl-bench-status"))
    assert page.locator("#rl-bench-plot .rl-bench-bar").count() >= 2
    chat.shoot("bench")
    chat.tab("Chat")
    assert chat.ask("Say hello.")


def test_export_and_import(chat: Any, tmp_path: Path) -> None:
    page = chat.page
    chat.ask("Say 你好 🤖 مرحبا.")
    answer = chat.answers()[-1]
    for kind in ("json", "md"):
        with page.expect_download() as download:
            page.click(f"#rl-export-{kind}")
        download.value.save_as(tmp_path / f"c.{kind}")
    exported = json.loads((tmp_path / "c.json").read_text(encoding="utf-8"))
    assert exported["messages"][0]["content"] == "Say 你好 🤖 مرحبا."
    for kind in ("json", "md"):
        chat.open()
        with page.expect_file_chooser() as chooser:
            page.click("#rl-import")
        chooser.value.set_files(tmp_path / f"c.{kind}")
        chat.until("#rl-notice", "Imported 2 messages")
        assert chat.answers() == [answer]
    (tmp_path / "bad.json").write_text("{}", encoding="utf-8")
    with page.expect_file_chooser() as chooser:
        page.click("#rl-import")
    chooser.value.set_files(tmp_path / "bad.json")
    chat.until("#rl-notice", "no messages")
    assert chat.answers() == [answer]


HOSTILE = """Look: <script>window.pwned = 1</script>
<img src="http://127.0.0.1:9/beacon" onerror="window.pwned = 2">
![beacon](http://127.0.0.1:9/markdown)
[click](javascript:window.pwned=3) <a href="javascript:window.pwned=4">here</a>
<iframe src="http://127.0.0.1:9/frame"></iframe><svg onload="window.pwned = 5"></svg>
<form action="http://127.0.0.1:9/form"><button>send</button></form>

```html
<script>window.pwned = 6</script>
```
"""


def test_markup_in_an_answer_does_nothing(new_chat: Callable[..., Any], tmp_path: Path) -> None:
    chat = new_chat()
    chat.open()
    page = chat.page
    loaded: list[str] = []
    page.on("requestfinished", lambda request: loaded.append(request.url))
    said = [{"role": "user", "content": HOSTILE}, {"role": "assistant", "content": HOSTILE}]
    (tmp_path / "hostile.json").write_text(json.dumps(said), encoding="utf-8")
    with page.expect_file_chooser() as chooser:
        page.click("#rl-import")
    chooser.value.set_files(tmp_path / "hostile.json")
    chat.until("#rl-notice", "Imported 2 messages")
    page.wait_for_timeout(1000)
    for link in page.locator("#rl-chat .message a").all():
        assert not (link.get_attribute("href") or "").lower().startswith("javascript")
    assert page.evaluate("window.pwned") is None
    assert page.locator("#rl-chat .message iframe").count() == 0
    assert page.locator("#rl-chat .message script").count() == 0
    assert not [url for url in loaded if ":9/" in url]
    # The browser says that it refused to load them, which is what is wanted here.
    assert all("Content Security Policy" in text for text in chat.complaints), chat.complaints
    chat.complaints.clear()
    chat.foreign.clear()


def test_long_conversations_phones_and_the_dark(
    new_chat: Callable[..., Any], tmp_path: Path
) -> None:
    words = "unbroken" * 60
    said = []
    for number in range(40):
        said.append({"role": "user", "content": f"Question {number}: مرحبا بالعالم {words}"})
        said.append({"role": "assistant", "content": f"你好 {number} 🤖\n\n```\n{words}\n```"})
    (tmp_path / "long.json").write_text(json.dumps(said[:4]), encoding="utf-8")
    (tmp_path / "forty.json").write_text(
        json.dumps([{**m, "content": m["content"][:24]} for m in said]), encoding="utf-8"
    )
    phone = new_chat(390, 844, color_scheme="dark")
    phone.open("?__theme=dark", max_tokens=None)
    with phone.page.expect_file_chooser() as chooser:
        phone.page.click("#rl-import")
    chooser.value.set_files(tmp_path / "long.json")
    phone.until("#rl-notice", "Imported 4 messages")
    assert phone.page.evaluate("document.documentElement.scrollWidth") <= 390
    for part in ("#rl-chat", "#rl-send", "#rl-panel", "#rl-load"):
        box = phone.page.locator(part).bounding_box()
        assert box["x"] >= 0, part
        assert box["x"] + box["width"] <= 390, part
    phone.page.evaluate("window.scrollTo(0, 0)")
    phone.shoot("phone-dark")
    chat = new_chat()
    chat.open(max_tokens=32)
    with chat.page.expect_file_chooser() as chooser:
        chat.page.click("#rl-import")
    chooser.value.set_files(tmp_path / "forty.json")
    chat.until("#rl-notice", "Imported 80 messages")
    assert chat.ask("And now?")
    assert len(chat.questions()) == 41


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "localhost.evil.com"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
    ],
)
@pytest.mark.parametrize("path", ["/", "/config", "/gradio_api/queue/join", "/gradio_api/upload"])
def test_strangers_are_refused_on_every_path(
    server: Any, path: str, headers: dict[str, str]
) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    for method in ("GET", "POST"):
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        connection.request(method, path, b"{}" if method == "POST" else None, headers)
        answer = connection.getresponse()
        assert answer.status == 403
        assert answer.headers["Access-Control-Allow-Origin"] is None
        answer.read()
        connection.close()


def test_no_function_of_the_page_is_a_public_api(server: Any) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    connection.request("GET", "/gradio_api/info")
    described = json.loads(connection.getresponse().read())
    connection.close()
    assert described["named_endpoints"] == {}
    assert described["unnamed_endpoints"] == {}
