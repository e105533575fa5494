"""Upstream's low level: the text in the cache, its state, one row and one token at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from llama_cpp.llama import LlamaState
from numpy.typing import NDArray

from racer_local.backend.chain import ChainConfig, ChainSampler
from racer_local.drop_in.calling import CallingLlama
from racer_local.drop_in.core import Core
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


def _valid_json(grammar: str) -> str:
    """Forbid raw control characters where upstream's rule for JSON strings lets them through."""
    return grammar.replace('char ::= [^"\\\\] |', 'char ::= [^"\\\\\\x7F\\x00-\\x1F] |')


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
            grammar=None if grammar is None else _valid_json(grammar._grammar),
            processors=tuple(options.get("logits_processor") or ()),
            **more,
        )

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
