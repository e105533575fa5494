"""Completions: upstream prepares the prompt, the engine writes the answer."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from llama_cpp.llama_tokenizer import LlamaTokenizer

from racer_local.backend.chain import ChainConfig
from racer_local.concurrency.call_queue import Call
from racer_local.config import GenerationConfig
from racer_local.drop_in.answer import Answer, Criterion
from racer_local.drop_in.chat import needed_criteria
from racer_local.drop_in.completion import Completion
from racer_local.drop_in.core import Core, Observers
from racer_local.drop_in.low_level import LowLevelLlama
from racer_local.drop_in.responses import Json
from racer_local.errors import ContextFullError
from racer_local.speculation.stats import Stats
from racer_local.speculation.tree import TokenId

__all__ = ["CompletingLlama", "note_dropped"]

_TOO_LONG = re.compile(r"Requested tokens \((\d+)\) exceed context window of (\d+)")


class _Prepared(Exception):  # noqa: N818 - a jump, no error
    """Carries the prompt that upstream's code would generate from."""

    def __init__(self, tokens: Sequence[TokenId]) -> None:
        super().__init__()
        self.tokens = [int(token) for token in tokens]


def note_dropped(stats: Stats, n_dropped: int) -> None:
    """Tell in the statistics that messages were left out."""
    if n_dropped:
        stats.notices.append(f"the {n_dropped} oldest messages were left out to fit the context")


class CompletingLlama(LowLevelLlama):
    """Adds ``generate`` and ``create_completion``."""

    on_prefill: Callable[[int, int], None] | None = None
    last_stats: Stats | None = None
    _preparing: int | None = None

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
        n_dropped: int = 0,
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
            criteria = needed_criteria(self, stopping_criteria)
            chain = self._chain(options, logprobs=logprobs, keep_rows=bool(criteria))
            with self._answer(core, call, completion, chain, max_tokens, stop, criteria) as answer:
                note_dropped(answer.stats, n_dropped)
                if not stream:
                    whole = completion.whole(answer)
                else:
                    for chunk in completion.chunks(answer):
                        yield chunk
                        call.thread = threading.get_ident()
            with self._inside(call):
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
        criteria: Sequence[Criterion] = (),
        on_prefill: Callable[[int, int], None] | None = None,
        *,
        ahead: bool = False,
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
            ahead=ahead,
        )
        self.last_stats = stream.stats
        return Answer(
            stream,
            self._piece,
            max_tokens=max(1, n_max),
            stops=[text for text in stops if text],
            criteria=criteria,
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
