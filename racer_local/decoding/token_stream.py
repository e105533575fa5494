"""Tokens of one call, computed on the compute thread, read on any other."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Protocol

from racer_local.concurrency.call_queue import NO_THREAD, Call
from racer_local.concurrency.closing import Closing
from racer_local.concurrency.compute_thread import Computer
from racer_local.decoding.engine import FinishReason, Generation, TokenEvent
from racer_local.errors import ClosedError
from racer_local.speculation.stats import Stats
from racer_local.speculation.tree import Source

__all__ = ["TokenStream"]


class _Text(Protocol):
    """The text in a target's cache."""

    tokens: list[int]

    def rewind(self, n_tokens: int) -> None:
        """Shorten it."""


class TokenStream(Closing, Iterator[TokenEvent]):
    """Iterate for tokens; one decode step is computed whenever the last one's are used up.

    The turn is waited for when the first token is asked for. A stream that is closed, or dropped,
    leaves in the cache what was taken from it.

    Attributes:
        n_taken: tokens handed out.
    """

    def __init__(
        self,
        generation: Generation,
        target: _Text,
        compute: Computer,
        enter: Callable[[], Call],
        *,
        is_own_turn: bool,
        ahead: bool,
    ) -> None:
        """Prepare.

        Args:
            generation: gives the tokens.
            target: what it runs on.
            compute: where.
            enter: waits for the turn.
            is_own_turn: the turn ends with the stream.
            ahead: compute the next step while the reader is busy with the last one's tokens, so
                that the compute thread need not fall asleep and be woken in between.
        """
        self.n_taken = 0
        self._generation = generation
        self._target = target
        self._compute = compute
        self._enter = enter
        self._is_own_turn = is_own_turn
        self._goes_ahead = ahead
        self._call: Call | None = None
        self._ready: deque[TokenEvent] = deque()
        self._next: Future[tuple[list[TokenEvent], bool]] | None = None
        self._is_over = False
        self._is_closed = False

    @property
    def stats(self) -> Stats:
        """The counters, true for what was computed, which may be a step ahead."""
        return self._generation.stats

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it ended; None while there are tokens to come, and after an early close."""
        if self._call is not None and self._call.is_cancelled:
            return "cancelled"
        return self._generation.finish_reason if self._is_over and not self._ready else None

    def cancel(self) -> None:
        """End it within one decode step, or before it begins; from any thread."""
        self._generation.cancel()
        if self._call is not None:
            self._call.cancel()

    def _take_step(self) -> None:
        step = partial(_step, self._generation)
        if self._goes_ahead and not self._compute.is_current:
            begun = self._next or self._compute.begin(step)
            self._next = None
            events, self._is_over = self._compute.result(begun, self._generation.cancel)
            # The first tokens are to be shown at once: not before a busy processor.
            if not self._is_over and self.n_taken:
                self._next = self._compute.begin(step)
        else:
            events, self._is_over = self._compute.run(step, self._generation.cancel)
        self._ready.extend(events)

    def __next__(self) -> TokenEvent:
        """Return the next token."""
        if self._is_closed:
            raise StopIteration
        if self._call is None:
            self._call = self._enter()
            self._call.watch(self._generation.cancel)
        try:
            if not self._ready and not self._is_over and not self._call.is_cancelled:
                self._take_step()
        except BaseException:
            self.close()
            raise
        if self._call.is_cancelled:
            # Tokens that were computed ahead are not wanted any more.
            self._ready.clear()
        if not self._ready:
            self.close()
            raise StopIteration
        self.n_taken += 1
        return self._ready.popleft()

    def _ending(self) -> Callable[[], None] | None:
        """Return what has to be done on the compute thread at the end; None if nothing has."""
        is_whole = self._is_over and not self._ready
        if self._is_closed or self._call is None or is_whole:
            return None
        self._generation.cancel()
        return partial(_take_back, self._generation, self._target, self.n_taken)

    def close(self) -> None:
        """End it; tokens that nobody took leave the cache again."""
        ending, self._is_closed = self._ending(), True
        call = self._call
        if call is None:
            return
        call.watch(None)
        self._ready.clear()
        self._next = None
        try:
            if ending is not None:
                # While Python shuts down nothing has to be put in order any more.
                with contextlib.suppress(ClosedError):
                    self._compute.run(ending)
        finally:
            if self._is_own_turn:
                call.close()

    def __del__(self) -> None:
        """End what was dropped in the middle, without waiting: this may happen anywhere."""
        ending = self._ending()
        call = self._call
        if self._is_closed or call is None:
            return
        call.watch(None)
        # The turn is over soon, and may be waited for even here.
        call.thread = NO_THREAD

        def end() -> None:
            try:
                if ending is not None:
                    ending()
            finally:
                if self._is_own_turn:
                    call.close()

        with contextlib.suppress(ClosedError):
            self._compute.begin(end)


def _step(generation: Generation) -> tuple[list[TokenEvent], bool]:
    """Compute a step: its tokens, and whether it was the last one."""
    events = []
    # The target's own token is the last of its step.
    for event in generation:
        events.append(event)
        if event.source is Source.TARGET:
            return events, False
    return events, True


def _take_back(generation: Generation, target: _Text, n_taken: int) -> None:
    """End a generation, and leave in the cache what was taken of it."""
    generation.close()
    if generation.stats.n_generated:
        # As plain decoding leaves it: the last token has not been read yet.
        n_keep = len(generation.prompt) + max(0, n_taken - 1)
        target.rewind(min(n_keep, len(target.tokens)))
