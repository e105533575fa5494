"""The text of one slot of a context: its tokens, and the cells and sequence ids that hold them."""

from __future__ import annotations

from collections.abc import Sequence

from racer_local.backend.kv import KvCache
from racer_local.backend.layout import TreeLayout, plan_commit
from racer_local.errors import ClosedError
from racer_local.speculation.tree import DraftTree, NodeId, TokenId

__all__ = ["TextSlot"]


class TextSlot:
    """One text in the KV cache; every sequence id of the slot holds all of it.

    See ``Slot`` for the methods.

    Attributes:
        tokens: the text.
        n_ctx: most tokens of it.
        can_rewind: whether it can be shortened by some of its tokens.
    """

    n_ctx: int
    can_rewind: bool
    # Whoever opens a context puts its cache here.
    _kv: KvCache

    def __init__(self) -> None:
        """Begin without a text."""
        self.tokens: list[TokenId] = []
        # What was decoded and awaits its commit.
        self._tree: DraftTree | None = None
        self._layout: TreeLayout | None = None
        # Cells past the text may exist: a decode or commit is under way, or was cut short.
        self._is_dirty = False

    @property
    def is_closed(self) -> bool:
        """Whether the cells have been freed."""
        raise NotImplementedError

    def _require_open(self) -> None:
        if self.is_closed:
            raise ClosedError("the model was closed; open it again to use it")

    def resync(self) -> None:
        """Drop the text if the cache does not end where it does: somebody else used it."""
        self._require_open()
        if not self._kv.all_end_at(len(self.tokens) - 1):
            self.clear()

    def commit(self, path: Sequence[NodeId]) -> None:
        """Keep the path of the decoded tree in every sequence; see ``Slot.commit``."""
        if self._layout is None or self._tree is None:
            raise RuntimeError("commit without a decoded tree")
        tree, layout, n_past = self._tree, self._layout, len(self.tokens)
        end = n_past + len(path)
        # The first rows of the batch are in cells without a gap between them; one row alone needs
        # no edits.
        if layout.row_of[path[-1]] != len(path) - 1:
            self._kv.close_gap(layout.first_ids[layout.row_of[path[-1]]], n_past + 1, end)
        elif len(tree) > 1:
            self._kv.apply(plan_commit(layout, path, n_past))
        self.tokens.extend(tree.tokens[node] for node in path)
        self._tree = self._layout = None
        self._is_dirty = False

    def rewind(self, n_tokens: int) -> None:
        """Shorten the text to ``n_tokens``; where that is impossible, to nothing."""
        if self.is_closed:
            return
        self._tree = self._layout = None
        if n_tokens == len(self.tokens) and not self._is_dirty:
            return
        is_shorter = n_tokens < len(self.tokens)
        removed = n_tokens > 0 and self._kv.remove(n_tokens)
        # A saved text of a sliding-window model comes back with its last window only: good to go
        # on from its end, but an earlier position would see too little.
        is_whole = not is_shorter or self._kv.all_begin_at_zero()
        if removed and is_whole and self._kv.all_end_at(n_tokens - 1):
            del self.tokens[n_tokens:]
            self._is_dirty = False
        else:
            self.clear()

    def clear(self) -> None:
        """Drop the text and its cells."""
        self._kv.clear()
        self.tokens.clear()
        self._tree = self._layout = None
        self._is_dirty = False

    def save_state(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Copy the state of the text out of the cache; see ``Slot.save_state``."""
        self._require_open()
        self.rewind(len(self.tokens))
        if not self.tokens or (max_bytes is not None and self._kv.state_bytes() > max_bytes):
            return b""
        return self._kv.save()

    def load_state(self, tokens: Sequence[TokenId], state: bytes | bytearray) -> bool:
        """Put a text and its saved state in place of what the cache holds.

        Returns:
            False if llama.cpp refuses the state: the cache is empty then.
        """
        self._require_open()
        self.clear()
        self._is_dirty = True
        fits = 0 < len(tokens) <= self.n_ctx and bool(state)
        if not (fits and self._kv.load(state) and self._kv.all_end_at(len(tokens) - 1)):
            self.clear()
            return False
        self.tokens = list(tokens)
        self._is_dirty = False
        return True

    def positions(self) -> list[tuple[int, int]]:
        """Return the first and last cached position of every sequence; (-1, -1) is empty."""
        return self._kv.positions()
