"""The command line as users run it; in a process of its own where that is what matters."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from in_process import run_cli
from inputs import STEP, STEP_ANSWER

COMMAND = [sys.executable, "-m", "racer_local"]
DATA = Path(__file__).parents[1] / "data"


@pytest.fixture
def racer(
    smol_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    monkeypatch.setenv("RACER_MODELS_DIR", str(smol_path.parent))
    return run_cli


@pytest.fixture
def process(smol_path: Path) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    def run(
        *arguments: str | bytes, stdin: bytes = b"", **environment: str
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*COMMAND, *arguments],
            input=stdin,
            capture_output=True,
            check=False,
            env={**os.environ, "RACER_MODELS_DIR": str(smol_path.parent), **environment},
        )

    return run


def one_line(stderr: bytes) -> str:
    text = stderr.decode()
    assert text.count("\n") == 1, text
    assert "Traceback" not in text
    return text


def test_stdout_is_the_text_alone_and_stderr_the_figures(process) -> None:
    done = process("generate", "--raw", STEP, "--temp", "0", "-n", "32", "--budget", "8")
    assert done.returncode == 0
    assert done.stdout.decode() == STEP_ANSWER
    assert " tok/s · " in one_line(done.stderr)


def test_json_has_the_promised_keys(racer) -> None:
    options = ("--temp", "0", "-n", "32", "--draft", "racer", "--budget", "8", "--json")
    done = racer("generate", "--raw", "-", *options, stdin=STEP.encode())
    assert done.returncode == 0
    answer = json.loads(done.stdout)
    assert (answer["text"], answer["finish_reason"]) == (STEP_ANSWER, "length")
    assert len(answer["tokens"]) == 32
    stats = answer["stats"]
    assert {
        "draft", "n_prompt", "n_generated", "n_steps", "mean_accepted_tokens", "n_drafted",
        "n_accepted", "prefill_s", "decode_s", "tokens_per_s", "draft_s", "learn_s", "kv_s",
        "by_source",
    } <= stats.keys()  # fmt: skip
    assert set(stats["by_source"]) == {"retrieval", "logits", "phrasebook"}
    assert stats["n_generated"] == 32
    accepted = sum(source["accepted"] for source in stats["by_source"].values())
    assert stats["n_accepted"] == accepted > 0
    assert stats["mean_accepted_tokens"] == pytest.approx(1 + accepted / stats["n_steps"])


def test_piped_input_needs_no_dash_and_loses_only_its_last_newline(racer) -> None:
    with_newline = racer("generate", "--raw", "--temp", "0", "-n", "4", stdin=STEP.encode() + b"\n")
    assert with_newline.stdout.decode() == STEP_ANSWER[: len(with_newline.stdout.decode())]


def test_compare_tells_both_speeds(racer) -> None:
    done = racer("generate", "Say hi.", "--temp", "0", "-n", "8", "--budget", "4", "--compare")
    assert done.returncode == 0
    assert "plain " in done.stderr.decode()
    assert "the same text" in done.stderr.decode()


def test_a_stop_string_across_tokens_ends_the_text_before_it(racer) -> None:
    done = racer(
        "generate", "--raw", STEP, "--temp", "0", "-n", "32", "--json", "--stop", "12: open"
    )
    answer = json.loads(done.stdout)
    assert answer["text"] == STEP_ANSWER[: STEP_ANSWER.index("12: open")]
    assert answer["finish_reason"] == "stop"


def test_emoji_arrive_whole_in_any_locale(process) -> None:
    for extra in ({}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": ""}):
        done = process(
            "generate",
            "--raw",
            "-",
            "--temp",
            "0",
            "-n",
            "12",
            stdin=("👍🎉🚀\n" * 8 + "👍🎉").encode(),
            **extra,
        )
        assert done.returncode == 0
        assert "🚀" in done.stdout.decode("utf-8")


BAD_USAGE = {
    "no tokens": ["--max-tokens", "0"],
    "negative tokens": ["--max-tokens", "-5"],
    "negative temperature": ["--temp", "-1"],
    "nan": ["--temp", "nan"],
    "infinite": ["--repeat-penalty", "inf"],
    "top-p": ["--top-p", "1.5"],
    "threads": ["--threads", "0"],
    "context": ["--ctx", "-1"],
    "budget": ["--budget", "999"],
    "seed": ["--seed", "-1"],
    "empty stop": ["--stop", ""],
}


@pytest.mark.parametrize("arguments", BAD_USAGE.values(), ids=BAD_USAGE.keys())
def test_a_bad_setting_is_one_line_with_its_limits_and_exit_code_2(racer, arguments) -> None:
    done = racer("generate", "hello", *arguments)
    assert (done.returncode, done.stdout) == (2, b"")
    assert "must be" in one_line(done.stderr)


def test_bad_prompts_are_one_line_and_exit_code_2(racer) -> None:
    for arguments, stdin, reason in (
        (["generate", ""], b"", "empty"),
        (["generate", "  \n"], b"", "empty"),
        (["generate", "-"], b"", "empty"),
        (["generate", "-"], b"abc\xff\xfe", "not valid UTF-8 (byte 0xff at offset 3)"),
        (["generate", "caf\udce9"], b"", "not valid Unicode"),
    ):
        done = racer(*arguments, stdin=stdin)
        assert (done.returncode, done.stdout) == (2, b""), arguments
        assert reason in one_line(done.stderr)


def test_a_prompt_that_is_no_text_is_refused_from_a_shell_too(process) -> None:
    done = process("generate", b"caf\xe9")
    assert (done.returncode, done.stdout) == (2, b"")
    assert "not valid Unicode" in one_line(done.stderr)


def test_a_prompt_longer_than_the_context_names_both_counts(racer) -> None:
    done = racer("generate", "--raw", "one two three " * 200, "--ctx", "256")
    assert done.returncode == 1
    assert "601 tokens but the context holds 256" in one_line(done.stderr)


def test_a_context_that_cannot_fit_is_refused_with_what_would(racer) -> None:
    done = racer("generate", "hello", "--ctx", str(1 << 24))
    assert (done.returncode, done.stdout) == (1, b"")
    line = one_line(done.stderr)
    assert "16,777,216 tokens" in line
    assert "would fit (--ctx" in line


def test_a_model_that_is_none_is_one_line_and_exit_code_1(racer, tmp_path: Path, tiny_path) -> None:
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "page.gguf").write_text("<!DOCTYPE html><html></html>")
    cut = tmp_path / "cut 模型 🏁.gguf"
    cut.write_bytes(tiny_path("llama").read_bytes()[:-100])
    models = [tmp_path, tmp_path / "missing.gguf", *tmp_path.glob("*.gguf")]
    for model in (*models, tiny_path("t5"), tiny_path("bert")):
        done = racer("generate", "hello", "--model", str(model))
        assert (done.returncode, done.stdout) == (1, b""), model
        assert one_line(done.stderr).startswith("racer-local: ")


def test_a_base_model_continues_the_text_and_refuses_to_chat(racer) -> None:
    done = racer("generate", "The cat", "--model", "gemma-3-270m", "--temp", "0", "-n", "4")
    assert done.returncode == 0
    assert "no chat template" in done.stderr.decode()
    done = racer("generate", "The cat", "--model", "gemma-3-270m", "--chat")
    assert done.returncode == 2
    assert "--raw" in one_line(done.stderr)


def test_a_reader_that_leaves_ends_the_program_quietly(smol_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "generate", "--raw", STEP, "--temp", "0", "-n", "400"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "RACER_MODELS_DIR": str(smol_path.parent)},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(5)
    process.stdout.close()
    stderr = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 1
    assert stderr == b""


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_ctrl_c_ends_with_130_and_no_traceback(smol_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "generate", "--raw", STEP, "--temp", "0", "-n", "2000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "RACER_MODELS_DIR": str(smol_path.parent)},
        # In the background of a shell the signal is ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    process.stdout.read(5)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate()
    assert process.returncode == 130
    assert b"Traceback" not in stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_told(smol_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, "generate", "--raw", STEP, "--temp", "0", "-n", "4"],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            env={**os.environ, "RACER_MODELS_DIR": str(smol_path.parent)},
        )
    assert done.returncode == 1
    assert "No space left" in one_line(done.stderr)


def test_replay_prints_a_table_and_writes_json(racer, tmp_path: Path) -> None:
    trace, out = str(DATA / "smollm2_q4_1.npz"), tmp_path / "out.json"
    cost = f"{DATA / 'costs.json'}:gpu_flat"
    arguments = ("--draft", "pld", "--budget", "4", "--cost", cost, "--json", str(out))
    done = racer("replay", trace, *arguments)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().splitlines()[0].split()[:2] == ["category", "tokens"]
    result = json.loads(out.read_text())
    assert {"tokens", "steps", "mean_accepted_tokens", "nodes_per_step", "simulated_speedup"} <= (
        result["all"].keys()
    )
    assert result["all"]["mean_accepted_tokens"] > 1.5


def test_replay_of_something_else_is_one_line(racer, tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(b"PK\x03\x04 no")
    for arguments, code in (
        ([str(tmp_path / "missing.npz")], 1),
        ([str(tmp_path / "x.npz")], 1),
        ([str(DATA / "smollm2_q4_1.npz"), "--cost", "nowhere"], 2),
    ):
        done = racer("replay", *arguments)
        assert done.returncode == code
        one_line(done.stderr)
