"""What may come in: every field has a type and a range before anything else sees it.

Keys that are not named here are ignored, as OpenAI's clients send many. Some of llama.cpp's are
refused by name instead, because ignoring them would change what the caller gets.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
)
from pydantic import model_validator as check_model

from racer_local.server.plain_json import check_plain_json, check_text

__all__ = [
    "ChatRequest",
    "CompletionRequest",
    "DetokenizeRequest",
    "Function",
    "GenerationRequest",
    "Message",
    "ResponseFormat",
    "StreamOptions",
    "TokenizeRequest",
    "Tool",
    "ToolChoice",
]

MAX_CHOICES = 8
_MAX_TOKENS = 2**31 - 1
_MAX_STOPS = 16
# Keys that would change the answer, and that we do not take.
_REFUSED = {
    "grammar": "use response_format with a JSON schema",
    "json_schema": "use response_format",
    "chat_template": "the model's own template is used",
    "functions": "use tools",
    "function_call": "use tool_choice",
    "audio": "only text is supported",
    "modalities": "only text is supported",
    "lora": "adapters cannot be chosen by a request",
}

Json: TypeAlias = Annotated[dict[str, Any], BeforeValidator(check_plain_json)]
Finite: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]
Text: TypeAlias = Annotated[str, AfterValidator(check_text)]
StopText: TypeAlias = Annotated[Text, StringConstraints(max_length=256)]
TokenNumber: TypeAlias = Annotated[int, Field(ge=0, le=2**31 - 1)]
FunctionName: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


class _Incoming(BaseModel):
    model_config = ConfigDict(extra="ignore", protected_namespaces=())


class StreamOptions(_Incoming):
    """``stream_options``."""

    include_usage: bool | None = False


class Function(_Incoming):
    """A function that the model may call."""

    name: FunctionName
    description: Text | None = None
    parameters: Json | None = None
    strict: bool | None = None


class Tool(_Incoming):
    """An entry of ``tools``."""

    type: Literal["function"]
    function: Function


class ChosenFunction(_Incoming):
    """The function of a ``tool_choice``."""

    name: FunctionName


class ToolChoice(_Incoming):
    """A ``tool_choice`` that names a function."""

    type: Literal["function"] = "function"
    function: ChosenFunction


class CalledFunction(_Incoming):
    """What was called in an earlier turn; ``arguments`` is JSON as text."""

    name: FunctionName
    arguments: Text = "{}"


class ToolCall(_Incoming):
    """A call in an earlier turn."""

    id: Text | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class Part(_Incoming):
    """A part of a message's content. Only text is understood."""

    type: Literal["text", "input_text"]
    text: Text


