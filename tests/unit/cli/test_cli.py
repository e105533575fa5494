from __future__ import annotations

import os
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from racer_local import cli
from racer_local.cli.reference import PATH
from racer_local.errors import ConfigError, RacerError


def all_commands() -> list[str]:
    context = click.Context(cli.cli)
    names = []
    for name in cli._COMMANDS:
        command = cli.cli.get_command(context, name)
        below = command.list_commands(context) if isinstance(command, click.Group) else []
        names += [name, *(f"{name} {inner}" for inner in below)]
    return names


@pytest.mark.parametrize("command", all_commands())
def test_help_opens_with_an_example_and_fits_the_terminal(command: str) -> None:
    done = CliRunner().invoke(cli.cli, [*command.split(), "--help"], terminal_width=100)
    assert done.exit_code == 0
    lines = done.output.splitlines()
    assert all(len(line) <= 100 for line in lines)
    [start] = [i for i, line in enumerate(lines) if line.strip() in ("Example:", "Examples:")]
    assert lines[start + 1].strip().startswith(f"racer-local {command}")


def test_the_reference_says_what_help_says() -> None:
    written = PATH.read_text(encoding="utf-8")
    # In a process of its own: click remembers on a command how it was called first.
    script = (
        "import sys; from racer_local.cli.reference import render;"
        "sys.stdout.buffer.write(render().encode())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout.decode() == written, "run: python -m racer_local.cli.reference"
    for command in all_commands():
        assert f"## racer-local {command}\n" in written


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands_and_models(shell: str) -> None:
    def complete(*words: str) -> str:
        line = " ".join(words)
        environment = {
            **os.environ,
            "_RACER_LOCAL_COMPLETE": f"{shell}_complete",
            "COMP_WORDS": line,
            "COMP_CWORD": words[-1] if shell == "fish" else str(len(words) - 1),
        }
        done = subprocess.run(
            [sys.executable, "-m", "racer_local"],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )
        assert done.stderr == ""
        return done.stdout

    assert "generate" in complete("racer-local", "gen")
    assert "--temp" in complete("racer-local", "chat", "--te")
    assert "qwen3-0.6b" in complete("racer-local", "chat", "--model", "qwen3-0")
    assert "pull" in complete("racer-local", "models", "pu")


def test_the_command_list_is_shown_without_loading_any_command() -> None:
    script = (
        "import sys\nfrom racer_local.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit as end: assert end.code == 0\n"
        "assert not {'numpy', 'llama_cpp', 'racer_local.cli.generate'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RacerError("it broke\nbadly"), 1),
        (ConfigError("n is 0"), 2),
        (RuntimeError("surprise"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_every_failure_is_one_line_and_an_exit_code(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(cli.cli, "main", fail)
    with pytest.raises(SystemExit) as end:
        cli.main(["generate"])
    assert end.value.code == code
    stderr = capsys.readouterr().err
    assert stderr.count("\n") == (code != 130)
    assert "Traceback" not in stderr


def test_debug_lets_the_traceback_through(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RacerError("it broke")

    monkeypatch.setattr(cli.cli, "main", fail)
    with pytest.raises(RacerError):
        cli.main(["generate", "--debug"])
