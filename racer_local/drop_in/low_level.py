"""Upstream's low level: the text in the cache, its state, one row and one token at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from llama_cpp.llama import LlamaState
from numpy.typing import NDArray

from racer_local.backend.chain import ChainConfig, ChainSampler
from racer_local.backend.grammar import valid_json
from racer_local.decoding.session import Session
from racer_local.drop_in.calling import CallingLlama
from racer_local.errors import ConfigError, ContextFullError
from racer_local.speculation.tree import TokenId

__all__ = ["COMPLETION_OPTIONS", "LowLevelLlama"]

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


# All options of a completion; whatever else somebody writes is a mistake.
COMPLETION_OPTIONS = frozenset(_CHAIN_NAMES) | {
    *("echo", "grammar", "logit_bias", "logits_processor", "logprobs", "max_tokens", "model"),
    *("seed", "stop", "stopping_criteria", "stream", "suffix", "tfs_z"),
}


class LowLevelLlama(CallingLlama):
    """Adds what works on the text in the cache."""

    def _chain(self, options: Mapping[str, Any], **more: Any) -> ChainConfig:
        known = {_CHAIN_NAMES[name]: options[name] for name in options if name in _CHAIN_NAMES}
        grammar = options.get("grammar")
        bias = options.get("logit_bias") or {}
        return ChainConfig(
            **known,
            seed=self._seed % 2**32,
            penalty_last_n=self.last_n_tokens_size,
            logit_bias={int(token): float(value) for token, value in bias.items()},
            grammar=None if grammar is None else valid_json(grammar._grammar),
            processors=tuple(options.get("logits_processor") or ()),
            **more,
        )

    @property
    def n_tokens(self) -> int:
        """Tokens in the cache; setting a smaller number drops the rest."""
        session = self._session
        return self._plain_n_tokens if session is None else len(session.target.tokens)

    @n_tokens.setter
    def n_tokens(self, n: int) -> None:
        self._plain_n_tokens = n
        session = self._session
        if session is not None:
            with self._call():
                session.compute.run(
                    lambda: session.target.rewind(min(n, len(session.target.tokens)))
                )

    @property
    def input_ids(self) -> NDArray[np.int32]:
        """The tokens in the cache, in an array of the context's size: a copy."""
        session = self._session
        if session is None:
            return self._plain_input_ids
        ids = np.zeros(session.target.n_ctx, np.int32)
        ids[: len(session.target.tokens)] = session.target.tokens
        return ids

    @input_ids.setter
    def input_ids(self, ids: NDArray[np.int32]) -> None:
        if self._session is not None:
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
        session = self._session
        if session is None:
            super().eval(tokens)
            return
        ids = [int(token) for token in tokens]
        with self._call():
            session.compute.run(lambda: self._eval(session, ids))

    def _eval(self, session: Session, ids: list[TokenId]) -> None:
        target = session.target
        target.resume()
        target.resync()
        n_past = len(target.tokens)
        if n_past + len(ids) > target.n_ctx:
            raise ContextFullError(n_past + len(ids), target.n_ctx)
        n_chunk = target.n_batch
        if self._keeps_all_rows:
            n_chunk = min(n_chunk, target.max_prompt_rows)
        for start in range(0, len(ids), n_chunk):
            chunk = ids[start : start + n_chunk]
            if self._keeps_all_rows:
                rows = target.prefill(chunk, range(len(chunk)))
                self.scores[n_past + start : n_past + start + len(chunk)] = rows
            else:
                self.scores[0] = target.prefill(chunk, [len(chunk) - 1])[0]

    def sample(self, *args: Any, idx: int | None = None, **options: Any) -> TokenId:
        """Choose a token from a row of the last batch that ``eval`` computed.

        Args:
            *args: how to choose, as upstream.
            idx: position in the text of the token that the row belongs to; None is the last one.
                Others than the last have rows with ``logits_all`` only.
            **options: how to choose, as upstream.

        Raises:
            ConfigError: there is no such row.
        """
        session = self._session
        if session is None:
            token: TokenId = super().sample(*args, idx=idx, **options)
            return token
        names = ("top_k", "top_p", "min_p", "typical_p", "temp", "repeat_penalty")
        chain = self._chain({**dict(zip(names, args, strict=False)), **options})
        with self._call():
            return session.compute.run(lambda: self._sample(session, chain, idx))

    def _sample(self, session: Session, chain: ChainConfig, idx: int | None) -> TokenId:
        tokens, n_rows = session.target.tokens, len(session.target.logits())
        if n_rows == 0:
            raise ConfigError("there is nothing to sample from; call eval() first")
        row = n_rows - 1 if idx is None else n_rows + idx - len(tokens)
        if not 0 <= row < n_rows:
            raise ConfigError(
                f"idx={idx} has no logits: there are those of positions {len(tokens) - n_rows} to "
                f"{len(tokens) - 1}; open the model with logits_all=True for those of a whole batch"
            )
        sampler = ChainSampler(chain, session.target, tokens[: len(tokens) - n_rows + row + 1])
        try:
            return sampler.sample(row)
        finally:
            sampler.close()

    def reset(self) -> None:
        """Drop the text in the cache, all saved prefixes, and what was learned for drafting."""
        session = self._session
        if session is None:
            super().reset()
            return
        with self._call():
            session.compute.run(session.engine.forget)

    def save_state(self) -> LlamaState:
        """Copy the text and its cache; only ``load_state`` of this class can read it."""
        session = self._require_session()
        with self._call():
            state = bytes(session.compute.run(session.target.save_state))
            return LlamaState(
                scores=self.scores.copy(),
                input_ids=self.input_ids,
                n_tokens=len(session.target.tokens),
                llama_state=state,
                llama_state_size=len(state),
                seed=self._seed,
            )

    def load_state(self, state: LlamaState) -> None:
        """Bring back a text and its cache.

        Raises:
            RuntimeError: the state is of another model, context or class.
        """
        session = self._require_session()
        tokens = [int(token) for token in state.input_ids[: state.n_tokens]]
        with self._call():
            loaded = session.compute.run(
                lambda: session.target.load_state(tokens, state.llama_state)
            )
            if not loaded and state.n_tokens:
                raise RuntimeError("the saved state does not fit this model and context")
            self.scores[:] = state.scores[-len(self.scores) :]
            self._seed = state.seed
