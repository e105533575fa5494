"""Plain decoding written a second time, to measure the engine by. Layer: pure.

One token after the other, and the rules of sampling in NumPy: nothing here goes through the
engine, a drafter, a tree of more than one node or llama.cpp's samplers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from racer_local.config import SamplingConfig
from racer_local.speculation.target import Target
from racer_local.speculation.tree import ROOT, DraftTree, TokenId

__all__ = ["PlainDecoder", "distribution", "penalized"]


class PlainDecoder:
    """Reads a prompt, then single tokens; always knows the logits of the next one.

    Attributes:
        logits: float32 [n_vocab], a copy.
    """

    def __init__(self, target: Target, prompt: Sequence[TokenId]) -> None:
        """Read ``prompt`` into an empty cache, in the batches in which the engine reads it."""
        self._target = target
        target.rewind(0)
        for start in range(0, len(prompt), target.n_batch):
            batch = prompt[start : start + target.n_batch]
            rows = target.prefill(batch, [len(batch) - 1])
        self.logits: NDArray[np.float32] = rows[-1].copy()

    def read(self, token: TokenId) -> None:
        """Go on with a token."""
        self._target.decode_tree(DraftTree(token))
        self.logits = self._target.logits()[0].copy()
        self._target.commit([ROOT])

    def answer(self, n: int, sampling: SamplingConfig, counted: int = 1) -> list[TokenId]:
        """Generate ``n`` tokens at temperature 0, past any end.

        Args:
            n: how many.
            sampling: penalties and biases.
            counted: how often each token counts for the penalties; 2 is a fault to look for.
        """
        tokens: list[TokenId] = []
        while len(tokens) < n:
            token = int(penalized(self.logits, tokens, sampling, counted).argmax())
            tokens.append(token)
            if len(tokens) < n:
                self.read(token)
        return tokens


def penalized(
    logits: NDArray[np.float32],
    before: Sequence[TokenId],
    sampling: SamplingConfig,
    counted: int = 1,
) -> NDArray[np.float32]:
    """Return logits after biases and penalties, as llama.cpp defines them.

    Args:
        logits: float32 [n_vocab].
        before: generated tokens; the prompt does not count.
        sampling: biases and penalties.
        counted: how often each token before counts.
    """
    logits = logits.copy()
    for token, bias in sampling.logit_bias.items():
        if token < len(logits):
            logits[token] += np.float32(bias)
    if not sampling.has_penalties:
        return logits
    last = sampling.penalty_last_n
    recent = [token for token in before for _ in range(counted)]
    recent = recent if last < 0 else recent[-last:]
    repeat = np.float32(sampling.repeat_penalty)
    for token, count in Counter(recent).items():
        value = logits[token]
        value = value * repeat if value <= 0 else value / repeat
        value -= np.float32(count) * np.float32(sampling.frequency_penalty)
        logits[token] = value - np.float32(sampling.presence_penalty)
    return logits


def distribution(logits: NDArray[np.float32], sampling: SamplingConfig) -> NDArray[np.float64]:
    """Return the probabilities that sampling draws from: float64 [n_vocab].

    The order is llama.cpp's: top-k, top-p, min-p, temperature.

    Args:
        logits: float32 [n_vocab], after penalties.
        sampling: a temperature above 0.
    """
    order = np.argsort(-logits, kind="stable")
    if sampling.top_k:
        order = order[: sampling.top_k]
    if sampling.top_p < 1.0:
        reached = np.cumsum(_softmax(logits[order])) >= sampling.top_p
        order = order[: int(reached.argmax()) + 1 if reached.any() else len(order)]
    if sampling.min_p > 0.0:
        probs = _softmax(logits[order])
        order = order[probs >= sampling.min_p * probs[0]]
    found = np.zeros(len(logits))
    found[order] = _softmax(logits[order] / np.float32(sampling.temperature))
    return found


def _softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    weights = np.exp(logits.astype(np.float64) - float(logits.max()))
    probs: NDArray[np.float64] = weights / weights.sum()
    return probs
