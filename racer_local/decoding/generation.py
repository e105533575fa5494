"""One generation as its caller sees it: an iterator of tokens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter

from racer_local.concurrency.closing import Closing
from racer_local.decoding.decode_loop import (
    ABORTED,
    Decoding,
    FinishReason,
    Request,
    TokenEvent,
    decode_step,
    read_prompt,
)
from racer_local.decoding.occupancy import Occupancy
from racer_local.errors import BusyError, DecodeError
from racer_local.speculation.stats import Stats
from racer_local.speculation.target import Target
from racer_local.speculation.tree import TokenId

__all__ = ["Generation"]


class Generation(Closing, Iterator[TokenEvent]):
    """A running generation: iterate for tokens; close, or leave a ``with`` block, to end early.

    It holds the engine from the first token that is asked for until it ends, is closed, or is
    dropped.

    Attributes:
        prompt: token ids.
        stats: counters, true at every moment.
        finish_reason: None while it runs, and after an early close.
        is_cancelled: whether ``cancel`` was called.
    """

    def __init__(
        self,
        target: Target,
        occupancy: Occupancy,
        prepare: Callable[[Request, Stats], Decoding],
        request: Request,
    ) -> None:
        """Prepare; nothing runs before the first token is asked for."""
        self.prompt: Sequence[TokenId] = request.prompt
        self.stats = Stats(n_prompt=len(request.prompt))
        self.finish_reason: FinishReason | None = None
        self.is_cancelled = False
        self._target = target
        self._occupancy = occupancy
        self._prepare = prepare
        self._request = request
        # What it works with; nothing in it refers to this object, which has to end when dropped.
        self._decoding: Decoding | None = None
        self._has_turn = self._is_over = False
        self._step_lock = threading.Lock()
        self._stepping: int | None = None

    def __next__(self) -> TokenEvent:
        """Return the next token; runs a decode step where needed."""
        me = threading.get_ident()
        if self._stepping == me:
            raise BusyError("a callback of this generation asks for its next token")
        with self._step_lock:
            self._stepping = me
            try:
                event = None if self._is_over else self._next()
            except BaseException:
                self._end()
                raise
            finally:
                self._stepping = None
        if event is None:
            raise StopIteration
        return event

    def _next(self) -> TokenEvent | None:
        target = self._target
        try:
            decoding = self._decoding or self._begin()
            while not decoding.events and decoding.finish_reason is None:
                decode_step(target, [decoding])
        except DecodeError as error:
            if error.code != ABORTED or not target.is_stopped:
                raise
            self.finish_reason = "cancelled"
        else:
            if decoding.events:
                self.stats.n_generated += 1
                return decoding.events.popleft()
            self.finish_reason = decoding.finish_reason
        self._end()
        return None

    def _begin(self) -> Decoding:
        """Wait for the engine's turn, and read the prompt."""
        self._occupancy.begin(self)
        self._has_turn = True
        started = perf_counter()
        self._decoding = self._prepare(self._request, self.stats)
        read_prompt(self._target, self._decoding)
        self.stats.prefill_s = perf_counter() - started
        return self._decoding

    def _end(self) -> None:
        """Give the engine back; a second call does nothing."""
        self._is_over = True
        decoding, self._decoding = self._decoding, None
        if not self._has_turn:
            return
        self._has_turn = False
        target = self._target
        try:
            if decoding is not None:
                decoding.sampler.close()
                # The text keeps what was handed out, whoever stopped where, and as plain decoding
                # leaves it: the last token has not been read unless it led to the end. The next
                # prompt is then read from the same position on, in the same batches, whatever was
                # drafted here.
                n_handed = self.stats.n_generated
                n_read = n_handed if self.finish_reason == "stop" else max(0, n_handed - 1)
                target.rewind(min(len(self.prompt) + n_read, len(target.tokens)))
        finally:
            self._occupancy.end()

    def cancel(self) -> None:
        """End it within one decode step, or before it begins; from any thread."""
        self.is_cancelled = True
        self._occupancy.stop(self)

    def close(self) -> None:
        """End the generation; the engine is free for the next one.

        A step that is under way is stopped; on the thread that computes it (a callback closes
        the generation) it ends after this call.
        """
        if self._stepping is not None:
            self.cancel()
            if self._stepping == threading.get_ident():
                return
        with self._step_lock:
            self._end()

    def __del__(self) -> None:
        """End with the last reference, on whatever thread that goes."""
        if not self._is_over:
            self._end()
