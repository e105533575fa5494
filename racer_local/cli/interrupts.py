"""Ctrl-C while something runs: the first asks it to stop, later ones are counted."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Interrupts"]

_IMPATIENT = 3


class Interrupts:
    """Takes over SIGINT for a ``with`` block; call it on the main thread.

    Attributes:
        count: how often Ctrl-C was pressed.
    """

    def __init__(self, on_first: Callable[[], None]) -> None:
        """Call ``on_first`` at the first Ctrl-C, from a thread of its own."""
        self.count = 0
        self._on_first = on_first
        self._previous: Any = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count == 1:
            # A handler runs in the middle of anything: taking a lock here could wait for itself.
            threading.Thread(target=self._on_first, daemon=True).start()
        elif self.count >= _IMPATIENT:
            raise KeyboardInterrupt

    def __enter__(self) -> Interrupts:
        """Take over."""
        self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give it back."""
        signal.signal(signal.SIGINT, self._previous or signal.SIG_DFL)
