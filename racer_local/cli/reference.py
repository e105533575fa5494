"""Writes the command reference, ``docs/cli.md``, from the commands' own help.

``python -m racer_local.cli.reference``; a test keeps the file and the help equal.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from racer_local.cli import cli

__all__ = ["PATH", "render"]

PATH = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
_WIDTH = 100


def _helps(command: click.Command, name: str, parent: click.Context | None) -> Iterator[str]:
    settings: dict[str, Any] = {"terminal_width": _WIDTH, **command.context_settings}
    context = click.Context(command, info_name=name, parent=parent, **settings)
    yield f"## {context.command_path}\n\n```\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            if found is not None:
                yield from _helps(found, below, context)


def render() -> str:
    """Return the reference as Markdown."""
    head = (
        "# Command reference\n\nThis is what `--help` prints, for every command. It is written by "
        "`python -m racer_local.cli.reference`.\n"
    )
    return "\n".join([head, *_helps(cli, "racer-local", None)])


if __name__ == "__main__":
    PATH.write_text(render(), encoding="utf-8")
    sys.stdout.write(f"{PATH}\n")
