"""Everything ``llama_cpp.Llama`` can sample with, row by row along the accepted path.

``Sampler`` is the fast way for the usual settings. Here are grammars, Python logits processors,
mirostat, typical sampling and logprobs as well. All of it works with drafts: verification asks
for one row after another in the order of the text, and each row once, so whatever has state sees
exactly what plain decoding would show it.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from racer_local.backend.grammar import CANDIDATE, Grammar, candidate_array
from racer_local.backend.sampler import MIN_TEMPERATURE, init_penalties
from racer_local.backend.target import LlamaTarget
from racer_local.config import PenaltyConfig
from racer_local.errors import ConfigError, DecodeError
from racer_local.speculation.logprobs import TokenLogprobs, log_probs
from racer_local.speculation.tree import DraftTree, NodeId, TokenId

__all__ = ["ChainConfig", "ChainSampler", "LogitsProcessor"]

LogitsProcessor: TypeAlias = Callable[[NDArray[np.int32], NDArray[np.float32]], NDArray[np.float32]]

_MIROSTAT_M = 100
_DEAD_END = "the grammar allows no token of this model's vocabulary here; it cannot be met"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainConfig(PenaltyConfig):
    """How tokens are chosen: the names, meanings and order of ``llama_cpp.Llama``.

    Attributes:
        grammar: GBNF source; None is free text.
        processors: called one after the other with the ids so far and the logits.
        logprobs: how many of the likeliest tokens to report per token; None reports none.
        keep_rows: keep the logits of every sampled row until it is taken.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    mirostat_mode: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    seed: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    grammar: str | None = None
    processors: Sequence[LogitsProcessor] = ()
    logprobs: int | None = None
    keep_rows: bool = False


