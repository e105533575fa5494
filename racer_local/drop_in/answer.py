"""One answer as it grows: tokens, text, stop strings, and why it ended."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from racer_local.concurrency.closing import Closing
from racer_local.decoding.text import StopScanner, TextDecoder
from racer_local.drop_in.token_stream import TokenStream
from racer_local.speculation.logprobs import TokenLogprobs
from racer_local.speculation.stats import Stats
from racer_local.speculation.tree import Source, TokenId

__all__ = ["Answer", "Criterion", "FinishReason", "StreamEvent"]

FinishReason: TypeAlias = Literal["stop", "length", "cancelled"]
Criterion: TypeAlias = Callable[[NDArray[np.int32], NDArray[np.float32]], bool]


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
    """Iterate for events; the last one has the finish reason.

    Attributes:
        tokens: ids of the answer so far, no end-of-generation token among them.
        text: text shown so far.
        logprobs: one entry per token, where they were asked for.
        finish_reason: None while it runs.
    """

    def __init__(
        self,
        stream: TokenStream,
        piece: Callable[[TokenId, Sequence[TokenId]], bytes],
        *,
        max_tokens: int,
        stops: Sequence[str],
        criteria: Sequence[Criterion] = (),
    ) -> None:
        """Follow a stream of tokens.

        Args:
            stream: is closed with the answer.
            piece: gives the bytes of a token after those before it.
            max_tokens: most tokens of the answer.
            stops: strings that end the answer and are not part of it.
            criteria: called with the ids so far and the next token's logits; True ends the
                answer before that token. The stream's sampler has to keep its rows.
        """
        self._stream = stream
        self._piece = piece
        self._max_tokens = max_tokens
        self._stops = StopScanner(stops)
        self._criteria = criteria
        self.tokens: list[TokenId] = []
        self.text = ""
        self.logprobs: list[TokenLogprobs] = []
        self.finish_reason: FinishReason | None = None
        self.last_row: NDArray[np.float32] | None = None
        self._events = self._run()

    @property
    def stats(self) -> Stats:
        """The call's counters."""
        return self._stream.stats

    def _run(self) -> Generator[StreamEvent, None, None]:
        decoder = TextDecoder(errors="ignore")
        sampler = self._stream.sampler
        n_history = len(sampler.history)
        with self._stream as stream:
            for event in stream:
                row = sampler.rows.popleft() if sampler.rows else None
                if row is not None:
                    self.last_row = row
                    ids = sampler.history_until(n_history + len(self.tokens))
                    if any([criterion(ids, row) for criterion in self._criteria]):
                        self.finish_reason = "stop"
                        break
                logprobs = sampler.logprobs.popleft() if sampler.logprobs else None
                if logprobs is not None:
                    self.logprobs.append(logprobs)
                new = decoder.push(self._piece(event.token, self.tokens))
                self.tokens.append(event.token)
                shown = self._stops.push(new)
                self.text += shown
                if self._stops.is_stopped:
                    self.finish_reason = "stop"
                elif len(self.tokens) >= self._max_tokens:
                    self.finish_reason = "length"
                yield self._event(event.token, shown, event.source, event.step, logprobs)
                if self.finish_reason is not None:
                    break
            if self.finish_reason is None:
                self.finish_reason = "cancelled" if stream.is_cancelled else stream.finish_reason
        rest = self._stops.flush()
        self.text += rest
        yield StreamEvent(None, rest, "target", 0, None, self.stats, self.finish_reason)

    def _event(
        self, token: TokenId, text: str, source: Source, step: int, logprobs: TokenLogprobs | None
    ) -> StreamEvent:
        return StreamEvent(token, text, source.name.lower(), step, logprobs, self.stats)

    def __next__(self) -> StreamEvent:
        """Return the next event."""
        return next(self._events)

    def close(self) -> None:
        """End the answer; what the cache holds is what was emitted."""
        self._events.close()
        self._stream.close()
