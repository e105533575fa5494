"""Completions: upstream's arguments and answers around a session's stream."""

from __future__ import annotations

import random
import threading
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from llama_cpp.llama_tokenizer import LlamaTokenizer

from racer_local.backend.chain import ChainConfig
from racer_local.concurrency.call_queue import Call
from racer_local.config import GenerationConfig
from racer_local.decoding.answer import Answer, Criterion
from racer_local.drop_in.chat import needed_criteria
from racer_local.drop_in.completion import Completion
from racer_local.drop_in.low_level import LowLevelLlama
from racer_local.drop_in.responses import Json
from racer_local.errors import ContextFullError
from racer_local.speculation.stats import Stats
from racer_local.speculation.tree import TokenId

__all__ = ["CompletingLlama", "note_dropped"]


def note_dropped(stats: Stats, n_dropped: int) -> None:
    """Tell in the statistics that messages were left out."""
    if n_dropped:
        stats.notices.append(f"the {n_dropped} oldest messages were left out to fit the context")


class CompletingLlama(LowLevelLlama):
    """Adds ``generate`` and ``create_completion``."""

    on_prefill: Callable[[int, int], None] | None = None
    last_stats: Stats | None = None

    def generate(self, tokens: Sequence[TokenId], *args: Any, **options: Any) -> Any:
        """Yield the tokens that follow ``tokens``; see ``llama_cpp.Llama.generate``."""
        if self._session is None:
            return super().generate(tokens, *args, **options)
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
        session = self._require_session()
        criteria = () if stopping_criteria is None else (stopping_criteria,)
        chain = self._chain(options, keep_rows=bool(criteria))
        with self._call() as call:
            prompt = [int(token) for token in tokens]
            if not reset:
                prompt = session.target.tokens + prompt
            while True:
                given = None
                room = session.target.n_ctx - len(prompt)
                limits = GenerationConfig(max_tokens=max(1, room), ignore_eos=True)
                with session.stream(
                    prompt,
                    chain,
                    limits,
                    on_prefill=self.on_prefill,
                    criteria=criteria,
                    ahead=False,
                    call=call,
                ) as answer:
                    self.last_stats = answer.stats
                    for event in answer:
                        if event.token is None:
                            return
                        call.thread = threading.get_ident()
                        given = yield event.token
                        if given is not None:
                            break
                prompt.extend(answer.tokens)
                prompt.extend(int(token) for token in given or ())

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
        with self._call() as call:
            completion = Completion(
                prompt=prompt,
                tokens=self._prepare(call, prompt, suffix, seed),
                piece=self._piece,
                bos=self.token_bos(),
                model=self.model_path if model is None else model,
                n_logprobs=logprobs,
                echo=echo and not stream,
            )
            criteria = needed_criteria(self, stopping_criteria)
            chain = self._chain(options, logprobs=logprobs, keep_rows=bool(criteria))
            with self._answer(call, completion, chain, max_tokens, stop, criteria) as answer:
                note_dropped(answer.stats, n_dropped)
                if not stream:
                    whole = completion.whole(answer)
                else:
                    for chunk in completion.chunks(answer):
                        yield chunk
                        call.thread = threading.get_ident()
            self._keep(call, answer)
        if not stream:
            yield whole

    def _prepare(
        self, call: Call, prompt: str | list[TokenId], suffix: str | None, seed: int | None
    ) -> list[TokenId]:
        """Tokenize a prompt, look into the user's cache of states, and set the seed.

        Raises:
            ConfigError: there is a suffix, and the model has no tokens to fill in the middle.
            ContextFullError: the prompt leaves no room for an answer.
        """
        tokens = self._prompt_tokens(prompt, suffix or "")
        if tokens[:2] == [self.token_bos()] * 2:
            warnings.warn(
                # The beginning is upstream's: programs filter by it.
                "Detected duplicate leading BOS token in prompt: one is put there anyway",
                RuntimeWarning,
                stacklevel=4,
            )
        n_ctx = self._require_session().target.n_ctx
        if len(tokens) >= n_ctx:
            raise ContextFullError(len(tokens), n_ctx)
        if self.cache:
            with self._inside(call):
                self._look_up(tokens)
        # As upstream: without a seed the model's own gives one, and moves on.
        self.set_seed(random.Random(self._seed).randint(0, 2**32) if seed is None else seed)
        return tokens

    def _prompt_tokens(self, prompt: str | list[TokenId], suffix: str) -> list[TokenId]:
        native = self._model
        if isinstance(prompt, str):
            # Control tokens are read as such, but not where text is to be filled in.
            text = prompt.encode("utf-8")
            tokens = self.tokenize(text, add_bos=False, special=not suffix) if prompt else []
        else:
            tokens = [int(token) for token in prompt]
            if not suffix:
                return tokens
        if suffix:
            before, after, middle = self._require_session().model.fill_in_tokens()
            # What a tokenizer puts before a text is not wanted in the middle of one.
            sign = self.tokenize("☺".encode(), add_bos=False, special=False)
            end = self.tokenize(f"☺{suffix}".encode(), add_bos=False, special=False)[len(sign) :]
            parts = [[after, *end], [before, *tokens]]
            first, second = parts if self.spm_infill else reversed(parts)
            tokens = [*first, *second, middle]
        cls, sep = native.token_cls(), native.token_sep()
        bos = self.token_bos() if cls == -1 else cls
        eos = self.token_eos() if sep == -1 else sep
        head = [bos] if native.add_bos_token() and bos != -1 else []
        tail = [eos] if native.add_eos_token() or sep != -1 else []
        return [*head, *tokens, *tail]

    def _look_up(self, tokens: list[TokenId]) -> None:
        """Take a state from the user's cache if it has more of the prompt than the context."""
        try:
            state = self.cache[tokens]
        except KeyError:
            return
        common = self.longest_token_prefix
        held = self._require_session().target.tokens
        if common(state.input_ids.tolist(), tokens) > common(held, tokens):
            self.load_state(state)

    def _answer(
        self,
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
        session, tokens = self._require_session(), completion.tokens
        # An empty prompt is read as BOS, which upstream counts as part of the answer.
        n_extra = 0 if len(completion.prompt) else 1
        room = session.target.n_ctx - len(tokens)
        n_max = room if max_tokens is None or max_tokens <= 0 else min(max_tokens - n_extra, room)
        stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
        answer = session.stream(
            tokens,
            chain,
            GenerationConfig(max_tokens=max(1, n_max), stop=tuple(text for text in stops if text)),
            on_prefill=on_prefill or self.on_prefill,
            on_prompt_rows=completion.prompt_rows_observer,
            criteria=criteria,
            piece=self._piece,
            errors="ignore",
            ahead=ahead,
            call=call,
        )
        self.last_stats = answer.stats
        return answer

    def _piece(self, token: TokenId, before: Sequence[TokenId]) -> bytes:
        if type(self.tokenizer_) is LlamaTokenizer:
            return self._require_session().model.piece(token)
        piece: bytes = self.detokenize([token], prev_tokens=list(before))
        return piece

    def _keep(self, call: Call, answer: Answer) -> None:
        if answer.last_row is not None:
            n_text = len(answer.prompt) + len(answer.tokens)
            self.scores[min(n_text, len(self.scores)) - 1] = answer.last_row
        if self.cache:
            with self._inside(call):
                self.cache[[*answer.prompt, *answer.tokens]] = self.save_state()
