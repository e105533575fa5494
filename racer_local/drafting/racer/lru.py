"""A recency order over integer node ids, O(1) per operation. Layer: pure.

Two integer arrays hold a circular list; node 0 is its head and never a member. Members are kept
from the newest to the oldest. The list does not decide what "recent" means: a member is put
right behind the head (newest) or right behind another member.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

__all__ = ["RecencyList"]


class RecencyList:
    """Integer ids from 1 to ``capacity``, ordered from the newest to the oldest."""

    __slots__ = ("_newer", "_older")

    def __init__(self, capacity: int) -> None:
        """Make an empty list.

        Args:
            capacity: largest id that will be inserted.
        """
        self._newer = array("i", bytes(4 * (capacity + 1)))
        self._older = array("i", bytes(4 * (capacity + 1)))

    def __iter__(self) -> Iterator[int]:
        """Go from the newest member to the oldest."""
        node = self._older[0]
        while node:
            yield node
            node = self._older[node]

    @property
    def oldest(self) -> int:
        """The oldest member, 0 if there is none."""
        return self._newer[0]

    @property
    def newest(self) -> int:
        """The newest member, 0 if there is none."""
        return self._older[0]

    def insert_after(self, node: int, anchor: int = 0) -> None:
        """Put ``node``, not yet a member, right behind ``anchor``; 0 makes it the newest."""
        newer, older = self._newer, self._older
        after = older[anchor]
        older[anchor] = node
        newer[node] = anchor
        older[node] = after
        newer[after] = node

    def remove(self, node: int) -> None:
        """Take out a member."""
        newer, older = self._newer, self._older
        before, after = newer[node], older[node]
        older[before] = after
        newer[after] = before

    def move_after(self, node: int, anchor: int = 0) -> None:
        """Move a member right behind ``anchor``, another member; 0 makes it the newest."""
        newer, older = self._newer, self._older
        before = newer[node]
        if before == anchor:
            return
        after = older[node]
        older[before] = after
        newer[after] = before
        after = older[anchor]
        older[anchor] = node
        newer[node] = anchor
        older[node] = after
        newer[after] = node

    def clear(self) -> None:
        """Drop all members."""
        self._newer[0] = self._older[0] = 0

    def size_bytes(self) -> int:
        """Estimate the memory held."""
        return 2 * self._newer.itemsize * len(self._newer)
