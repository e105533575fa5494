"""The command line. Each command lives in a module of its own, loaded when it is called."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

from racer_local import __version__
from racer_local.errors import ConfigError, RacerError

__all__ = ["main"]

_COMMANDS = {
    "generate": "Answer one prompt, streaming to stdout.",
    "chat": "Talk to a model in the terminal.",
    "ui": "Chat in your browser and see where the speed comes from.",
    "models": "List, find, fetch, show and remove models.",
    "doctor": "Examine the machine, measure what decode steps cost, and give advice.",
    "serve": "Serve programs that speak OpenAI's API.",
    "bench": "Measure plain decoding, draft modes and other programs on the same prompts.",
    "warm": "Learn a model's habits from bundled prompts, so that drafting starts warm.",
    "verify": "Check that drafting leaves the output alone, on this machine.",
    "index": "Make a phrase book of files, to draft from.",
    "forget": "Remove what --remember kept of conversations.",
    "replay": "Drive a drafter over a recorded trace; needs no model.",
}
_INTERRUPTED = 130


class _LazyGroup(click.Group):
    """Knows its commands by name and imports one only to run it or to show its help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        module = importlib.import_module(f"racer_local.cli.{name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="racer-local")
def cli() -> None:
    """Generate faster from any GGUF model, with the same output.

    \b
    Example:
      racer-local generate "Why is the sky blue?"
    """


def main(args: list[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failure, 2 usage, 130 stopped by Ctrl-C."""
    argv = sys.argv[1:] if args is None else args
    _use_utf8()
    sys.exit(_run(argv))


def _run(argv: list[str]) -> int:
    debug = "--debug" in argv
    try:
        code: Any = cli.main(argv, prog_name="racer-local", standalone_mode=False)
        _flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    except BrokenPipeError:
        return _abandon_stdout()
    except RacerError as error:
        if debug:
            raise
        _complain(str(error))
        return 2 if isinstance(error, ConfigError) else 1
    except Exception as error:
        if debug:
            raise
        _complain(f"{type(error).__name__}: {error} (a fault of ours; --debug shows where)")
        return 1
    return code if isinstance(code, int) else 0


def _complain(message: str) -> None:
    one_line = " ".join(message.split())
    click.echo(f"racer-local: {one_line}", err=True)


def _flush() -> None:
    # Here a closed pipe or full disk is still an error that can be told.
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise RacerError(f"could not write to stdout: {error.strerror}") from error


def _abandon_stdout() -> int:
    """Leave quietly when the reader of our output has gone, as with ``| head``."""
    # Python flushes stdout once more at exit; let that go nowhere.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _use_utf8() -> None:
    # Model text has any character; a C locale or an old Windows code page has not.
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(encoding="utf-8", errors="replace")
