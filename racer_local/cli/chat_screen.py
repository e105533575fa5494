"""What a chat writes: answers to stdout, everything else to stderr."""

from __future__ import annotations

import os
import sys

import click

from racer_local.speculation.tree import Source

__all__ = ["COLORS", "Screen", "visible"]

COLORS = {Source.RETRIEVAL: "green", Source.LOGITS: "cyan", Source.PHRASEBOOK: "magenta"}

# A model may write anything, terminal commands included: C0 and C1 controls are shown, not obeyed.
_CONTROLS = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: 0x2421,
    **{code: 0xFFFD for code in range(0x80, 0xA0)},
}


def visible(text: str) -> str:
    """Return text that a terminal only prints: control characters become their pictures."""
    return text.translate(_CONTROLS)


class Screen:
    """Writes a chat; on a terminal with colours, unless ``NO_COLOR`` is set.

    Attributes:
        is_terminal: whether answers go to a terminal.
        has_colors: whether drafted tokens are coloured by their source.
    """

    def __init__(self) -> None:
        """Look at what stdout is."""
        self.is_terminal = sys.stdout.isatty()
        is_plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        self.can_style = self.is_terminal and not is_plain
        self.has_colors = self.can_style
        self._ends_line = True

    def write(self, text: str, source: Source | None = None, *, is_reasoning: bool = False) -> None:
        """Write a piece of an answer at once."""
        if not text:
            return
        self._ends_line = text.endswith("\n")
        if self.is_terminal:
            text = visible(text)
            color = COLORS.get(source) if self.has_colors and source is not None else None
            if color or (is_reasoning and self.can_style):
                text = click.style(text, fg=color, dim=is_reasoning or None)
        # None lets click find out; forced styles pass only where they were asked for.
        click.echo(text, nl=False, color=self.can_style or self.has_colors)

    def end_answer(self) -> None:
        """Go to a line of its own."""
        if not self._ends_line:
            click.echo("")
        self._ends_line = True

    def note(self, text: str) -> None:
        """Tell the user something on stderr."""
        for line in text.split("\n"):
            click.echo(visible(line), err=True)

    def stats(self, text: str) -> None:
        """Show a line of figures on stderr."""
        click.echo(click.style(text, dim=True) if self.can_style else text, err=True)
