"""Saved states of texts that had to leave the cache, for when they come back. Layer: pure.

A context holds one text. A side question would evict a long chat, and its next turn would read
everything again. So a text that is worth it is saved before it goes, and the state that shares
most with a new prompt is brought back. What a state is made of is the backend's business; here
it is bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from racer_local.speculation.tree import TokenId

__all__ = ["PrefixStates", "common_prefix"]

# Fewer tokens are read again sooner than a state is copied twice.
_MIN_TOKENS = 32
# A state is saved if at least this share of its text would be lost.
_MIN_LOST_SHARE = 1 / 8


def common_prefix(a: Sequence[TokenId], b: Sequence[TokenId]) -> int:
    """Return how many tokens two texts share from their beginning."""
    n = min(len(a), len(b))
    if n == 0 or a[0] != b[0]:
        return 0
    if a[:n] == b[:n]:
        return n
    differs = np.asarray(a[:n], np.int64) != np.asarray(b[:n], np.int64)
    return int(differs.argmax())


class PrefixStates:
    """Keeps the states of the most recently used texts under a limit of bytes."""

    def __init__(self, max_bytes: int, max_states: int = 4) -> None:
        """Start empty; ``max_bytes`` or ``max_states`` of 0 keeps nothing."""
        self.max_bytes = max_bytes
        self.max_states = max_states
        self._states: OrderedDict[tuple[TokenId, ...], bytes | bytearray] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        """Count the states."""
        return len(self._states)

    def is_worth_saving(self, n_tokens: int, n_kept: int) -> bool:
        """Whether to save a text of ``n_tokens`` before all but ``n_kept`` of them are dropped."""
        n_lost = n_tokens - n_kept
        is_on = self.max_bytes > 0 and self.max_states > 0
        return is_on and n_lost >= max(_MIN_TOKENS, _MIN_LOST_SHARE * n_tokens)

    def put(self, tokens: Sequence[TokenId], state: bytes | bytearray) -> bool:
        """Keep a state; older ones go where there is no room.

        Returns:
            Whether it was kept; one that is larger than the limit is not.
        """
        if len(state) > self.max_bytes or self.max_states == 0:
            return False
        key = tuple(tokens)
        self._drop(key)
        # A state whose text another one continues can never be the better choice.
        for other in [o for o in self._states if len(o) < len(key) and key[: len(o)] == o]:
            self._drop(other)
        self._states[key] = state
        self.size_bytes += len(state)
        while len(self) > self.max_states or self.size_bytes > self.max_bytes:
            self._drop(next(iter(self._states)))
        return True

    def take(
        self, prompt: Sequence[TokenId], n_shared: int, *, whole: bool = False
    ) -> tuple[list[TokenId], bytes | bytearray] | None:
        """Hand out the state that shares most with a prompt, and keep it no longer.

        Args:
            prompt: the text to be read.
            n_shared: tokens of it that are in the cache; a state has to do clearly better.
            whole: the model cannot take tokens back, so all of the state must be shared.

        Returns:
            The text of the state and its bytes, or None.
        """
        best: tuple[TokenId, ...] | None = None
        n_best = n_shared + _MIN_TOKENS // 2
        wanted = tuple(prompt)
        for tokens in self._states:
            n = min(common_prefix(tokens, wanted), len(wanted) - 1)
            if n > n_best and (not whole or n == len(tokens)):
                best, n_best = tokens, n
        if best is None:
            return None
        state = self._states[best]
        self._drop(best)
        return list(best), state

    def _drop(self, key: tuple[TokenId, ...]) -> None:
        state = self._states.pop(key, None)
        if state is not None:
            self.size_bytes -= len(state)

    def clear(self) -> None:
        """Drop all states."""
        self._states.clear()
        self.size_bytes = 0