class Message(_Incoming):
    """A message of a conversation; ``developer`` is read as ``system``."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | list[Part] | None = None
    name: Text | None = None
    tool_call_id: Text | None = None
    tool_calls: list[ToolCall] | None = Field(default=None, max_length=64)

    @property
    def text(self) -> str:
        """The content as one text."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class SchemaFormat(_Incoming):
    """The ``json_schema`` of a response format."""

    name: str | None = None
    schema_: Json | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(_Incoming):
    """``response_format``: OpenAI's shapes, and llama.cpp's ``json_object`` with a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaFormat | None = None
    schema_: Json | None = Field(default=None, alias="schema")


class GenerationRequest(_Incoming):
    """What chats and completions have in common."""

    model: str | None = Field(default=None, max_length=1024)
    max_tokens: int | None = Field(default=None, ge=-1, le=_MAX_TOKENS)
    temperature: Finite | None = Field(default=None, ge=0, le=100)
    top_p: Finite | None = Field(default=None, ge=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, le=2**31 - 1)
    min_p: Finite | None = Field(default=None, ge=0, le=1)
    typical_p: Finite | None = Field(default=None, ge=0, le=1)
    presence_penalty: Finite | None = Field(default=None, ge=-100, le=100)
    frequency_penalty: Finite | None = Field(default=None, ge=-100, le=100)
    repeat_penalty: Finite | None = Field(default=None, ge=0.01, le=100)
    seed: int | None = Field(default=None, ge=-(2**63), le=2**63 - 1)
    stop: StopText | Annotated[list[StopText], Field(max_length=_MAX_STOPS)] | None = None
    logit_bias: (
        Annotated[dict[Annotated[int, Field(ge=0, le=2**31 - 1)], Finite], Field(max_length=1024)]
        | None
    ) = None
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    user: str | None = Field(default=None, max_length=1024)

    @check_model(mode="before")
    @classmethod
    def _refuse_what_would_be_lost(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for key, reason in _REFUSED.items():
                if data.get(key) and not (key == "modalities" and data[key] == ["text"]):
                    raise ValueError(f"{key} is not supported; {reason}")
        return data

    @property
    def stops(self) -> list[str]:
        """The stop strings, empty ones left out."""
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [text for text in stops if text]

    @property
    def n_choices(self) -> int:
        """Answers to give."""
        return self.n or 1

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with a chunk that tells the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def n_most(self) -> int | None:
        """Most tokens of an answer; None goes on to the end of the context."""
        return self.max_tokens if (self.max_tokens or 0) > 0 else None


class ChatRequest(GenerationRequest):
    """The body of ``/v1/chat/completions``."""

    messages: list[Message] = Field(min_length=1, max_length=10_000)
    max_completion_tokens: int | None = Field(default=None, ge=-1, le=_MAX_TOKENS)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    tools: Annotated[list[Tool], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None

    @property
    def n_most(self) -> int | None:
        """Most tokens of an answer; None goes on to the end of the context."""
        most = self.max_completion_tokens
        return super().n_most if most is None else (most if most > 0 else None)

    @property
    def n_top(self) -> int | None:
        """Log probabilities to report per token; None reports none."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def offered(self) -> list[Function]:
        """The functions that may be called."""
        if self.tool_choice == "none":
            return []
        return [tool.function for tool in self.tools or []]

    @check_model(mode="after")
    def _choice_is_offered(self) -> ChatRequest:
        names = [tool.function.name for tool in self.tools or []]
        if len(set(names)) < len(names):
            raise ValueError("two tools have the same name")
        if isinstance(self.tool_choice, ToolChoice) and self.tool_choice.function.name not in names:
            raise ValueError("tool_choice names a function that is not among tools")
        if self.tool_choice == "required" and not names:
            raise ValueError("tool_choice is 'required', but there are no tools")
        return self


class CompletionRequest(GenerationRequest):
    """The body of ``/v1/completions``."""

    prompt: (
        Text
        | Annotated[list[TokenNumber], Field(min_length=1, max_length=2**20)]
        | Annotated[list[Text], Field(min_length=1, max_length=MAX_CHOICES)]
        | Annotated[
            list[Annotated[list[TokenNumber], Field(min_length=1, max_length=2**20)]],
            Field(min_length=1, max_length=MAX_CHOICES),
        ]
    )
    suffix: Text | None = None
    max_tokens: int | None = Field(default=16, ge=-1, le=_MAX_TOKENS)
    logprobs: int | None = Field(default=None, ge=0, le=20)
    echo: bool | None = False

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, each text or token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return list(self.prompt)

    @check_model(mode="after")
    def _is_possible(self) -> CompletionRequest:
        if self.echo and self.logprobs is not None:
            raise ValueError("echo together with logprobs is not supported")
        if len(self.prompts) * self.n_choices > MAX_CHOICES:
            raise ValueError(f"at most {MAX_CHOICES} answers can be asked for at once")
        return self


class TokenizeRequest(_Incoming):
    """The body of ``/tokenize``; ``content`` is llama.cpp's name of it, ``prompt`` vLLM's."""

    content: Text | None = None
    prompt: Text | None = None
    add_special: bool | None = False
    parse_special: bool | None = True

    @check_model(mode="after")
    def _has_text(self) -> TokenizeRequest:
        if self.content is None and self.prompt is None:
            raise ValueError("content is missing")
        return self


class DetokenizeRequest(_Incoming):
    """The body of ``/detokenize``."""

    tokens: Annotated[list[TokenNumber], Field(max_length=2**20)]
