"""``RacerLlama``: ``llama_cpp.Llama`` with drafts, and made for applications.

Upstream's class loads the model, renders chats, builds grammars and reads its arguments. What is
replaced is the way of the tokens: its context is opened for draft trees (``opening``), and every
generation runs through the engine.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from racer_local.backend.kv import KV_TYPES
from racer_local.concurrency.aio import CallHandle, iterate_async, run_async
from racer_local.config import DraftConfig, DraftMode, KvType
from racer_local.decoding.answer import StreamEvent
from racer_local.drop_in.chat import (
    Completing,
    Message,
    UpstreamLlama,
    chat_request,
    drop_oldest_turns,
    needed_criteria,
    with_schema,
)
from racer_local.drop_in.completing import CompletingLlama, note_dropped
from racer_local.drop_in.completion import Completion
from racer_local.drop_in.low_level import COMPLETION_OPTIONS
from racer_local.errors import ConfigError
from racer_local.speculation.tree import TokenId

__all__ = ["OverflowPolicy", "RacerLlama"]

OverflowPolicy: TypeAlias = Literal["error", "drop_oldest"]


def _kv_options(kv_type: KvType, options: Mapping[str, Any]) -> dict[str, int]:
    """Return upstream's names of what ``kv_type`` stands for."""
    if kv_type not in KV_TYPES:
        known = ", ".join(get_args(KvType))
        raise ConfigError(f"kv_type is {kv_type!r}; it must be one of {known}")
    if options.get("type_k") is not None or options.get("type_v") is not None:
        raise ConfigError("kv_type stands for type_k and type_v; leave one or the other out")
    return {"type_k": KV_TYPES[kv_type], "type_v": KV_TYPES[kv_type]}


