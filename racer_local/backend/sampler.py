"""llama.cpp's own sampler chain, one per request."""

from __future__ import annotations

import ctypes
import math
import secrets
import weakref

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from racer_local.config import PenaltyConfig, SamplingConfig
from racer_local.errors import DecodeError
from racer_local.speculation.tree import TokenId

__all__ = ["MIN_TEMPERATURE", "Sampler", "init_penalties"]

# Below this the distribution is a single token in float32, and dividing by it overflows.
MIN_TEMPERATURE = 1e-4


def init_penalties(config: PenaltyConfig, n_vocab: int, n_ctx: int) -> object:
    """Make the native part that penalizes recent tokens; ``n_ctx`` bounds the window."""
    last_n = n_ctx if config.penalty_last_n < 0 else min(config.penalty_last_n, n_ctx)
    part: object = llama_cpp.llama_sampler_init_penalties(
        n_vocab,
        last_n,
        config.repeat_penalty,
        config.frequency_penalty,
        config.presence_penalty,
    )
    return part


class Sampler:
    """Chooses the next token from a row of logits, exactly as llama.cpp does.

    The chain is penalties, logit bias, top-k, top-p, min-p, temperature, and a draw from what
    is left; at temperature 0 the largest logit after penalties and bias. It has state (the
    tokens before, the random generator), so rows must be sampled in the order of the text, and
    each row once: ``sample`` accepts the token that it returns.
    """

    def __init__(self, config: SamplingConfig, n_vocab: int, n_ctx: int) -> None:
        """Build the chain; ``n_ctx`` bounds the penalty window."""
        self._is_argmax = config.is_argmax
        self.seed = secrets.randbits(32) % (2**32 - 1) if config.seed is None else config.seed
        chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        if not chain:
            raise MemoryError("llama.cpp could not make a sampler chain")
        self._chain = chain
        self._close = weakref.finalize(self, llama_cpp.llama_sampler_free, chain)
        if self._is_argmax:
            return
        for part in self._parts(config, n_vocab, n_ctx):
            llama_cpp.llama_sampler_chain_add(chain, part)

    def _parts(self, config: SamplingConfig, n_vocab: int, n_ctx: int) -> list[object]:
        parts: list[object] = []
        if config.logit_bias:
            biases = (llama_cpp.llama_logit_bias * len(config.logit_bias))()
            for slot, (token, bias) in zip(biases, config.logit_bias.items(), strict=True):
                slot.token, slot.bias = token, bias
            parts.append(
                llama_cpp.llama_sampler_init_logit_bias(n_vocab, len(config.logit_bias), biases)
            )
        if config.has_penalties:
            parts.append(init_penalties(config, n_vocab, n_ctx))
        if config.temperature == 0.0:
            parts.append(llama_cpp.llama_sampler_init_greedy())
            return parts
        if config.top_k > 0:
            parts.append(llama_cpp.llama_sampler_init_top_k(config.top_k))
        if config.top_p < 1.0:
            parts.append(llama_cpp.llama_sampler_init_top_p(config.top_p, 1))
        if config.min_p > 0.0:
            parts.append(llama_cpp.llama_sampler_init_min_p(config.min_p, 1))
        temperature = max(config.temperature, MIN_TEMPERATURE)
        parts.append(llama_cpp.llama_sampler_init_temp(temperature))
        parts.append(llama_cpp.llama_sampler_init_dist(self.seed))
        return parts

    def sample(self, ctx: object, batch_row: int, logits: NDArray[np.float32]) -> TokenId:
        """Choose the token that follows a decoded row, and remember it.

        Args:
            ctx: the context that decoded the row.
            batch_row: the row's place in the batch.
            logits: float32 [n_vocab], the same row.

        Raises:
            DecodeError: the logits are not numbers; a native sampler would abort the process.
        """
        best = int(logits.argmax())
        # argmax and the samplers both let NaN win; an infinite maximum has no softmax.
        if not math.isfinite(logits[best]):
            raise DecodeError(-3, "the model computed logits that are not finite numbers")
        if self._is_argmax:
            return best
        return int(llama_cpp.llama_sampler_sample(self._chain, ctx, ctypes.c_int32(batch_row)))

    def close(self) -> None:
        """Free the chain; a second call does nothing."""
        self._close()
