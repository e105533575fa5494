"""``RacerLlama``: ``llama_cpp.Llama`` with drafts, and made for applications.

Upstream's class loads the model, renders chats, builds grammars and reads its arguments. What is
replaced is the way of the tokens: its context is opened for draft trees (``opening``), and every
generation runs through the engine.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from llama_cpp.llama import LlamaState
from llama_cpp.llama_tokenizer import LlamaTokenizer
from numpy.typing import NDArray

from racer_local.backend.chain import ChainConfig, ChainSampler
from racer_local.config import DraftConfig, DraftMode, GenerationConfig
from racer_local.embed.answer import Answer, StreamEvent
from racer_local.embed.call_queue import Call
from racer_local.embed.chat import Message, chat_request, drop_oldest_turns, with_schema
from racer_local.embed.completion import Completion
from racer_local.embed.core import Core, Observers
from racer_local.embed.opening import OpeningLlama
from racer_local.embed.responses import Json
from racer_local.errors import ConfigError, ContextFullError
from racer_local.stats import Stats
from racer_local.tree import TokenId

__all__ = ["OverflowPolicy", "RacerLlama"]

OverflowPolicy: TypeAlias = Literal["error", "drop_oldest"]

# Upstream's names of the settings that a sampler chain is built from.
_CHAIN_NAMES = {
    "temperature": "temperature",
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "repeat_penalty": "repeat_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "mirostat_mode": "mirostat_mode",
    "mirostat_tau": "mirostat_tau",
    "mirostat_eta": "mirostat_eta",
}
_TOO_LONG = re.compile(r"Requested tokens \((\d+)\) exceed context window of (\d+)")


class _Prepared(Exception):  # noqa: N818 - a jump, no error
    """Carries the prompt that upstream's code would generate from."""

    def __init__(self, tokens: Sequence[TokenId]) -> None:
        super().__init__()
        self.tokens = [int(token) for token in tokens]


