"""Plain decoding by llama-cpp-python itself, as the yardstick of sameness.

Batched kernels round differently from single-token ones, so texts may part at near-ties. Here
plain decoding follows the other text token by token (batches of one) and reports every place
where it would have chosen differently, with the gap between the two logits: rounding shows as
rare, small gaps; a wrong mask, position or cache shows as large or frequent ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from racer_local.backend.native import physical_cores
from racer_local.config import SamplingConfig
from racer_local.hardware.native_check import extra_buffers_are_safe

MAX_FORKS_PER_64 = 2
# Of a tiny random model, whose choices are close far more often.
TINY_FORKS_PER_64 = 16
# Rounding moves single logits of a small model by up to about 1; nearly all forks are closer ties.
MAX_GAP = 1.0
NEAR_TIE = 0.25


@dataclass(frozen=True)
class Fork:
    """A place where plain decoding would have chosen another token."""

    at: int
    gap: float


def _penalise(
    logits: NDArray[np.float32], recent: Sequence[int], config: SamplingConfig
) -> NDArray[np.float32]:
    logits = logits.copy()
    for token, bias in config.logit_bias.items():
        logits[token] += bias
    if config.has_penalties:
        for token, count in Counter(recent[-config.penalty_last_n :]).items():
            value = logits[token]
            value = value * config.repeat_penalty if value <= 0 else value / config.repeat_penalty
            logits[token] = value - count * config.frequency_penalty - config.presence_penalty
    return logits


class PlainLlama:
    """``llama_cpp.Llama`` with flash attention and the threads that we use ourselves."""

    def __init__(self, path: Path, n_ctx: int = 2048, **more: Any) -> None:
        n = physical_cores()
        assert extra_buffers_are_safe(), "this llama.cpp build crashes; reinstall it (make setup)"
        self.llama = llama_cpp.Llama(
            str(path),
            n_ctx=n_ctx,
            n_threads=n,
            n_threads_batch=n,
            flash_attn=True,
            swa_full=True,
            verbose=False,
            # What we take on a processor where nothing else is asked for.
            **{"type_k": llama_cpp.GGML_TYPE_Q8_0, "type_v": llama_cpp.GGML_TYPE_Q8_0, **more},
        )

    def _logits(self) -> NDArray[np.float32]:
        pointer = llama_cpp.llama_get_logits_ith(self.llama.ctx, -1)
        return np.ctypeslib.as_array(pointer, (self.llama.n_vocab(),))

    def greedy(
        self, prompt: Sequence[int], n: int, config: SamplingConfig | None = None
    ) -> list[int]:
        """Generate up to ``n`` tokens, the end token left out."""
        self.llama.reset()
        self.llama.eval(list(prompt))
        tokens: list[int] = []
        config = config or SamplingConfig(temperature=0)
        while len(tokens) < n:
            token = int(_penalise(self._logits(), tokens, config).argmax())
            if llama_cpp.llama_vocab_is_eog(self.llama._model.vocab, token):
                break
            tokens.append(token)
            if len(tokens) < n:
                self.llama.eval([token])
        return tokens

    def forks(
        self,
        prompt: Sequence[int],
        tokens: Sequence[int],
        config: SamplingConfig | None = None,
        *,
        is_finished: bool = False,
    ) -> list[Fork]:
        """Follow ``tokens`` and list where plain decoding would have left them.

        Args:
            prompt: what comes before.
            tokens: a generated text, without its end token.
            config: its greedy sampling settings.
            is_finished: an end token followed, and is checked too.
        """
        config = config or SamplingConfig(temperature=0)
        self.llama.reset()
        self.llama.eval(list(prompt))
        found = []
        for at in range(len(tokens) + is_finished):
            logits = _penalise(self._logits(), tokens[:at], config)
            best = int(logits.argmax())
            if at == len(tokens):
                if not llama_cpp.llama_vocab_is_eog(self.llama._model.vocab, best):
                    ends = [t for t in range(16) if self._is_end(t)]
                    found.append(Fork(at, float(logits[best] - max(logits[t] for t in ends))))
                break
            if best != tokens[at]:
                found.append(Fork(at, float(logits[best] - logits[tokens[at]])))
            if at + 1 < len(tokens) + is_finished:
                self.llama.eval([tokens[at]])
        return found

    def _is_end(self, token: int) -> bool:
        return bool(llama_cpp.llama_vocab_is_eog(self.llama._model.vocab, token))

    def close(self) -> None:
        self.llama.close()


def assert_same_as_plain(
    plain: PlainLlama,
    prompt: Sequence[int],
    tokens: Sequence[int],
    config: SamplingConfig | None = None,
    *,
    is_finished: bool = False,
    forks_per_64: int = MAX_FORKS_PER_64,
) -> list[Fork]:
    """Fail unless every difference from plain decoding is a rare near-tie."""
    forks = plain.forks(prompt, tokens, config, is_finished=is_finished)
    assert all(fork.gap < MAX_GAP for fork in forks), forks
    assert len(forks) <= forks_per_64 * max(1, -(-len(tokens) // 64)), forks
    return forks


def assert_same_as_tiny(
    plain: PlainLlama,
    prompt: Sequence[int],
    tokens: Sequence[int],
    config: SamplingConfig | None = None,
) -> list[Fork]:
    """Fail unless every difference from plain decoding by a tiny random model is a near-tie."""
    return assert_same_as_plain(plain, prompt, tokens, config, forks_per_64=TINY_FORKS_PER_64)


@contextmanager
def plain_llama(path: Path, n_ctx: int = 2048) -> Iterator[PlainLlama]:
    """Open a plain model for a while."""
    plain = PlainLlama(path, n_ctx)
    try:
        yield plain
    finally:
        plain.close()
