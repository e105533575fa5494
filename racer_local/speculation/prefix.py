"""What two texts have in common: the one way in which a known text is found again."""

from __future__ import annotations

from racer_local.speculation.tree import TokenId

__all__ = ["common_prefix"]


def common_prefix(a: list[TokenId], b: list[TokenId]) -> int:
    """Return how many tokens two texts share from their beginning."""
    low, high = 0, min(len(a), len(b))
    # Comparing slices takes a fraction of the time of a loop over tokens.
    if a[:high] == b[:high]:
        return high
    # a[:low] is shared and a[:high] is not.
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
