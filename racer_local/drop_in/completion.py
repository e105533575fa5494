"""A completion, from an answer's events to OpenAI-shaped objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from racer_local.decoding.answer import Answer, PieceOf
from racer_local.drop_in.responses import Json, LogprobsFormat, Response
from racer_local.speculation.logprobs import TokenLogprobs, log_probs
from racer_local.speculation.tree import TokenId

__all__ = ["Completion"]


@dataclass(slots=True, kw_only=True)
class Completion:
    """What was asked for, and in which shape it is answered.

    Attributes:
        prompt: what the caller gave, text or ids.
        tokens: what the model reads of it.
        piece: gives the bytes of a token after those before it.
        bos: id of the BOS token; it is left out of log probabilities.
        model: name to answer under.
        n_logprobs: likeliest tokens to report for each place; None reports none.
        echo: put the prompt before the answer.
    """

    prompt: str | Sequence[TokenId]
    tokens: list[TokenId]
    piece: PieceOf
    bos: TokenId
    model: str
    n_logprobs: int | None = None
    echo: bool = False
    _echoed: list[TokenLogprobs] = field(default_factory=list)

    @property
    def prompt_rows_observer(
        self,
    ) -> Callable[[NDArray[np.int32], NDArray[np.float32]], None] | None:
        """What has to see the logits of the prompt, if it is echoed with log probabilities."""
        return self._take_rows if self.echo and self.n_logprobs is not None else None

    def _take_rows(self, places: NDArray[np.int32], logits: NDArray[np.float32]) -> None:
        # The row of a place is about the token after it.
        for place, row in zip(places, logits, strict=True):
            if place + 1 < len(self.tokens):
                self._echoed.append(log_probs(row, self.tokens[place + 1], self.n_logprobs or 0))

    def chunks(self, answer: Answer) -> Iterator[Json]:
        """Yield the chunks of a streamed answer, the finish reason in the last one."""
        response = Response(self.model)
        entries = LogprobsFormat(self.piece, self.bos, len(self.prompt))
        pending: list[tuple[TokenId, TokenLogprobs | None]] = []
        for event in answer:
            if event.logprobs is not None and event.token is not None:
                pending.append((event.token, event.logprobs))
            if event.text:
                yield response.chunk(event.text, entries.write(pending))
                pending.clear()
            if event.finish_reason is not None:
                yield response.chunk("", entries.write(pending), event.finish_reason)

    def whole(self, answer: Answer) -> Json:
        """Run the answer to its end and return it whole."""
        for _ in answer:
            pass
        text = answer.text
        if self.echo:
            text = self._prompt_text() + text
        # An empty prompt is read as BOS, which counts as the first token of the answer.
        n_extra = 1 if not len(self.prompt) else 0
        return Response(self.model).whole(
            text,
            self._logprobs(answer),
            answer.finish_reason,
            n_prompt=len(self.tokens),
            n_answer=len(answer.tokens) + n_extra,
        )

    def _prompt_text(self) -> str:
        if isinstance(self.prompt, str):
            return self.prompt
        # One list that grows: a copy for each token would take time with the square of them.
        before: list[TokenId] = []
        pieces = []
        for token in self.tokens:
            pieces.append(self.piece(token, before))
            before.append(token)
        return b"".join(pieces).decode("utf-8", errors="ignore")

    def _logprobs(self, answer: Answer) -> Json | None:
        if self.n_logprobs is None:
            return None
        places: list[tuple[TokenId, TokenLogprobs | None]] = []
        if self.echo:
            # Nothing stands before the first token that could have foretold it.
            first = 1 if self.tokens[0] == self.bos else 0
            known = [None, *self._echoed]
            places.extend(zip(self.tokens[first:], known[first:], strict=True))
        places.extend(zip(answer.tokens, answer.logprobs, strict=True))
        entries = LogprobsFormat(self.piece, self.bos, 0 if self.echo else len(self.prompt))
        return entries.write(places)
