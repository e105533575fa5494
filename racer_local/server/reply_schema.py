"""The shapes of replies, for the OpenAPI schema; ``replies`` writes them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

__all__ = [
    "ChatCompletion",
    "Completion",
    "Detokenized",
    "ErrorReply",
    "Health",
    "Model",
    "ModelList",
    "Tokenized",
]


class _Outgoing(BaseModel):
    model_config = ConfigDict(extra="allow", protected_namespaces=())


class ErrorObject(_Outgoing):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(_Outgoing):
    """Every error."""

    error: ErrorObject


class CachedTokens(_Outgoing):
    """About the prompt."""

    cached_tokens: int


class DraftTokens(_Outgoing):
    """About the drafts."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(_Outgoing):
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: DraftTokens


class Timings(_Outgoing):
    """Speed and drafts, under llama.cpp's names."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float
    draft_n: int
    draft_n_accepted: int


class CalledFunction(_Outgoing):
    """What the model calls."""

    name: str
    arguments: str


class ToolCall(_Outgoing):
    """A call of a function."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class AnswerMessage(_Outgoing):
    """The answer."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class ChatChoice(_Outgoing):
    """One answer."""

    index: int
    message: AnswerMessage
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class ChatCompletion(_Outgoing):
    """A whole answer to a conversation."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    timings: Timings


class CompletionChoice(_Outgoing):
    """One continuation."""

    index: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length"]


class Completion(_Outgoing):
    """A whole continuation of a text."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    timings: Timings


class ModelSizes(_Outgoing):
    """Sizes of the context, in tokens; ``n_ctx`` is the one that is served."""

    n_ctx: int
    n_ctx_train: int


class Model(_Outgoing):
    """The model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    meta: ModelSizes


class ModelList(_Outgoing):
    """The list of the one model."""

    object: Literal["list"]
    data: list[Model]


class Tokenized(_Outgoing):
    """Token ids of a text."""

    tokens: list[int]
    count: int


class Detokenized(_Outgoing):
    """The text of token ids."""

    content: str


class Health(_Outgoing):
    """Requests are taken; the first one after an idle time loads the model again."""

    status: Literal["ok"]
    model_loaded: bool
