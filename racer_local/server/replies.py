"""What goes out: OpenAI's objects, whole and in chunks. Layer: pure."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from racer_local.server.event_stream import Delta, Figures, Final, Logprob
from racer_local.server.tool_text import Bit

__all__ = ["DONE", "ChatReply", "CompletionReply", "Reply", "sse", "timings", "usage"]

Json: TypeAlias = dict[str, Any]
DONE = b"data: [DONE]\n\n"


def sse(event: Json) -> bytes:
    """Encode a server-sent event."""
    return b"data: %s\n\n" % json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()


def usage(all_figures: Sequence[Figures]) -> Json:
    """Sum up the token counts of the choices; a prompt that they share counts once."""
    n_prompt = sum(figures.n_prompt for figures in all_figures if figures.counts_prompt)
    n_answer = sum(figures.n_answer for figures in all_figures)
    n_accepted = sum(figures.n_accepted for figures in all_figures)
    n_drafted = sum(figures.n_drafted for figures in all_figures)
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_answer,
        "total_tokens": n_prompt + n_answer,
        "prompt_tokens_details": {
            "cached_tokens": sum(f.n_cached for f in all_figures if f.counts_prompt)
        },
        "completion_tokens_details": {
            "accepted_prediction_tokens": n_accepted,
            "rejected_prediction_tokens": n_drafted - n_accepted,
        },
    }


def timings(all_figures: Sequence[Figures]) -> Json:
    """Return llama.cpp's figures of speed and drafts."""
    n_prompt = sum(figures.n_prompt - figures.n_cached for figures in all_figures)
    n_answer = sum(figures.n_answer for figures in all_figures)
    prompt_s = sum(figures.prefill_s for figures in all_figures)
    answer_s = sum(figures.decode_s for figures in all_figures)
    # The first token of an answer comes with its prompt.
    n_decoded = sum(max(0, figures.n_answer - 1) for figures in all_figures)
    return {
        "cache_n": sum(figures.n_cached for figures in all_figures),
        "prompt_n": n_prompt,
        "prompt_ms": 1000 * prompt_s,
        "prompt_per_second": n_prompt / prompt_s if prompt_s > 0 else 0.0,
        "predicted_n": n_answer,
        "predicted_ms": 1000 * answer_s,
        "predicted_per_second": n_decoded / answer_s if answer_s > 0 else 0.0,
        "draft_n": sum(figures.n_drafted for figures in all_figures),
        "draft_n_accepted": sum(figures.n_accepted for figures in all_figures),
    }


class Reply:
    """One reply, told in chunks or whole.

    Attributes:
        figures: of the choices that are complete.
    """

    prefix = ""
    whole_object = ""
    chunk_object = ""

    def __init__(self, model: str, n_choices: int) -> None:
        """Make a new identity."""
        self._head: Json = {
            "id": f"{self.prefix}-{uuid.uuid4().hex}",
            "object": self.chunk_object,
            "created": int(time.time()),
            "model": model,
        }
        self.figures: list[Figures] = []
        self._n_choices = n_choices

    def chunks(self, items: Iterable[Delta | Final]) -> Iterable[Json]:
        """Yield the chunks of what came."""
        for item in items:
            if isinstance(item, Final):
                self.figures.append(item.figures)
                yield {**self._last_chunk(item), "timings": timings([item.figures])}
            else:
                yield from self._chunks(item)

    def usage_chunk(self) -> Json:
        """Return the chunk that tells the usage."""
        told = {"usage": usage(self.figures), "timings": timings(self.figures)}
        return {**self._head, "choices": [], **told}

    def whole(self, items: Sequence[Delta | Final]) -> Json:
        """Return the whole reply."""
        choices = []
        for i in range(self._n_choices):
            own = [item for item in items if item.index == i]
            parts = [item for item in own if isinstance(item, Delta)]
            final = next(item for item in own if isinstance(item, Final))
            self.figures.append(final.figures)
            choices.append(self._choice(i, parts, final))
        told = {"usage": usage(self.figures), "timings": timings(self.figures)}
        return {**self._head, "object": self.whole_object, "choices": choices, **told}

    def _chunks(self, delta: Delta) -> Iterable[Json]:
        raise NotImplementedError

    def _last_chunk(self, final: Final) -> Json:
        raise NotImplementedError

    def _choice(self, index: int, parts: Sequence[Delta], final: Final) -> Json:
        raise NotImplementedError


