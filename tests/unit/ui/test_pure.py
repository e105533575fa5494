"""The chat page's pure parts: queue, files, pictures."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from html import unescape
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from racer_local.cli.ui_package import ui_module
from racer_local.concurrency.call_queue import Call, CallQueue
from racer_local.errors import BusyError, ConfigError
from racer_local.speculation.stats import Stats
from racer_local.speculation.tree import Source

answers = ui_module("answer")
conversations = ui_module("conversation")
panels = ui_module("panels")
pictures = ui_module("tree_view")
turns = ui_module("turns")
Answer, Piece, StepView = answers.LiveAnswer, answers.Piece, answers.StepView
Conversation = conversations.Conversation

HOSTILE = '<script>alert(1)</script> & "quoted" <img src=http://evil.example/?q=1 onerror=x()>'


class TestTurns:
    def make(self) -> turns.Turns:
        calls = CallQueue()
        return turns.Turns(calls, turns.join_bounded(calls, 2))

    def test_first_come_first_served_with_a_place_to_look_at(self) -> None:
        queue = self.make()
        first, second, third = (queue.take(name) for name in "abc")
        assert [turn.n_ahead for turn in (first, second, third)] == [0, 1, 2]
        assert first.wait(0)
        assert not second.wait(0)
        first.close()
        assert second.wait(0)
        assert third.n_ahead == 1

    def test_a_full_queue_says_so(self) -> None:
        queue = self.make()
        for name in "abc":
            queue.take(name)
        with pytest.raises(BusyError, match="2 requests are waiting"):
            queue.take("d")

    def test_stop_reaches_ones_own_turn_only(self) -> None:
        queue = self.make()
        first, second = queue.take("a"), queue.take("b")
        cancelled: list[str] = []
        first.call.watch(lambda: cancelled.append("served"))
        queue.stop("b")
        assert second.is_cancelled.is_set()
        assert second.wait(0)
        assert not first.is_cancelled.is_set()
        assert cancelled == []
        queue.stop("a")
        assert cancelled == ["served"]

    def test_a_new_question_of_the_same_session_replaces_the_old_one(self) -> None:
        queue = self.make()
        old = queue.take("a")
        new = queue.take("a")
        assert old.is_cancelled.is_set()
        assert not new.is_cancelled.is_set()

    def test_whoever_waits_wakes_up(self) -> None:
        queue = self.make()
        first, second = queue.take("a"), queue.take("b")
        woken = threading.Thread(target=lambda: second.wait(60))
        woken.start()
        first.close()
        woken.join(60)
        assert not woken.is_alive()

    def test_a_closed_queue_cancels_everybody_and_takes_nobody(self) -> None:
        queue = self.make()
        waiting = [queue.take(name) for name in "ab"]
        queue.close()
        assert all(turn.is_cancelled.is_set() for turn in waiting)
        with pytest.raises(BusyError, match="being closed"):
            queue.take("c")

    def test_whoever_joins_while_the_queue_is_being_closed_is_cancelled_too(self) -> None:
        calls = CallQueue()

        def join(on_turn: Callable[[Call], None]) -> Call:
            queue.close()
            return calls.submit(on_turn)

        queue = turns.Turns(calls, join)
        assert queue.take("a").is_cancelled.is_set()


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
spoken = st.builds(
    lambda texts: [
        {"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)
    ],
    st.lists(texts, min_size=1, max_size=6),
)


class TestConversation:
    @given(messages=spoken, system=texts)
    def test_json_gives_back_what_went_in(
        self, messages: list[dict[str, str]], system: str
    ) -> None:
        conversation = Conversation(messages, system, "m.gguf")
        back = conversations.read_conversation(conversations.to_json(conversation))
        assert back == conversation

    @given(
        messages=st.one_of(
            spoken,
            st.just([{"role": "user", "content": "<!-- racer_local: assistant -->\nno\n"}]),
            st.just([{"role": "user", "content": "<!-- \\racer_local: user -->"}]),
            st.just([{"role": "user", "content": "### You\n\nHi\n\n"}]),
        ),
        system=texts,
    )
    def test_markdown_gives_back_what_went_in_but_for_line_ends(
        self, messages: list[dict[str, str]], system: str
    ) -> None:
        def unix(text: str) -> str:
            return text.replace("\r\n", "\n")

        conversation = Conversation(messages, system)
        text = conversations.to_markdown(conversation)
        back = conversations.read_conversation(text)
        assert [unix(m["content"]) for m in back.messages] == [unix(m["content"]) for m in messages]
        assert [m["role"] for m in back.messages] == [m["role"] for m in messages]
        assert unix(back.system) == unix(system)

    def test_a_list_of_messages_from_elsewhere(self) -> None:
        text = json.dumps(
            [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "你好 🤖"}]
        )
        conversation = conversations.read_conversation(text)
        assert conversation.system == "Be brief."
        assert conversation.messages == [{"role": "user", "content": "你好 🤖"}]

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("", "neither"),
            ("hello", "neither"),
            ("[" * 100_000, "neither"),
            ("3", "no messages"),
            ("{}", "no messages"),
            ("[]", "no messages"),
            ('{"format": "other", "messages": []}', "another version or program"),
            ('[{"role": "tool", "content": "x"}]', "message 1"),
            ('[{"role": "user", "content": 3}]', "message 1"),
            ('[{"role": "user", "content": "x"}, 5]', "message 2"),
            ("x" * (4 * 2**20 + 1), "too large"),
        ],
    )
    def test_other_files_are_refused_with_the_reason(self, text: str, reason: str) -> None:
        with pytest.raises(ConfigError, match=reason):
            conversations.read_conversation(text)

    def test_half_a_character_is_replaced(self) -> None:
        back = conversations.read_conversation('[{"role": "user", "content": "\\ud83d"}]')
        back.messages[0]["content"].encode("utf-8")

    def test_gradios_parts_become_text(self) -> None:
        history = [
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "file"}]},
            {"role": "assistant", "content": "b", "metadata": None},
            {"role": "assistant", "content": {"path": "/etc/passwd"}},
            {"role": "other", "content": "c"},
        ]
        assert conversations.flatten(history) == [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
        ]
        assert conversations.flatten(None) == []


def finished(*pieces: Piece) -> Answer:
    answer = Answer(pieces=list(pieces), stats=Stats(n_prompt=5, n_generated=3, n_steps=2))
    answer.done.set()
    return answer


def without_tags(html: str) -> str:
    return unescape(re.sub(r"<[^>]*>", "", html))


class TestPanels:
    def test_text_from_a_model_is_never_markup(self) -> None:
        pieces = [Piece(HOSTILE, Source.RETRIEVAL, 1)]
        shown = panels.speed_panel(finished(*pieces))
        assert "<script" not in shown
        assert "<img" not in shown
        assert HOSTILE in without_tags(panels.coloured(pieces))
        assert "<script" not in panels.note(HOSTILE)
        assert "<script" not in panels.bar(0.5, HOSTILE)

    def test_every_source_is_counted_and_reads_without_colour(self) -> None:
        pieces = [
            Piece("a", Source.TARGET, 0),
            Piece("b", Source.RETRIEVAL, 1),
            Piece("c", Source.LOGITS, 1),
            Piece("d", Source.TARGET, 1),
        ]
        rows = re.findall(r"<b>(\d+)</b><i>(\d+)%</i>", panels.legend(pieces))
        assert rows == [("2", "50"), ("1", "25"), ("1", "25")]
        style = (Path(panels.__file__).parent / "page.css").read_text(encoding="utf-8")
        for key, line in (("retrieval", "solid"), ("logits", "dotted"), ("phrasebook", "double")):
            rule = re.search(rf"mark\.rl-{key} \{{[^}}]*\}}", style)
            assert rule is not None
            assert f"underline {line}" in rule[0]

    def test_phrase_books_appear_in_the_legend_once_they_gave_something(self) -> None:
        assert "phrase book" not in panels.legend([])
        assert "phrase book" in panels.legend([Piece("x", Source.PHRASEBOOK, 1)])

    def test_tokens_per_step(self) -> None:
        answer = finished(
            Piece("a", Source.TARGET, 0),
            Piece("b", Source.LOGITS, 1),
            Piece("c", Source.TARGET, 1),
            Piece("d", Source.TARGET, 3),
        )
        assert answer.tokens_per_step() == [2, 0, 1]
        assert panels.step_plot([]) == ""
        assert panels.step_plot([1] * 500).count("<rect") == 120

    def test_the_meter_turns_red_before_the_context_is_full(self) -> None:
        assert "rl-full" not in panels.context_meter(80, 100)
        assert "rl-full" in panels.context_meter(95, 100)
        assert "width:100.0%" in panels.context_meter(500, 100)


class TestTree:
    STEP = StepView(
        number=7,
        texts=["the", " cat", " dog", " sat", HOSTILE],
        parents=[-1, 0, 0, 1, 2],
        sources=[Source.TARGET, Source.RETRIEVAL, Source.LOGITS, Source.RETRIEVAL, Source.LOGITS],
        probs=[1.0, 0.6, 0.2, 0.5, 0.1],
        accepted=[0, 1, 3],
        next_text=" down",
    )

    def test_the_accepted_path_and_nothing_else_is_marked_as_taken(self) -> None:
        drawn = pictures.draw_step(self.STEP)
        assert len(re.findall(r'class="rl-node [a-z-]+ rl-taken"', drawn)) == 3
        assert len(re.findall(r'class="rl-edge rl-taken"', drawn)) == 2
        assert "60% · retrieval" in drawn
        assert "20% · habit" in drawn
        assert "<script" not in drawn

    def test_no_two_nodes_share_a_place(self) -> None:
        drawn = pictures.draw_step(self.STEP)
        places = re.findall(r'<rect x="(\d+)" y="(\d+)"', drawn)
        assert len(places) == len(set(places)) == 5

    def test_a_step_is_told_in_words(self) -> None:
        told = without_tags(pictures.describe_step(self.STEP))
        assert told == (
            "Step 7: 4 guesses checked in one pass, 2 taken; then the model said “ down”: "
            "3 tokens in one step."
        )
        assert pictures.visible(" ") == "␣"
        assert pictures.visible("\n\t") == "⏎⇥"


def test_only_the_tabs_know_gradio_and_only_the_service_knows_models() -> None:
    folder = Path(panels.__file__).parent
    for path in folder.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        is_tab = path.stem.endswith("_tab") or path.stem in ("app", "controls", "model_bar")
        assert is_tab or "import gradio" not in text, path.name
        assert path.stem in ("service", "shared") or "session import" not in text, path.name
        assert "llama_cpp" not in text, path.name


def test_every_control_of_the_page_has_a_tip_and_every_tip_a_control() -> None:
    folder = Path(panels.__file__).parent
    tips = ui_module("tips").TIPS
    code = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*_tab.py"))
    code += (folder / "controls.py").read_text(encoding="utf-8")
    code += (folder / "model_bar.py").read_text(encoding="utf-8")
    made = r"gr\.(?:Slider|Dropdown|Button|Number|Checkbox|CheckboxGroup)\((?:[^()]|\([^()]*\))*\)"
    controls = re.findall(made, code)
    assert len(controls) > 15
    for control in controls:
        name = re.search(r'elem_id=f?"([^"]+)"', control)
        assert name is not None, control
        wanted = [tip for tip in tips if re.fullmatch(re.sub(r"\{\w+\}", r"\\w+", name[1]), tip)]
        assert wanted, name[1]
    for tip in tips:
        assert tip in code or tip.startswith("rl-export-"), tip