class RacerLlama(OpeningLlama):
    """A drop-in ``llama_cpp.Llama`` that drafts; safe to call from any thread.

    Attributes:
        wait_timeout_s: how long a call waits for its turn before ``BusyError``; None waits.
        overflow: what to do with a chat that is too long: ``error``, or ``drop_oldest``.
        on_prefill: is told (tokens read, tokens to read) while a prompt is read; called on the
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
            sizes = {} if budget is None else {"budget": budget}
            draft = DraftConfig(mode=draft, **sizes)
        self.wait_timeout_s = wait_timeout_s
        self.overflow: OverflowPolicy = overflow
        self.on_prefill = on_prefill
        self.last_stats: Stats | None = None
        self.last_dropped: list[Message] = []
        self._preparing: int | None = None
        self._local = threading.local()
        super().__init__(str(model_path), draft, verbose=verbose, **options)
        # Rows are kept one by one where they are wanted; this stands for upstream's table.
        self.scores = np.zeros((1, self._n_vocab), np.float32)

    # --- calls ----------------------------------------------------------------------------

    def _require_core(self) -> Core:
        if self._core is None:
            raise ConfigError("this model was opened with embedding or vocab_only; it cannot write")
        return self._core

    @contextlib.contextmanager
    def _call(self, timeout_s: float | None = None) -> Iterator[Call]:
        """Wait for a turn; inside a call that is being served, go on with that one."""
        mine: Call | None = getattr(self._local, "call", None)
        if mine is not None:
            yield mine
            return
        timeout = self.wait_timeout_s if timeout_s is None else timeout_s
        with self._require_core().calls.enter(timeout) as call:
            yield call

    @contextlib.contextmanager
    def _inside(self, call: Call) -> Iterator[None]:
        """Mark this thread as working on a call while code of upstream's runs."""
        call.thread = threading.get_ident()
        before = getattr(self._local, "call", None)
        self._local.call = call
        try:
            yield
        finally:
            self._local.call = before

    def cancel(self) -> bool:
        """End the running call within one decode step, or while it reads its prompt.

        From any thread. The call returns what it has, with finish reason ``cancelled``.

        Returns:
            False if nothing was running.
        """
        return self._core is not None and self._core.calls.cancel()

    # --- completions ----------------------------------------------------------------------

    def generate(self, tokens: Sequence[TokenId], *args: Any, **options: Any) -> Any:
        """Yield the tokens that follow ``tokens``; see ``llama_cpp.Llama.generate``."""
        if self._core is None:
            return super().generate(tokens, *args, **options)
        if self._preparing == threading.get_ident():
            raise _Prepared(tokens)
        names = ("top_k", "top_p", "min_p", "typical_p", "temp", "repeat_penalty", "reset")
        return self._generate(tokens, **dict(zip(names, args, strict=False)), **options)

    def _generate(
        self,
        tokens: Sequence[TokenId],
        *,
        reset: bool = True,
        stopping_criteria: Any = None,
        **options: Any,
    ) -> Generator[TokenId, Sequence[TokenId] | None, None]:
        core = self._require_core()
        chain = self._chain(options, keep_rows=stopping_criteria is not None)
        with self._call() as call:
            prompt = [int(token) for token in tokens]
            if not reset:
                prompt = core.target.tokens + prompt
            while True:
                given = None
                room = core.target.n_ctx - len(prompt)
                limits = GenerationConfig(max_tokens=max(1, room), ignore_eos=True)
                with core.stream(
                    call, prompt, chain, limits, Observers(on_prefill=self.on_prefill)
                ) as stream:
                    self.last_stats = stream.stats
                    sampler = stream.sampler
                    for event in stream:
                        prompt.append(event.token)
                        if stopping_criteria is not None and stopping_criteria(
                            sampler.history_until(len(prompt) - 1), sampler.rows.popleft()
                        ):
                            return
                        call.thread = threading.get_ident()
                        given = yield event.token
                        if given is not None:
                            break
                if given is None:
                    return
                prompt.extend(int(token) for token in given)

    def _chain(self, options: Mapping[str, Any], **more: Any) -> ChainConfig:
        known = {_CHAIN_NAMES[name]: options[name] for name in options if name in _CHAIN_NAMES}
        grammar = options.get("grammar")
        bias = options.get("logit_bias") or {}
        return ChainConfig(
            **known,
            seed=self._seed % 2**32,
            penalty_last_n=self.last_n_tokens_size,
            logit_bias={int(token): float(value) for token, value in bias.items()},
            grammar=None if grammar is None else grammar._grammar,
            processors=tuple(options.get("logits_processor") or ()),
            **more,
        )

    def _create_completion(
        self,
        prompt: str | list[TokenId],
        suffix: str | None = None,
        max_tokens: int | None = 16,
        logprobs: int | None = None,
        echo: bool = False,
        stop: str | list[str] | None = None,
        stream: bool = False,
        seed: int | None = None,
        model: str | None = None,
        stopping_criteria: Any = None,
        **options: Any,
    ) -> Iterator[Json]:
        core = self._require_core()
        with self._call() as call:
            with self._inside(call):
                tokens = self._prepare(prompt, suffix, seed)
            completion = Completion(
                prompt=prompt,
                tokens=tokens,
                piece=self._piece,
                bos=self.token_bos(),
                model=self.model_path if model is None else model,
                n_logprobs=logprobs,
                echo=echo and not stream,
            )
            chain = self._chain(options, logprobs=logprobs, keep_rows=stopping_criteria is not None)
            with self._answer(
                core, call, completion, chain, max_tokens, stop, stopping_criteria
            ) as answer:
                if not stream:
                    whole = completion.whole(answer)
                else:
                    for chunk in completion.chunks(answer):
                        yield chunk
                        call.thread = threading.get_ident()
            self._keep(answer, tokens)
        if not stream:
            yield whole

    def _prepare(
        self, prompt: str | list[TokenId], suffix: str | None, seed: int | None
    ) -> list[TokenId]:
        """Have upstream tokenize the prompt, look into its cache, and set the seed."""
        self._preparing = threading.get_ident()
        try:
            next(super()._create_completion(prompt=prompt, suffix=suffix, max_tokens=1, seed=seed))
        except _Prepared as prepared:
            return prepared.tokens
        except ValueError as error:
            match = _TOO_LONG.match(str(error))
            if match is None:
                raise
            raise ContextFullError(int(match[1]), int(match[2])) from None
        finally:
            self._preparing = None
        raise TypeError("llama_cpp.Llama did not generate; this version of it is not supported")

    def _answer(
        self,
        core: Core,
        call: Call,
        completion: Completion,
        chain: ChainConfig,
        max_tokens: int | None,
        stop: str | Sequence[str] | None,
        criteria: Any = None,
        on_prefill: Callable[[int, int], None] | None = None,
    ) -> Answer:
        tokens = completion.tokens
        # An empty prompt is read as BOS, which upstream counts as part of the answer.
        n_extra = 0 if len(completion.prompt) else 1
        room = core.target.n_ctx - len(tokens)
        n_max = room if max_tokens is None or max_tokens <= 0 else min(max_tokens - n_extra, room)
        stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
        stream = core.stream(
            call,
            tokens,
            chain,
            GenerationConfig(max_tokens=max(1, n_max)),
            Observers(
                on_prefill=on_prefill or self.on_prefill,
                on_prompt_rows=completion.prompt_rows_observer,
            ),
        )
        self.last_stats = stream.stats
        return Answer(
            stream,
            self._piece,
            max_tokens=max(1, n_max),
            stops=[text for text in stops if text],
            criteria=() if criteria is None else (criteria,),
        )

    def _piece(self, token: TokenId, before: Sequence[TokenId]) -> bytes:
        if type(self.tokenizer_) is LlamaTokenizer:
            return self._require_core().piece(token)
        piece: bytes = self.detokenize([token], prev_tokens=list(before))
        return piece

    def _keep(self, answer: Answer, prompt: list[TokenId]) -> None:
        if answer.last_row is not None:
            self.scores[0] = answer.last_row
        if self.cache:
            self.cache[prompt + answer.tokens] = self.save_state()

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
        return super().create_chat_completion(self._fitting(messages, options), *args, **options)

    def _fitting(self, messages: Sequence[Message], options: Mapping[str, Any]) -> list[Message]:
        self.last_dropped = []
        if self.overflow == "error" or self._core is None:
            return list(messages)

        def n_tokens(kept: Sequence[Message]) -> int:
            prompt = chat_request(self, kept, options)["prompt"]
            return len(prompt) if isinstance(prompt, list) else len(self._raw_tokens(prompt))

        n_ctx = self._core.target.n_ctx
        n_answer = options.get("max_tokens") or min(256, n_ctx // 4)
        n_max = max(1, n_ctx - max(1, min(n_answer, n_ctx // 2)))
        kept, self.last_dropped = drop_oldest_turns(messages, n_tokens, n_max)
        return kept

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
        **options: Any,
    ) -> Generator[StreamEvent, None, None]:
        """Answer token by token, saying where each one came from.

        Args:
            prompt: text, token ids, or the messages of a chat.
            timeout_s: how long to wait for a turn; None takes ``wait_timeout_s``.
            on_prefill: is told (tokens read, tokens to read); called on the compute thread.
            **options: those of ``create_completion`` or ``create_chat_completion``.

        Raises:
            BusyError: no turn came in time.
            ContextFullError: the prompt does not fit; it names both counts.
        """
        if len(prompt) and isinstance(prompt[0], Mapping):
            if "response_format" in options:
                options["response_format"] = with_schema(options["response_format"])
            messages = self._fitting(prompt, options)  # type: ignore[arg-type]  # seen above
            request = chat_request(self, messages, options)
        else:
            request = {"prompt": prompt if isinstance(prompt, str) else list(prompt), **options}
        return self._events(request, timeout_s, on_prefill)

    def _events(
        self,
        request: dict[str, Any],
        timeout_s: float | None,
        on_prefill: Callable[[int, int], None] | None,
    ) -> Generator[StreamEvent, None, None]:
        core = self._require_core()
        dropped = len(self.last_dropped)
        with self._call(timeout_s) as call:
            prompt = request.pop("prompt")
            with self._inside(call):
                tokens = self._prepare(
                    prompt, request.pop("suffix", None), request.pop("seed", None)
                )
            completion = Completion(
                prompt=prompt, tokens=tokens, piece=self._piece, bos=self.token_bos(), model=""
            )
            criteria = request.get("stopping_criteria")
            chain = self._chain(
                request, logprobs=request.get("logprobs"), keep_rows=criteria is not None
            )
            with self._answer(
                core,
                call,
                completion,
                chain,
                request.get("max_tokens", 16),
                request.get("stop"),
                criteria,
                on_prefill,
            ) as answer:
                if dropped:
                    answer.stats.notices.append(f"{dropped} old messages were left out")
                for event in answer:
                    yield event
                    call.thread = threading.get_ident()
            self._keep(answer, tokens)

    # --- upstream's low level -------------------------------------------------------------

    @property
    def n_tokens(self) -> int:
        """Tokens in the cache; setting a smaller number drops the rest."""
        core = self._core
        return self._plain_n_tokens if core is None else len(core.target.tokens)

    @n_tokens.setter
    def n_tokens(self, n: int) -> None:
        self._plain_n_tokens = n
        core = self._core
        if core is not None:
            with self._call():
                core.compute.run(lambda: core.target.rewind(min(n, len(core.target.tokens))))

    @property
    def input_ids(self) -> NDArray[np.int32]:
        """The tokens in the cache, in an array of the context's size: a copy."""
        core = self._core
        if core is None:
            return self._plain_input_ids
        ids = np.zeros(core.target.n_ctx, np.int32)
        ids[: len(core.target.tokens)] = core.target.tokens
        return ids

    @input_ids.setter
    def input_ids(self, ids: NDArray[np.int32]) -> None:
        if self._core is not None:
            raise AttributeError("input_ids cannot be set; load_state() or eval() change the text")
        self._plain_input_ids = ids

    @property
    def _scores(self) -> NDArray[np.float32]:
        scores: NDArray[np.float32] = self.scores
        return scores

    def eval(self, tokens: Sequence[TokenId]) -> None:
        """Append tokens to the text in the cache.

        Raises:
            ContextFullError: they do not fit.
        """
        core = self._core
        if core is None:
            super().eval(tokens)
            return
        ids = [int(token) for token in tokens]
        with self._call():
            core.require_open()
            core.compute.run(lambda: self._eval(core, ids))

    def _eval(self, core: Core, ids: list[TokenId]) -> None:
        target = core.target
        target.resume()
        if len(target.tokens) + len(ids) > target.n_ctx:
            raise ContextFullError(len(target.tokens) + len(ids), target.n_ctx)
        for start in range(0, len(ids), target.n_batch):
            chunk = ids[start : start + target.n_batch]
            self.scores[0] = target.prefill(chunk, [len(chunk) - 1])[0]

    def sample(self, *args: Any, idx: int | None = None, **options: Any) -> TokenId:
        """Choose a token from the last row that ``eval`` computed; ``idx`` must be the last."""
        core = self._core
        if core is None:
            token: TokenId = super().sample(*args, idx=idx, **options)
            return token
        names = ("top_k", "top_p", "min_p", "typical_p", "temp", "repeat_penalty")
        chain = self._chain({**dict(zip(names, args, strict=False)), **options})
        with self._call():
            core.require_open()
            return core.compute.run(lambda: self._sample(core, chain))

    def _sample(self, core: Core, chain: ChainConfig) -> TokenId:
        n_rows = len(core.target.logits())
        if n_rows == 0:
            raise ConfigError("there is nothing to sample from; call eval() first")
        sampler = ChainSampler(chain, core.target, core.target.tokens)
        try:
            return sampler.sample(n_rows - 1)
        finally:
            sampler.close()

    def reset(self) -> None:
        """Drop the text in the cache, all saved prefixes, and what was learned for drafting."""
        core = self._core
        if core is None:
            super().reset()
            return
        with self._call():
            core.require_open()
            core.compute.run(core.engine.forget)

    def save_state(self) -> LlamaState:
        """Copy the text and its cache; only ``load_state`` of this class can read it."""
        core = self._require_core()
        with self._call():
            core.require_open()
            state = bytes(core.compute.run(core.target.save_state))
            return LlamaState(
                scores=self.scores.copy(),
                input_ids=self.input_ids,
                n_tokens=len(core.target.tokens),
                llama_state=state,
                llama_state_size=len(state),
                seed=self._seed,
            )

    def load_state(self, state: LlamaState) -> None:
        """Bring back a text and its cache.

        Raises:
            RuntimeError: the state is of another model, context or class.
        """
        core = self._require_core()
        tokens = [int(token) for token in state.input_ids[: state.n_tokens]]
        with self._call():
            core.require_open()
            loaded = core.compute.run(lambda: core.target.load_state(tokens, state.llama_state))
            if not loaded and state.n_tokens:
                raise RuntimeError("the saved state does not fit this model and context")
            self.scores[:] = state.scores[-1:]
            self._seed = state.seed

    # --- life cycle -----------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """Return the arguments that open the same model again."""
        return {
            **super().__getstate__(),
            "draft": self._draft,
            "wait_timeout_s": self.wait_timeout_s,
            "overflow": self.overflow,
            "draft_model": None,
        }

    def close(self) -> None:
        """Free context and model; a running call ends first. A second call does nothing."""
        if self._core is not None:
            self._core.close()
        self._free()

    def _free(self) -> None:
        # A constructor that failed left no stack, or a part of one.
        stack = self.__dict__.get("_stack")
        if stack is not None:
            stack.close()

    def __del__(self) -> None:
        """Free what was not closed; nothing can be running on it any more."""
        with contextlib.suppress(Exception):
            core = self.__dict__.get("_core")
            if core is not None:
                core.leave()
            self._free()