class ChatReply(Reply):
    """A reply of ``/v1/chat/completions``."""

    prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, model: str, n_choices: int, *, has_logprobs: bool = False) -> None:
        """Make a new identity."""
        super().__init__(model, n_choices)
        self._has_logprobs = has_logprobs
        self._begun: set[int] = set()
        self._calls: dict[int, int] = {}

    def _chunk(
        self, index: int, delta: Json, logprobs: Sequence[Logprob] = (), reason: str | None = None
    ) -> Json:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": _chat_logprobs(logprobs) if logprobs else None,
            "finish_reason": reason,
        }
        return {**self._head, "choices": [choice]}

    def _chunks(self, delta: Delta) -> Iterable[Json]:
        yield from self._begin(delta.index)
        logprobs = delta.logprobs
        for bit in delta.bits:
            yield self._chunk(delta.index, self._told(delta.index, bit), logprobs)
            logprobs = []
        if logprobs:
            yield self._chunk(delta.index, {"content": ""}, logprobs)

    def _begin(self, index: int) -> Iterable[Json]:
        if index not in self._begun:
            self._begun.add(index)
            yield self._chunk(index, {"role": "assistant", "content": ""})

    def _told(self, index: int, bit: Bit) -> Json:
        if bit.kind == "content":
            return {"content": bit.text}
        if bit.kind == "reasoning":
            return {"reasoning_content": bit.text}
        if bit.kind == "call":
            self._calls[index] = self._calls.get(index, -1) + 1
            call = {
                "index": self._calls[index],
                "id": _call_id(),
                "type": "function",
                "function": {"name": bit.text, "arguments": ""},
            }
        else:
            call = {"index": self._calls[index], "function": {"arguments": bit.text}}
        return {"tool_calls": [call]}

    def _last_chunk(self, final: Final) -> Json:
        return self._chunk(final.index, {}, reason=final.finish_reason)

    def chunks(self, items: Iterable[Delta | Final]) -> Iterable[Json]:
        """Yield the chunks of what came."""
        for item in items:
            # An answer without any text has a first chunk as well.
            yield from self._begin(item.index)
            yield from super().chunks([item])

    def _choice(self, index: int, parts: Sequence[Delta], final: Final) -> Json:
        bits = [bit for part in parts for bit in part.bits]
        content = "".join(bit.text for bit in bits if bit.kind == "content")
        reasoning = "".join(bit.text for bit in bits if bit.kind == "reasoning")
        calls: list[Json] = []
        for bit in bits:
            if bit.kind == "call":
                function = {"name": bit.text, "arguments": ""}
                calls.append({"id": _call_id(), "type": "function", "function": function})
            elif bit.kind == "arguments":
                calls[-1]["function"]["arguments"] += bit.text
        message: Json = {"role": "assistant", "content": content if content or not calls else None}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = calls
        logprobs = [each for part in parts for each in part.logprobs]
        return {
            "index": index,
            "message": message,
            "logprobs": _chat_logprobs(logprobs) if self._has_logprobs else None,
            "finish_reason": final.finish_reason,
        }


class CompletionReply(Reply):
    """A reply of ``/v1/completions``."""

    prefix = "cmpl"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, model: str, n_choices: int, *, has_logprobs: bool = False) -> None:
        """Make a new identity."""
        super().__init__(model, n_choices)
        self._has_logprobs = has_logprobs
        self._offsets: dict[int, int] = {}

    def _chunk(
        self, index: int, text: str, logprobs: Sequence[Logprob], reason: str | None = None
    ) -> Json:
        told = None
        if logprobs:
            told = _completion_logprobs(logprobs, self._offsets.get(index, 0))
        self._offsets[index] = self._offsets.get(index, 0) + len(text)
        choice = {"index": index, "text": text, "logprobs": told, "finish_reason": reason}
        return {**self._head, "choices": [choice]}

    def _chunks(self, delta: Delta) -> Iterable[Json]:
        text = "".join(bit.text for bit in delta.bits)
        yield self._chunk(delta.index, text, delta.logprobs)

    def _last_chunk(self, final: Final) -> Json:
        return self._chunk(final.index, "", (), final.finish_reason)

    def _choice(self, index: int, parts: Sequence[Delta], final: Final) -> Json:
        logprobs = [each for part in parts for each in part.logprobs]
        return {
            "index": index,
            "text": "".join(bit.text for part in parts for bit in part.bits),
            "logprobs": _completion_logprobs(logprobs, 0) if self._has_logprobs else None,
            "finish_reason": final.finish_reason,
        }


def _call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


def _text(token: bytes) -> str:
    return token.decode("utf-8", "replace")


def _chat_logprobs(logprobs: Sequence[Logprob]) -> Json:
    def entry(token: bytes, logprob: float) -> Json:
        return {"token": _text(token), "logprob": _finite(logprob), "bytes": list(token)}

    content = [
        {
            **entry(each.token, each.logprob),
            "top_logprobs": [entry(token, value) for token, value in each.top],
        }
        for each in logprobs
    ]
    return {"content": content, "refusal": None}


def _completion_logprobs(logprobs: Sequence[Logprob], offset: int) -> Json:
    texts = [_text(each.token) for each in logprobs]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": texts,
        "token_logprobs": [_finite(each.logprob) for each in logprobs],
        "top_logprobs": [
            {_text(token): _finite(value) for token, value in each.top} for each in logprobs
        ],
        "text_offset": offsets,
    }


def _finite(logprob: float) -> float:
    # JSON has no infinity. A token that a bias or grammar chose can be that unlikely.
    return max(logprob, -9999.0)