class ChainSampler:
    """Chooses tokens for one request; see ``TokenSampler``.

    Attributes:
        seed: of the random generator.
        logprobs: one entry per sampled token, if asked for; whoever emits tokens takes them.
        rows: float32 [n_vocab] per sampled token, if asked for.
    """

    def __init__(self, config: ChainConfig, target: LlamaTarget, prompt: Sequence[TokenId]) -> None:
        """Build the native parts.

        Args:
            config: how tokens are chosen.
            target: whose rows are sampled.
            prompt: the ids that logits processors see before the first token.

        Raises:
            ConfigError: the grammar cannot be read, or a biased token is not in the vocabulary.
        """
        self._config = config
        self._target = target
        self.seed = config.seed
        self.logprobs: deque[TokenLogprobs] = deque()
        self.rows: deque[NDArray[np.float32]] = deque()
        self._n_vocab = n_vocab = target.n_vocab
        self._history = np.empty(max(target.n_ctx, len(prompt)) + 1, np.int32)
        self._history[: len(prompt)] = prompt
        self._n_history = len(prompt)
        for token in config.logit_bias:
            if not 0 <= token < n_vocab:
                raise ConfigError(f"logit_bias names token {token}; the vocabulary has {n_vocab}")
        self._bias_ids = np.fromiter(config.logit_bias.keys(), np.int64, len(config.logit_bias))
        self._biases = np.fromiter(config.logit_bias.values(), np.float32, len(config.logit_bias))
        self._is_greedy = config.temperature == 0.0
        self._is_argmax = self._is_greedy and not config.has_penalties and config.grammar is None
        self._grammar: Grammar | None = None
        # Whether only the `top_k` likeliest tokens can be drawn.
        self._has_cut = False
        parts: list[object] = []
        self._close = weakref.finalize(self, _free_all, parts)
        # Before the grammar: penalties. After it: what chooses.
        self._penalties = _chain(parts)
        self._choice = _chain(parts)
        if config.grammar is not None:
            self._grammar = Grammar(target.model, config.grammar)
        self._build()
        self._candidates = np.zeros(n_vocab, CANDIDATE)
        self._ids = np.arange(n_vocab, dtype=np.int32)

    def _build(self) -> None:
        config, n_vocab, seed = self._config, self._n_vocab, self.seed
        add = llama_cpp.llama_sampler_chain_add
        if config.has_penalties:
            add(self._penalties, init_penalties(config, n_vocab, self._target.n_ctx))
        if self._is_greedy:
            return
        if config.temperature > 0 and config.mirostat_mode == 1:
            parts = [
                llama_cpp.llama_sampler_init_mirostat(
                    n_vocab, seed, config.mirostat_tau, config.mirostat_eta, _MIROSTAT_M
                )
            ]
        elif config.temperature > 0 and config.mirostat_mode == 2:
            parts = [
                llama_cpp.llama_sampler_init_mirostat_v2(
                    seed, config.mirostat_tau, config.mirostat_eta
                )
            ]
        else:
            parts = []
            if config.temperature > 0:
                self._has_cut = True
                parts = [
                    llama_cpp.llama_sampler_init_top_k(config.top_k),
                    llama_cpp.llama_sampler_init_typical(config.typical_p, 1),
                    llama_cpp.llama_sampler_init_top_p(config.top_p, 1),
                    llama_cpp.llama_sampler_init_min_p(config.min_p, 1),
                    llama_cpp.llama_sampler_init_temp(max(config.temperature, MIN_TEMPERATURE)),
                ]
            parts.append(llama_cpp.llama_sampler_init_dist(seed))
        for part in parts:
            add(self._choice, part)

    @property
    def history(self) -> NDArray[np.int32]:
        """The ids of prompt and answer so far: a view."""
        return self._history[: self._n_history]

    def history_until(self, n: int) -> NDArray[np.int32]:
        """Return the first ``n`` ids of prompt and answer: a copy."""
        return np.array(self._history[:n])

    def sample(self, row: int) -> TokenId:
        """Choose the token after a row of the latest batch, and remember it.

        Raises:
            DecodeError: the logits are not numbers.
            ConfigError: a logits processor or the grammar left no token to choose.
        """
        raw = self._target.logits()[row]
        if not math.isfinite(float(raw[raw.argmax()])):
            raise DecodeError(-3, "the model computed logits that are not finite numbers")
        logits = self._processed(raw)
        token = int(logits.argmax()) if self._is_argmax else self._choose(logits)
        if self._config.logprobs is not None:
            self.logprobs.append(log_probs(raw, token, self._config.logprobs))
        if self._config.keep_rows:
            self.rows.append(raw.copy())
        if self._n_history < len(self._history):
            self._history[self._n_history] = token
            self._n_history += 1
        return token

    def forbidden(self, tree: DraftTree) -> set[NodeId]:
        """Return draft nodes that the grammar rules out; see ``TreePruner``."""
        return set() if self._grammar is None else self._grammar.forbidden(tree)

    def _processed(self, raw: NDArray[np.float32]) -> NDArray[np.float32]:
        """Apply what is written in Python; ``raw`` itself stays as it is."""
        if not len(self._bias_ids) and not self._config.processors:
            return raw
        logits: NDArray[np.float32] = raw.copy()
        for processor in self._config.processors:
            changed = processor(self.history.copy(), logits)
            logits = np.array(changed, np.float32)
            if logits.shape != raw.shape:
                raise ConfigError(
                    f"a logits processor returned shape {logits.shape}; it must be {raw.shape}"
                )
        logits[self._bias_ids] += self._biases
        best = float(logits[logits.argmax()])
        if not math.isfinite(best):
            raise ConfigError("the logits processors left no token to choose, or gave NaN")
        return logits

    def _choose(self, logits: NDArray[np.float32]) -> TokenId:
        if self._config.has_penalties:
            self._fill(logits)
            array = candidate_array(self._candidates)
            llama_cpp.llama_sampler_apply(self._penalties, ctypes.byref(array))
            logits = np.ascontiguousarray(self._candidates["logit"])
        token = self._greedy(logits) if self._is_greedy else self._draw(logits)
        llama_cpp.llama_sampler_accept(self._penalties, token)
        llama_cpp.llama_sampler_accept(self._choice, token)
        if self._grammar is not None:
            self._grammar.accept(token)
        return token

    def _fill(self, logits: NDArray[np.float32]) -> None:
        candidates = self._candidates
        candidates["id"] = self._ids
        candidates["logit"] = logits
        candidates["p"] = 0.0

    def _greedy(self, logits: NDArray[np.float32]) -> TokenId:
        if self._grammar is None:
            return int(logits.argmax())
        token = self._grammar.best(logits)
        if token is None:
            raise ConfigError(_DEAD_END)
        return token

    def _draw(self, logits: NDArray[np.float32]) -> TokenId:
        ids = self._ids
        if self._grammar is not None:
            ids = self._drawable(self._grammar, logits)
            if len(ids) < len(logits):
                logits = logits[ids]
        candidates = self._candidates[: len(ids)]
        candidates["id"] = ids
        candidates["logit"] = logits
        candidates["p"] = 0.0
        array = candidate_array(candidates)
        llama_cpp.llama_sampler_apply(self._choice, ctypes.byref(array))
        if not 0 <= array.selected < array.size:
            raise DecodeError(-3, "llama.cpp's sampler chose no token")
        return int(array.data[array.selected].id)

    def _drawable(self, grammar: Grammar, logits: NDArray[np.float32]) -> NDArray[np.int32]:
        """Return the allowed tokens, or as many of them as survive the first cut."""
        n = self._config.top_k if self._has_cut else 0
        allowed = grammar.likeliest(logits, n) if n > 0 else grammar.allowed()
        allowed = allowed[np.isfinite(logits[allowed])]
        if not len(allowed):
            raise ConfigError(_DEAD_END)
        return allowed

    def close(self) -> None:
        """Free the native parts; a second call does nothing."""
        self._close()
        if self._grammar is not None:
            self._grammar.close()


def _chain(parts: list[object]) -> object:
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    if not chain:
        raise MemoryError("llama.cpp could not make a sampler chain")
    parts.append(chain)
    return chain


def _free_all(parts: list[object]) -> None:
    while parts:
        llama_cpp.llama_sampler_free(parts.pop())
