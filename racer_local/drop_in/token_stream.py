"""Tokens of one call, computed on the compute thread, read on any other."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future

import numpy as np
from numpy.typing import NDArray

from racer_local.backend.chain import ChainSampler
from racer_local.backend.target import LlamaTarget
from racer_local.concurrency.call_queue import Call
from racer_local.concurrency.closing import Closing
from racer_local.concurrency.compute_thread import ComputeThread
from racer_local.config import GenerationConfig
from racer_local.decoding.engine import Engine, FinishReason, TokenEvent
from racer_local.errors import ClosedError
from racer_local.speculation.stats import Stats
from racer_local.speculation.tree import Source, TokenId

__all__ = ["TokenStream"]


class TokenStream(Closing, Iterator[TokenEvent]):
    """Iterate for tokens; one decode step is computed whenever the last one's are used up.

    Attributes:
        sampler: chooses the tokens; what it collects is one entry per token.
        n_taken: tokens handed out.
    """

    def __init__(
        self,
        engine: Engine,
        target: LlamaTarget,
        compute: ComputeThread,
        call: Call,
        prompt: Sequence[TokenId],
        sampler: ChainSampler,
        limits: GenerationConfig,
        *,
        on_prefill: Callable[[int, int], None] | None = None,
        on_prompt_rows: Callable[[NDArray[np.int32], NDArray[np.float32]], None] | None = None,
        ahead: bool = False,
    ) -> None:
        """Prepare; see ``Engine.generate`` for arguments and errors.

        With ``ahead`` the next step is computed while the reader is busy with the last one's
        tokens, and the compute thread need not fall asleep and be woken in between.
        """
        self.sampler = sampler
        self.n_taken = 0
        self._target = target
        self._compute = compute
        self._call = call
        self._n_prompt = len(prompt)
        self._ready: deque[TokenEvent] = deque()
        # A step that nobody takes has to be taken back.
        self._goes_ahead = ahead and target.can_rewind
        self._next: Future[tuple[list[TokenEvent], bool]] | None = None
        self._is_over = False
        self._generation = engine.generate(
            prompt,
            None,
            limits,
            make_sampler=lambda: sampler,
            on_prefill=on_prefill,
            on_prompt_rows=on_prompt_rows,
        )
        call.watch(self._generation.cancel)

    @property
    def stats(self) -> Stats:
        """The counters, true for what was computed, which may be a step ahead."""
        return self._generation.stats

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it ended; None while there are tokens to come, and after an early close."""
        return self._generation.finish_reason if self._is_over and not self._ready else None

    @property
    def is_cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._call.is_cancelled

    def _step(self) -> tuple[list[TokenEvent], bool]:
        """Compute a step: its tokens, and whether it was the last one."""
        events = []
        # The target's own token is the last of its step.
        for event in self._generation:
            events.append(event)
            if event.source is Source.TARGET:
                return events, False
        return events, True

    def _take_step(self) -> None:
        if self._goes_ahead and not self._compute.is_current:
            step = self._next or self._compute.begin(self._step)
            self._next = None
            events, self._is_over = self._compute.result(step, self._generation.cancel)
            # The first tokens are to be shown at once: not before a busy processor.
            if not self._is_over and self.n_taken:
                self._next = self._compute.begin(self._step)
        else:
            events, self._is_over = self._compute.run(self._step, self._generation.cancel)
        self._ready.extend(events)

    def __next__(self) -> TokenEvent:
        """Return the next token."""
        if not self._ready and not self._is_over and not self._call.is_cancelled:
            self._take_step()
        if self._call.is_cancelled:
            # Tokens that were computed ahead are not wanted any more.
            self._ready.clear()
        if not self._ready:
            self.close()
            raise StopIteration
        self.n_taken += 1
        return self._ready.popleft()

    def close(self) -> None:
        """End it; tokens that nobody took leave the cache again."""
        self._call.watch(None)
        try:
            if self._next is not None:
                step, self._next = self._next, None
                # Whatever it gave is not wanted, its error included.
                self._generation.cancel()
                with contextlib.suppress(Exception):
                    self._compute.result(step)
        finally:
            self._take_back()

    def _take_back(self) -> None:
        if self._ready or not self._is_over:
            self._ready.clear()
            # While Python shuts down nothing has to be put in order any more.
            with contextlib.suppress(ClosedError):
                self._compute.run(self._undo)

    def _undo(self) -> None:
        self._generation.close()
        if self._generation.stats.n_generated:
            # As plain decoding leaves it: the last token has not been read yet.
            n_keep = self._n_prompt + max(0, self.n_taken - 1)
            self._target.rewind(min(n_keep, len(self._target.tokens)))
        self._is_over = True
