"""Log probabilities of one row of logits: all that is kept of it. Layer: pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from racer_local.speculation.topk import top_k
from racer_local.speculation.tree import TokenId

__all__ = ["TokenLogprobs", "log_probs"]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probabilities at one place.

    Attributes:
        token: the chosen token.
        logprob: its own.
        top: the likeliest tokens with theirs, likeliest first.
    """

    token: TokenId
    logprob: float
    top: tuple[tuple[TokenId, float], ...]


def log_probs(row: NDArray[np.float32], token: TokenId, n_top: int) -> TokenLogprobs:
    """Compute them from the model's own logits, float32 [n_vocab], for ``n_top`` tokens."""
    best = float(row.max())
    total = best + math.log(float(np.exp((row - np.float32(best)).astype(np.float64)).sum()))
    ids = top_k(row[None, :], n_top)[0][0] if n_top > 0 else ()
    top = tuple((int(i), float(row[i]) - total) for i in ids)
    return TokenLogprobs(token, float(row[token]) - total, top)