class RacerLlama(CompletingLlama):
    """A drop-in ``llama_cpp.Llama`` that drafts; safe to call from any thread.

    Attributes:
        wait_timeout_s: how long a call waits for its turn before ``BusyError``; None waits.
        overflow: what to do with a chat that is too long: ``error``, or ``drop_oldest``.
        on_prefill: called with (tokens read, tokens to read) while a prompt is read; called on the
            compute thread.
        last_stats: counters of the call that began last.
        last_dropped: messages that ``drop_oldest`` left out of the last chat.
        notices: what the user should know about this model and these settings.
    """

    def __init__(
        self,
        model_path: str,
        *,
        draft: DraftMode | DraftConfig = "auto",
        budget: int | None = None,
        exact: bool = False,
        kv_type: KvType | None = None,
        books: Sequence[str] = (),
        wait_timeout_s: float | None = None,
        overflow: OverflowPolicy = "error",
        on_prefill: Callable[[int, int], None] | None = None,
        verbose: bool = False,
        **options: Any,
    ) -> None:
        """Load a model. All other arguments are those of ``llama_cpp.Llama``.

        Args:
            model_path: the GGUF file.
            draft: how to draft; ``off`` is plain decoding.
            budget: most draft nodes in one step.
            exact: be token-identical to plain decoding with the same settings; takes a q8_0
                KV cache.
            kv_type: elements of the KV cache: ``f16``, as upstream's; ``q8_0``, which is faster
                on a processor and half as large; ``f32``. Short for upstream's ``type_k`` and
                ``type_v``.
            books: phrase books to draft from: names, or paths of ``.npz`` files.
            wait_timeout_s: see the attributes.
            overflow: see the attributes.
            on_prefill: see the attributes.
            verbose: print what upstream prints; llama.cpp's log goes to ``racer_local.native``.
            **options: upstream's. ``flash_attn`` is on by default, ``n_threads`` is the number
                of physical cores, and ``logits_all`` is not needed for log probabilities.

        Raises:
            ConfigError: a setting is out of range.
            ModelLoadError: llama.cpp refuses the file or the context; also a ``ValueError``.
            UnsupportedModelError: the model cannot generate text.
            ValueError: the file does not exist.
        """
        if overflow not in ("error", "drop_oldest"):
            raise ConfigError(f"overflow is {overflow!r}; it must be 'error' or 'drop_oldest'")
        if not isinstance(draft, DraftConfig):
            usual = DraftConfig(mode=draft)
            draft = usual if budget is None else replace(usual, budget=budget)
        if kv_type is not None:
            options.update(_kv_options(kv_type, options))
        self.wait_timeout_s = wait_timeout_s
        self.overflow: OverflowPolicy = overflow
        self.on_prefill = on_prefill
        self.last_stats = None
        self.last_dropped: list[Message] = []
        self._local = threading.local()
        super().__init__(
            str(model_path), draft, exact=exact, books=books, verbose=verbose, **options
        )
        # Rows are kept one by one where they are wanted; this stands for upstream's table, which
        # there is with ``logits_all`` only. Memory is taken as it is filled.
        n_rows = self._n_ctx if self._keeps_all_rows else 1
        self.scores = np.zeros((n_rows, self._n_vocab), np.float32)

    # --- chats ----------------------------------------------------------------------------

    def create_chat_completion(self, messages: list[Any], *args: Any, **options: Any) -> Any:
        """Answer a conversation; see ``llama_cpp.Llama.create_chat_completion``.

        ``response_format`` may also be OpenAI's ``json_schema``. With ``overflow`` set to
        ``drop_oldest`` a conversation that is too long loses its oldest turns; ``last_dropped``
        and the notices of ``last_stats`` say which.

        Raises:
            ContextFullError: the conversation does not fit; it names both counts.
        """
        if "response_format" in options:
            options["response_format"] = with_schema(options["response_format"])
        kept, dropped = self._fitting(messages, options)
        self.last_dropped = dropped
        return UpstreamLlama.create_chat_completion(
            Completing(self, partial(self._complete_shortened, len(dropped))) if dropped else self,
            kept,
            *args,
            **options,
        )

    def _complete_shortened(self, n_dropped: int, **request: Any) -> Any:
        answers = self._create_completion(**request, n_dropped=n_dropped)
        return answers if request.get("stream") else next(answers)

    def _fitting(
        self, messages: Sequence[Message], options: Mapping[str, Any]
    ) -> tuple[list[Message], list[Message]]:
        """Return what is kept of a conversation, and what is not."""
        if self.overflow == "error" or self._session is None:
            return list(messages), []

        def n_tokens(kept: Sequence[Message]) -> int:
            prompt = chat_request(self, kept, options)["prompt"]
            return len(prompt) if isinstance(prompt, list) else len(self._raw_tokens(prompt))

        n_ctx = self._session.target.n_ctx
        n_answer = options.get("max_tokens") or min(256, n_ctx // 4)
        n_max = max(1, n_ctx - max(1, min(n_answer, n_ctx // 2)))
        return drop_oldest_turns(messages, n_tokens, n_max)

    def _raw_tokens(self, text: str) -> list[TokenId]:
        tokens: list[TokenId] = self.tokenize(text.encode("utf-8"), add_bos=True, special=True)
        return tokens

    # --- events ---------------------------------------------------------------------------

    def stream_events(
        self,
        prompt: str | Sequence[TokenId] | Sequence[Message],
        *,
        timeout_s: float | None = None,
        on_prefill: Callable[[int, int], None] | None = None,
        handle: CallHandle | None = None,
        ahead: bool = False,
        **options: Any,
    ) -> Generator[StreamEvent, None, None]:
        """Answer token by token, saying where each one came from.

        Args:
            prompt: text, token ids, or the messages of a chat.
            timeout_s: how long to wait for a turn; None takes ``wait_timeout_s``.
            on_prefill: called with (tokens read, tokens to read); called on the compute thread.
            handle: cancels this call, from any thread and at any time.
            ahead: compute the next step while the last one's tokens are being used. Faster, but
                while events come the cache may hold tokens that did not come yet.
            **options: those of ``create_completion`` or ``create_chat_completion``.

        Raises:
            BusyError: no turn came in time.
            ConfigError: there is no such option.
            ContextFullError: the prompt does not fit; it names both counts.
        """
        n_dropped = 0
        if len(prompt) and isinstance(prompt[0], Mapping):
            if "response_format" in options:
                options["response_format"] = with_schema(options["response_format"])
            messages, dropped = self._fitting(prompt, options)  # type: ignore[arg-type]  # seen
            self.last_dropped = dropped
            n_dropped = len(dropped)
            request = chat_request(self, messages, options)
        else:
            unknown = sorted(set(options) - COMPLETION_OPTIONS)
            if unknown:
                raise ConfigError(f"unknown options: {', '.join(unknown)}")
            request = {"prompt": prompt if isinstance(prompt, str) else list(prompt), **options}
        return self._events(request, n_dropped, timeout_s, on_prefill, handle, ahead=ahead)

    def _events(
        self,
        request: dict[str, Any],
        n_dropped: int,
        timeout_s: float | None,
        on_prefill: Callable[[int, int], None] | None,
        handle: CallHandle | None,
        *,
        ahead: bool,
    ) -> Generator[StreamEvent, None, None]:
        with self._call(timeout_s, handle) as call:
            prompt = request.pop("prompt")
            suffix, seed = request.pop("suffix", None), request.pop("seed", None)
            completion = Completion(
                prompt=prompt,
                tokens=self._prepare(call, prompt, suffix, seed),
                piece=self._piece,
                bos=self.token_bos(),
                model="",
            )
            criteria = needed_criteria(self, request.get("stopping_criteria"))
            chain = self._chain(request, logprobs=request.get("logprobs"), keep_rows=bool(criteria))
            with self._answer(
                call,
                completion,
                chain,
                request.get("max_tokens", 16),
                request.get("stop"),
                criteria,
                on_prefill,
                ahead=ahead,
            ) as answer:
                note_dropped(answer.stats, n_dropped)
                for event in answer:
                    yield event
                    call.thread = threading.get_ident()
            self._keep(call, answer)

    # --- asyncio --------------------------------------------------------------------------

    async def acreate_completion(self, *args: Any, **options: Any) -> Any:
        """Like ``create_completion``, without blocking the event loop.

        A stream comes as an asynchronous iterator. Cancelling the task ends the call.
        """
        return await self._async(self.create_completion, args, options)

    async def acreate_chat_completion(self, *args: Any, **options: Any) -> Any:
        """Like ``create_chat_completion``, without blocking the event loop.

        A stream comes as an asynchronous iterator. Cancelling the task ends the call.
        """
        return await self._async(self.create_chat_completion, args, options)

    def astream_events(self, *args: Any, **options: Any) -> AsyncGenerator[StreamEvent, None]:
        """Like ``stream_events``, without blocking the event loop."""
        handle = CallHandle()
        return iterate_async(lambda: self._named(handle, self.stream_events, args, options), handle)

    async def _async(self, function: Callable[..., Any], args: Any, options: Any) -> Any:
        handle = CallHandle()
        if options.get("stream"):
            return iterate_async(lambda: self._named(handle, function, args, options), handle)
        return await run_async(lambda: self._called(handle, function, args, options), handle)

    def _called(
        self, handle: CallHandle, function: Callable[..., Any], args: Any, options: Any
    ) -> Any:
        # The thread is the call's own, and so is what it keeps.
        self._local.handle = handle
        return function(*args, **options)

    def _named(
        self, handle: CallHandle, function: Callable[..., Any], args: Any, options: Any
    ) -> Iterator[Any]:
        yield from self._called(handle, function, args, options)

    def __getstate__(self) -> dict[str, Any]:
        """Return the arguments that open the same model again."""
        return {
            **super().__getstate__(),
            "draft": self._draft,
            "exact": self._exact,
            "books": self._books,
            "wait_timeout_s": self.wait_timeout_s,
            "overflow": self.overflow,
            "draft_model": None,
        }
