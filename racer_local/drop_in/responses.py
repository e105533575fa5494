"""Answers in the shape of OpenAI's completions, as upstream returns them. Layer: pure."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from racer_local.speculation.logprobs import TokenLogprobs
from racer_local.speculation.tree import TokenId

__all__ = ["Json", "LogprobsFormat", "Response"]

Json: TypeAlias = dict[str, Any]


class LogprobsFormat:
    """Writes log probabilities the way of the completions API."""

    def __init__(
        self, piece: Callable[[TokenId, Sequence[TokenId]], bytes], bos: TokenId, offset: int
    ) -> None:
        """Start at character ``offset``; the BOS token is left out wherever it comes."""
        self._piece = piece
        self._bos = bos
        self._offset = offset
        self._before: list[TokenId] = []

    def _text(self, token: TokenId) -> str:
        return self._piece(token, self._before).decode("utf-8", errors="ignore")

    def write(self, places: Sequence[tuple[TokenId, TokenLogprobs | None]]) -> Json | None:
        """Return the entry of tokens that follow those written before; None without any."""
        lists: Json = {"tokens": [], "text_offset": [], "token_logprobs": [], "top_logprobs": []}
        for token, logprobs in places:
            text = self._text(token)
            if token != self._bos:
                lists["tokens"].append(text)
                lists["text_offset"].append(self._offset)
                lists["token_logprobs"].append(logprobs.logprob if logprobs else None)
                top = None
                if logprobs is not None:
                    top = {self._text(other): value for other, value in logprobs.top}
                    top[text] = logprobs.logprob
                lists["top_logprobs"].append(top)
            self._offset += len(text)
            self._before.append(token)
        return lists if lists["tokens"] else None


class Response:
    """Identity of one answer, and the objects it is told in."""

    def __init__(self, model: str) -> None:
        """Make a new identity."""
        self._head: Json = {
            "id": f"cmpl-{uuid.uuid4()}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }

    def chunk(
        self, text: str, logprobs: Json | None = None, finish_reason: str | None = None
    ) -> Json:
        """Return a part of a streamed answer."""
        choice = {"text": text, "index": 0, "logprobs": logprobs, "finish_reason": finish_reason}
        return {**self._head, "choices": [choice]}

    def whole(
        self,
        text: str,
        logprobs: Json | None,
        finish_reason: str | None,
        *,
        n_prompt: int,
        n_answer: int,
    ) -> Json:
        """Return a whole answer, with its token counts."""
        usage = {
            "prompt_tokens": n_prompt,
            "completion_tokens": n_answer,
            "total_tokens": n_prompt + n_answer,
        }
        return {**self.chunk(text, logprobs, finish_reason), "usage": usage}
