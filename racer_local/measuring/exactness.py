"""Finds out how many rows this machine computes exactly as single ones. Layer: pure.

Kernels for several rows may add in another order than those for one row, and attention may take
another path. Where none of that happens, a draft tree gives the very logits of plain decoding.
Whether it happens depends on the weights' quantization, the KV cache's type, the length of the
context and the processor; so it is tried, in a second or two, and the answer is kept with the
step costs. How much is tried depends on the model and never on the clock: a limit that moved
with the noise of the machine would be another one tomorrow.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from racer_local.config import KvType
from racer_local.errors import UnsupportedModelError
from racer_local.measuring.cost_store import CostStore
from racer_local.speculation.target import Target
from racer_local.speculation.tree import ROOT, DraftTree, Source, TokenId

__all__ = ["ExactTarget", "find_exact_rows", "probe_exact_rows"]

# Tokens that are read, and how often their cells are there in the second round: llama.cpp's
# attention takes another path for single rows from 512 cells on where the cache's type allows it.
_N_READ = 32
_COPIES = 19
# Kernels work on groups of 4, 8 or 16 rows: sizes around those.
_SIZES = (2, 3, 4, 5, 8, 16)
_LARGE_SIZES = (24, 32, 48, 64, 96, 128, 192, 256)
# Larger trees than 16 rows are tried where the weights are smaller: elsewhere they seldom pay on a
# processor, and trying them takes seconds.
_SMALL_BYTES = 256 * 2**20
# Rows to compare, by the bytes of the weights: a large model must not keep anybody waiting.
_N_COMPARED = ((2**30, 16), (4 * 2**30, 8), (float("inf"), 4))
# What was found in one context is checked in the other with few.
_N_CHECKED = 4


class ExactTarget(Target, Protocol):
    """A target that can be limited, and whose context can be made to look long.

    Attributes:
        kv_type: element type of the KV cache, by its ggml name.
    """

    kv_type: KvType

    @property
    def cpu_bytes(self) -> int:
        """Weights that the processor reads for every token; 0 where a GPU does."""

    def limit_nodes(self, max_nodes: int) -> None:
        """Take smaller trees from now on."""

    def multiply_cells(self, n_copies: int) -> None:
        """Add copies of all cells to the cache; ``rewind(0)`` ends it."""


def find_exact_rows(target: ExactTarget, store: CostStore) -> int:
    """Return how many rows are computed exactly, from the store or by a probe.

    Limits an exact target to trees of so many. A target that takes no drafts has 1: plain
    decoding is always exact. Nor is one probed that has no q8_0 cache and does not ask for
    exactness: long contexts are never exact there.

    Raises:
        UnsupportedModelError: exactness was asked for, and not even two rows are computed as one.
    """
    if not target.max_nodes or (not target.is_exact and target.kv_type != "q8_0"):
        return 1
    n_rows = store.load_exact_rows()
    if n_rows is None:
        n_rows = probe_exact_rows(target)
        store.save_exact_rows(n_rows)
    if not target.is_exact:
        return n_rows
    if n_rows < 2:
        raise UnsupportedModelError(
            "exact drafting is impossible here: llama.cpp computes two tokens of this model at "
            "once differently from one at a time; use --draft off (plain decoding is always "
            "exact), decode without exact, or take another quantization of the model"
        )
    target.limit_nodes(n_rows - 1)
    return n_rows


def probe_exact_rows(target: ExactTarget) -> int:
    """Return the most rows that are computed, bit for bit, as one row after the other is.

    A short context and one beyond 512 cells are tried, and a side branch that wins.

    Args:
        target: anything in its cache is dropped.
    """
    n_read = min(_N_READ, target.n_ctx // 4)
    n_rows = min(target.max_nodes + 1, target.n_ctx // 2)
    if target.cpu_bytes > _SMALL_BYTES:
        n_rows = min(n_rows, _SIZES[-1])
    n_copies = max(0, min(_COPIES, (target.n_ctx - n_rows) // _N_READ - 1))
    n_compared = next(n for limit, n in _N_COMPARED if target.cpu_bytes <= limit)
    try:
        if n_rows >= 2:
            n_rows = _Rows(target, n_read, n_copies, n_compared).count_identical(n_rows)
        if n_rows >= 2 and n_copies:
            n_rows = _Rows(target, n_read, 0, min(n_compared, _N_CHECKED)).confirm(n_rows)
    finally:
        target.rewind(0)
    return n_rows


class _Rows:
    """One context, a text to go on with, and its logits from single rows."""

    def __init__(self, target: ExactTarget, n_read: int, n_copies: int, n_compared: int) -> None:
        """Read some tokens, and then their copies; get the logits of single rows after them."""
        self._target = target
        target.rewind(0)
        target.prefill(_tokens(n_read, target.n_vocab), [])
        if n_copies:
            target.multiply_cells(n_copies)
        self._n_past = len(target.tokens)
        n_compared = max(1, min(n_compared, target.n_ctx // 2))
        self._text = _tokens(max(n_compared, 3) + 1, target.n_vocab, start=100)
        self._expected = [self._single(token) for token in self._text[:n_compared]]
        self._back()

    def _single(self, token: TokenId) -> NDArray[np.float32]:
        self._target.decode_tree(DraftTree(token))
        row: NDArray[np.float32] = self._target.logits()[0].copy()
        self._target.commit([ROOT])
        return row

    def _back(self) -> None:
        self._target.rewind(self._n_past)

    def count_identical(self, n_max: int) -> int:
        """Try sizes, rising; return the last one before a difference."""
        n_good = 1
        # A limit between two sizes is of no kernel's making.
        for n in (*(n for n in (*_SIZES, *_LARGE_SIZES) if n < n_max), n_max):
            if not self._size_is_identical(n):
                break
            n_good = n
        if n_good >= 3 and not self._repair_is_identical():
            return 1
        return n_good

    def confirm(self, n: int) -> int:
        """Try a size that was found elsewhere; where it is not good, look for one that is."""
        is_good = self._size_is_identical(2) and self._size_is_identical(n)
        if is_good and (n < 3 or self._repair_is_identical()):
            return n
        return self.count_identical(n)

    def _size_is_identical(self, n: int) -> bool:
        """Compare the first rows of a batch, and the last ones of a larger batch."""
        n_compared = len(self._expected)
        if n <= _SIZES[-1] and not self._is_identical(self._chain(n), 0, min(n, n_compared)):
            return False
        return n <= n_compared or self._is_identical(self._late_branch(n), n - n_compared, n)

    def _chain(self, n: int) -> DraftTree:
        tokens = (self._text * (n // len(self._text) + 1))[:n]
        tree = DraftTree(tokens[0])
        for node, token in enumerate(tokens[1:]):
            tree.add(node, token, Source.LOGITS)
        return tree

    def _late_branch(self, n: int) -> DraftTree:
        """Make a tree whose first branch is filler and whose last is the text."""
        tree = DraftTree(self._text[0])
        node = ROOT
        for _ in range(n - len(self._expected)):
            node = tree.add(node, self._text[-1], Source.LOGITS)
        node = ROOT
        for token in self._text[1 : len(self._expected)]:
            node = tree.add(node, token, Source.LOGITS)
        return tree

    def _is_identical(self, tree: DraftTree, start: int, end: int) -> bool:
        """Compare the rows [start, end), where the text is, with single ones."""
        nodes = self._target.decode_tree(tree).nodes
        rows = self._target.logits()
        # The root is the first row, also where the text is not the first branch.
        same = all(
            np.array_equal(rows[row], self._expected[tree.depths[nodes[row]]])
            for row in (ROOT, *range(start + 1, end))
        )
        self._back()
        return same

    def _repair_is_identical(self) -> bool:
        """Let a side branch win, and see whether the next row is still the same."""
        tree = DraftTree(self._text[0])
        tree.add(ROOT, self._text[-1], Source.LOGITS)
        node = tree.add(ROOT, self._text[1], Source.LOGITS)
        self._target.decode_tree(tree)
        self._target.commit([ROOT, node])
        row = self._single(self._text[2])
        self._back()
        return bool(np.array_equal(row, self._expected[2]))


def _tokens(n: int, n_vocab: int, start: int = 11) -> list[TokenId]:
    return [(7919 * i + start) % n_vocab for i in range(n)]
