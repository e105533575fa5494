"""One line of progress on stderr, where somebody is watching."""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType

__all__ = ["Progress"]

# What ends sooner needs no progress line.
_QUIET_S = 0.5
_REFRESH_S = 0.1


class Progress:
    """Rewrites one line on stderr; writes nothing unless stderr is a terminal."""

    def __init__(self, label: str, unit: str = "", scale: float = 1.0) -> None:
        """Show ``label`` with counts multiplied by ``scale``."""
        self._label = label
        self._unit = f" {unit}" if unit else ""
        self._scale = scale
        self._is_on = sys.stderr.isatty()
        self._next = time.monotonic() + _QUIET_S
        self._width = 0

    def show(self, done: float, total: float) -> None:
        """Say how far it is; cheap enough for every step."""
        now = time.monotonic()
        if not self._is_on or now < self._next or total <= 0:
            return
        self._next = now + _REFRESH_S
        done, total = done * self._scale, total * self._scale
        line = f"{self._label}: {done:,.0f} of {total:,.0f}{self._unit} ({done / total:.0%})"
        # A line that wraps cannot be rewritten.
        line = line[: max(shutil.get_terminal_size().columns - 1, 1)]
        sys.stderr.write("\r" + line.ljust(self._width))
        sys.stderr.flush()
        self._width = len(line)

    def clear(self) -> None:
        """Wipe the line."""
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
            self._width = 0

    def __enter__(self) -> Progress:
        """Return the line itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wipe it."""
        self.clear()
