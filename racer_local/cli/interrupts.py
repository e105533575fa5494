"""Ctrl-C: counted at any moment, and acted upon only where that is safe."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Interrupts"]

_IMPATIENT = 3


class Interrupts:
    """Takes over SIGINT for a ``with`` block; call it on the main thread.

    Python's own handler raises wherever the program happens to be, half-way through setting the
    terminal up, say. This one counts, unless it is told otherwise.
    """

    def __init__(self) -> None:
        """Prepare; nothing changes before the block is entered."""
        self.count = 0
        self._on_first: Callable[[], object] | None = None
        self._raises = False
        self._previous: Any = None

    def take(self) -> int:
        """Return how often Ctrl-C was pressed since the last call."""
        count, self.count = self.count, 0
        return count

    @contextlib.contextmanager
    def stopping(self, on_first: Callable[[], object]) -> Iterator[None]:
        """Call ``on_first`` at the first Ctrl-C in the block, from a thread of its own.

        Whoever presses it once more leaves, and a third time does not want to wait for anything.
        A press from just before the block counts.
        """
        self._on_first = on_first
        try:
            yield
        finally:
            self._on_first = None

    @contextlib.contextmanager
    def raising(self) -> Iterator[None]:
        """Raise KeyboardInterrupt in the block, as Python does."""
        before, self._raises = self._raises, True
        try:
            if self.take():
                raise KeyboardInterrupt
            yield
        finally:
            self._raises = before

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._on_first is not None:
            self.count += 1
            if self.count == 1:
                # A handler runs in the middle of anything: a lock taken here could be our own.
                threading.Thread(target=self._on_first, daemon=True).start()
            elif self.count >= _IMPATIENT:
                raise KeyboardInterrupt
        elif self._raises:
            raise KeyboardInterrupt
        else:
            self.count += 1

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
