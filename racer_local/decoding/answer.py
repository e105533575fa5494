"""One answer as it grows: tokens, text, stop strings, and why it ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from racer_local.backend.chain import ChainSampler
from racer_local.concurrency.closing import Closing
from racer_local.decoding.engine import FinishReason, TokenEvent
from racer_local.decoding.text import StopScanner, TextDecoder
from racer_local.decoding.token_stream import TokenStream
from racer_local.speculation.logprobs import TokenLogprobs
from racer_local.speculation.stats import Stats
from racer_local.speculation.tree import Source, TokenId

__all__ = ["Answer", "Criterion", "PieceOf", "StreamEvent"]

Criterion: TypeAlias = Callable[[NDArray[np.int32], NDArray[np.float32]], bool]
PieceOf: TypeAlias = Callable[[TokenId, Sequence[TokenId]], bytes]


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One token and the text that can be shown since the last event.

    Attributes:
        token: its id; None in the last event, which has what was held back and the reason.
        text: whole characters; '' while a character or a possible stop string is unfinished.
        source: who proposed the token: ``retrieval``, ``logits``, ``phrasebook`` or ``target``.
        step: the decode step it came from; 0 for the token that the prompt itself gave.
        logprobs: log probabilities, where they were asked for.
        stats: running counters of the call: ``stats.as_dict()`` is a copy.
        finish_reason: in the last event: ``stop``, ``length`` or ``cancelled``.
    """

    token: TokenId | None
    text: str
    source: str
    step: int
    logprobs: TokenLogprobs | None
    stats: Stats
    finish_reason: FinishReason | None = None


class Answer(Closing, Iterator[StreamEvent]):
    """Iterate for events; the last one has the finish reason. Close to end it early.

    Attributes:
        prompt: ids of the prompt.
        tokens: ids of the answer so far, no end-of-generation token among them.
        sources: who proposed each of them.
        text: text shown so far.
        logprobs: one entry per token, where they were asked for.
        finish_reason: None while it runs, and after an early close.
        last_row: float32 [n_vocab], the logits that the latest token was chosen from, where rows
            were asked for.
    """

    def __init__(
        self,
        stream: TokenStream,
        prompt: Sequence[TokenId],
        piece: PieceOf,
        *,
        stops: Sequence[str],
        errors: Literal["replace", "ignore"] = "replace",
        sampler: ChainSampler | None = None,
        criteria: Sequence[Criterion] = (),
    ) -> None:
        """Follow a stream of tokens.

        Args:
            stream: is closed with the answer.
            prompt: what is answered.
            piece: gives the bytes of a token after those before it.
            stops: strings that end the answer and are not part of it.
            errors: what becomes of bytes that are no text.
            sampler: what collects rows and log probabilities, one entry per token.
            criteria: called with the ids so far and the next token's logits; True ends the
                answer before that token. The sampler has to keep its rows.
        """
        self._stream = stream
        self._piece = piece
        self._stops = StopScanner(stops)
        self._decoder = TextDecoder(errors)
        self._sampler = sampler
        self._criteria = criteria
        self._is_over = False
        self.prompt = prompt
        self.tokens: list[TokenId] = []
        self.sources: list[Source] = []
        self.text = ""
        self.logprobs: list[TokenLogprobs] = []
        self.finish_reason: FinishReason | None = None
        self.last_row: NDArray[np.float32] | None = None

    @property
    def stats(self) -> Stats:
        """The call's counters."""
        return self._stream.stats

    def __next__(self) -> StreamEvent:
        """Return the next event."""
        if self._is_over:
            raise StopIteration
        try:
            event = next(self._stream, None) if self.finish_reason is None else None
            told = None if event is None else self._told(event)
        except BaseException:
            self.close()
            raise
        if told is not None:
            return told
        self.finish_reason = self.finish_reason or self._stream.finish_reason
        self.close()
        rest = self._stops.flush()
        if self._stops.is_stopped:
            self.finish_reason = "stop"
        self.text += rest
        return StreamEvent(None, rest, "target", 0, None, self.stats, self.finish_reason)

    def _told(self, event: TokenEvent) -> StreamEvent | None:
        """Take a token; None if a criterion ends the answer before it."""
        logprobs = None
        if self._sampler is not None:
            if self._sampler.rows and self._is_ended_by(self._sampler.rows.popleft()):
                self.finish_reason = "stop"
                return None
            if self._sampler.logprobs:
                logprobs = self._sampler.logprobs.popleft()
                self.logprobs.append(logprobs)
        new = self._decoder.push(self._piece(event.token, self.tokens))
        self.tokens.append(event.token)
        self.sources.append(event.source)
        shown = self._stops.push(new)
        self.text += shown
        if self._stops.is_stopped:
            self.finish_reason = "stop"
        source = event.source.name.lower()
        return StreamEvent(event.token, shown, source, event.step, logprobs, self.stats)

    def _is_ended_by(self, row: NDArray[np.float32]) -> bool:
        self.last_row = row
        if not self._criteria or self._sampler is None:
            return False
        ids = self._sampler.history_until(len(self.prompt) + len(self.tokens))
        # All of them are asked: each may keep count.
        return any([criterion(ids, row) for criterion in self._criteria])

    def cancel(self) -> None:
        """End it within one decode step, or before it begins; from any thread."""
        self._stream.cancel()

    def close(self) -> None:
        """End the answer; what the cache holds is what was emitted."""
        self._is_over = True
        self._stream.close()
