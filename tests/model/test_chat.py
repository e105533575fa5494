"""The terminal chat with the default model, in a real pseudo-terminal and through pipes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from in_process import run_cli

COMMAND = [sys.executable, "-m", "racer_local", "chat"]
PASTE_START, PASTE_END = "\x1b[200~", "\x1b[201~"
PROMPT_IS_READY = r"\x1b\[\?2004h"
DRAFT_COLORS = re.compile(r"\x1b\[3[256]m")

in_a_terminal = pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")


@pytest.fixture
def piped(
    smol_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    monkeypatch.setenv("RACER_MODELS_DIR", str(smol_path.parent))

    def run(stdin: str | bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        given = stdin if isinstance(stdin, bytes) else stdin.encode()
        return run_cli("chat", "--temp", "0", *arguments, stdin=given)

    return run


@pytest.fixture
def terminal(smol_path: Path) -> Iterator[Callable[..., object]]:
    pexpect = pytest.importorskip("pexpect")
    children = []

    def start(*arguments: str, **environment: str):
        child = pexpect.spawn(
            COMMAND[0],
            [*COMMAND[1:], "--temp", "0", *arguments],
            env={
                **os.environ,
                "RACER_MODELS_DIR": str(smol_path.parent),
                "TERM": "xterm-256color",
                "PROMPT_TOOLKIT_NO_CPR": "1",
                **environment,
            },
            encoding="utf-8",
            dimensions=(30, 100),
            # No test of speed: a busy machine takes its time.
            timeout=300,
        )
        children.append(child)
        child.expect("Ctrl-D leaves")
        return child

    yield start
    for child in children:
        child.close(force=True)


def end_of(child) -> int:
    import pexpect

    child.expect(pexpect.EOF)
    child.wait()
    return child.exitstatus


STATS = r"tok/s .*context [\d,]+ of [\d,]+ \(\d+ %\)"


class TestPiped:
    def test_stdout_has_the_answers_alone(self, piped) -> None:
        questions = 'Say hi.\n\n"""\nSay\nbye.\n"""\n/stats\n'
        done = piped(questions, "-n", "8", "--system", "Be brief.")
        assert done.returncode == 0, done.stderr
        lines = done.stdout.decode().splitlines()
        assert len([line for line in lines if line]) >= 2
        assert b"\x1b" not in done.stdout + done.stderr
        assert done.stderr.decode().count(" tok/s · ") == 3
        assert "Traceback" not in done.stderr.decode()

    def test_a_later_question_knows_the_earlier_ones_and_reuses_their_cache(self, piped) -> None:
        done = piped("My name is Ada.\nWhat is my name?\n/stats\n", "-n", "12")
        found = re.search(r"prompt (\d+) tokens, of which (\d+) were", done.stderr.decode())
        assert found is not None
        n_prompt, n_reused = map(int, found.groups())
        assert n_prompt - 20 < n_reused < n_prompt
        assert n_reused > 40

    def test_a_hundred_turns_drop_the_oldest_with_a_notice(self, piped, tiny_path) -> None:
        lines = "".join(f"{i}\n" for i in range(100))
        model = ("--model", str(tiny_path("cycle")))
        done = piped(lines, *model, "-n", "6", "--ctx", "512")
        assert done.returncode == 0, done.stderr[-500:]
        stderr = done.stderr.decode()
        assert stderr.count(" tok/s · ") == 100
        dropped = re.findall(r"the oldest (?:(\d+) turns|turn) will no longer be read", stderr)
        assert 3 < len(dropped) < 50
        assert 60 < sum(int(n or 1) for n in dropped) < 100
        assert "error" not in stderr

    def test_an_error_is_told_and_the_chat_goes_on(self, piped) -> None:
        done = piped("/nonsense\n/set temp hot\nSay hi.\n" + "word " * 300 + "\n", "--ctx", "200")
        assert done.returncode == 1
        stderr = done.stderr.decode()
        assert "no command /nonsense" in stderr
        assert "must be a number" in stderr
        assert "tokens but the context holds 200" in stderr
        assert stderr.count(" tok/s · ") == 1
        assert done.stdout.strip()

    def test_input_that_is_no_text_is_refused(self, piped) -> None:
        done = piped(b"Say hi.\nabc\xff\n", "-n", "2")
        assert done.returncode == 1
        assert b"line 2 of standard input is not valid UTF-8" in done.stderr

    def test_nothing_to_ask_is_no_error(self, piped) -> None:
        done = piped("")
        assert (done.returncode, done.stdout) == (0, b"")

    def test_a_chat_is_saved_and_gone_on_with(self, piped, tmp_path: Path) -> None:
        path = tmp_path / "чат 🎉.json"
        first = piped(f"/system Be brief.\n你好 👋, say hi.\n/save {path}\n", "-n", "8")
        assert first.returncode == 0, first.stderr
        saved = json.loads(path.read_text(encoding="utf-8"))
        assert saved["system"] == "Be brief."
        assert saved["turns"][0]["user"] == "你好 👋, say hi."
        assert saved["turns"][0]["assistant"] == first.stdout.decode().removesuffix("\n")
        again = piped(f"/load {path}\n/system\n/regen\n", "-n", "8")
        assert again.stdout == first.stdout
        assert b"Be brief." in again.stderr
        longer = piped(f"Another one.\n/save {path}\n", "-n", "8", "--load", str(path))
        assert longer.returncode == 0
        assert len(json.loads(path.read_text(encoding="utf-8"))["turns"]) == 2

    def test_settings_models_and_modes_change_in_the_middle(self, piped, tiny_path) -> None:
        bad, tiny = tiny_path("bert"), tiny_path("llama-bpe")
        done = piped(
            f"/set seed 7\n/set\n/draft pld 4\nSay hi.\n/stats\n/draft off\n/draft racer 99\n"
            f"/model {bad}\n/model\n/model {tiny}\nhi\n",
            "-n",
            "4",
        )
        stderr = done.stderr.decode()
        assert "seed is 7" in stderr
        assert "draft pld, budget 4" in stderr
        assert "draft pld, seed 7" in stderr
        assert "trees of at most 64" in stderr
        assert "SmolLM2-135M-Instruct.Q4_1.gguf" in stderr
        assert "tiny-llama-bpe.gguf" in stderr
        assert stderr.count(" tok/s · ") == 3
        assert done.returncode == 1

    def test_exact_is_switched_in_the_middle(self, piped) -> None:
        done = piped("/exact\nSay hi.\n/exact on\n/regen\n/exact maybe\n", "-n", "8")
        stderr = done.stderr.decode()
        assert "exact is off" in stderr
        assert "exact is on" in stderr
        assert "/exact takes on or off" in stderr
        assert stderr.count(" tok/s · ") == 2

    def test_a_book_is_drafted_from_and_a_chat_is_kept_only_where_asked_for(
        self, piped, level_steps: None, isolated_home: Path, tmp_path: Path
    ) -> None:
        question, n = "Name the days of the week, one per line.\n", ("-n", "40")
        first = piped(question, *n)
        # Nothing is kept unless asked for.
        assert not any(isolated_home.rglob("memory/*.npz"))
        (tmp_path / "days.txt").write_bytes(first.stdout)
        book = tmp_path / "days.npz"
        indexed = run_cli("index", str(tmp_path / "days.txt"), "-o", str(book))
        assert indexed.returncode == 0, indexed.stderr
        again = piped(f"{question}/stats\n", *n, "--book", str(book))
        stderr = again.stderr.decode()
        assert (again.stdout, again.returncode) == (first.stdout, 0), stderr
        assert re.search(r"phrasebook: drafted \d+, accepted [1-9]", stderr), stderr
        assert re.search(r"\b(1 token|([2-9]|[1-9]\d+) tokens) from '.*days\.txt'", stderr)
        assert "remember" not in stderr
        kept = piped(question, *n, "--remember")
        assert kept.stdout == first.stdout
        (memory,) = isolated_home.rglob("memory/*.npz")
        assert kept.stderr.decode().count(str(memory)) == 2
        drafted = piped(f"{question}/stats\n/remember off\n", *n, "--remember")
        stderr = drafted.stderr.decode()
        assert drafted.stdout == first.stdout
        assert re.search(r"\b(1 token|([2-9]|[1-9]\d+) tokens) from 'conversation of", stderr), (
            stderr
        )
        # Taken back in time: what is kept is still the one chat.
        assert "this chat is not kept" in stderr
        assert "remembered in" not in stderr

    def test_cleared_turns_are_kept_too_and_books_ask_for_auto(self, piped, tmp_path) -> None:
        done = piped("Say hi.\n/clear\nSay bye.\n/draft pld\n/remember\n", "--remember", "-n", "4")
        stderr = done.stderr.decode()
        assert done.returncode == 0, stderr
        assert stderr.count("remembered in") == 2
        assert stderr.count("what is said here is kept in") == 2
        done = piped("Say hi.\n/draft pld\n", "--remember", "-n", "4")
        assert "used by draft mode auto only, not by pld" in done.stderr.decode()
        refused = piped("Say hi.\n", "--book", "any", "--draft", "racer")
        assert refused.returncode == 2
        assert b"used by --draft auto only" in refused.stderr

    def test_a_base_model_is_refused_with_the_way_out(self, piped) -> None:
        done = piped("hi\n", "--model", "gemma-3-270m")
        assert done.returncode == 2
        assert b"generate --raw" in done.stderr

    @pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
    def test_ctrl_c_ends_it_with_130(self, smol_path: Path) -> None:
        process = subprocess.Popen(
            [*COMMAND, "--temp", "0"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "RACER_MODELS_DIR": str(smol_path.parent)},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"Tell me a very long story about the sea.\n")
        process.stdin.flush()
        process.stdout.read(5)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate()
        assert process.returncode == 130
        assert b"Traceback" not in stderr


def say(child, text: str) -> None:
    child.expect(PROMPT_IS_READY)
    child.send(f"{text}\r")


def press(child, letter: str) -> None:
    child.expect(PROMPT_IS_READY)
    child.sendcontrol(letter)


@in_a_terminal
class TestTerminal:
    def test_ctrl_c_stops_the_answer_and_a_second_one_leaves(self, terminal) -> None:
        child = terminal()
        say(child, "Tell me a very long story about the sea.")
        # The line is sent, and the first words have come.
        child.expect(r"\x1b\[\?2004l")
        child.expect(r"[a-z]+ [a-z]+ ")
        child.sendcontrol("c")
        child.expect("stopped; what there is of it stays")
        child.expect(STATS)
        # At once, while the terminal is being set up for the next question.
        child.sendcontrol("c")
        assert end_of(child) == 130
        assert "Traceback" not in child.before

    def test_ctrl_c_while_the_prompt_is_read_takes_the_question_back(self, terminal) -> None:
        child = terminal("--ctx", "8192")
        child.expect(PROMPT_IS_READY)
        child.send(PASTE_START + "one two three four " * 1900 + PASTE_END)
        child.send("\r")
        child.expect("reading the prompt")
        child.sendcontrol("c")
        child.expect("stopped; the question is taken back")
        child.expect(STATS)
        say(child, "/stats")
        child.expect("0 turns")
        say(child, "Say hi.")
        child.expect(STATS)
        press(child, "d")
        assert end_of(child) == 0

    def test_ctrl_c_clears_a_line_first_and_ctrl_d_leaves(self, terminal) -> None:
        child = terminal()
        child.expect(PROMPT_IS_READY)
        child.send("half a line")
        child.expect("half a line")
        child.sendcontrol("c")
        child.sendcontrol("c")
        child.expect("Ctrl-C again")
        say(child, "/help")
        child.expect("/regen")
        press(child, "c")
        child.expect("Ctrl-C again")
        press(child, "d")
        assert end_of(child) == 0

    def test_pasted_lines_are_one_question_whatever_the_size_of_the_window(
        self, terminal, tmp_path: Path
    ) -> None:
        child = terminal("-n", "8")
        child.expect(PROMPT_IS_READY)
        child.send(PASTE_START + "one 你好\nttwo 🎉\nthree" + PASTE_END)
        child.setwinsize(12, 40)
        child.send("\r")
        child.setwinsize(50, 160)
        child.expect(r"context \d+ of")
        child.expect(PROMPT_IS_READY)
        child.send('"""four\rfive"""\r')
        child.setwinsize(5, 20)
        child.expect(r"of 4,096")
        child.setwinsize(30, 100)
        path = tmp_path / "chat.json"
        say(child, f"/save {path}")
        child.expect("2 turns")
        say(child, "/bye")
        assert end_of(child) == 0
        turns = json.loads(path.read_text(encoding="utf-8"))["turns"]
        assert [turn["user"] for turn in turns] == ["one 你好\nttwo 🎉\nthree", "four\nfive"]

    def test_drafted_tokens_are_coloured_unless_told_otherwise(self, terminal, tiny_path) -> None:
        model = ("--model", str(tiny_path("cycle")))
        for environment, is_colored in (({}, True), ({"NO_COLOR": "1"}, False)):
            child = terminal(*model, "-n", "24", "--draft", "racer", "--budget", "8", **environment)
            say(child, "Go round.")
            child.expect(STATS)
            assert bool(DRAFT_COLORS.search(child.before)) == is_colored
            say(child, "/colors off")
            child.expect("colours are off")
            say(child, "/regen")
            child.expect(STATS)
            assert not DRAFT_COLORS.search(child.before)
            press(child, "d")
            assert end_of(child) == 0

    def test_what_was_typed_is_kept_only_where_it_was_asked_for(
        self, terminal, tmp_path: Path, isolated_home: Path
    ) -> None:
        history = tmp_path / "history"
        child = terminal("--history", str(history))
        say(child, "/stats off")
        child.expect("answer: off")
        press(child, "d")
        assert end_of(child) == 0
        assert "/stats off" in history.read_text()
        assert history.stat().st_mode & 0o077 == 0
        child = terminal("--history", str(history))
        child.expect(PROMPT_IS_READY)
        child.send("\x1b[A\r")
        child.expect("answer: off")
        press(child, "d")
        assert end_of(child) == 0
        files = [path for path in isolated_home.rglob("*") if path.is_file()]
        assert not any(b"stats off" in path.read_bytes() for path in files)
