"""Finds out how many rows this machine computes exactly as single ones. Layer: pure.

Kernels for several rows may add in another order than those for one row, and attention may take
another path. Where none of that happens, a draft tree gives the very logits of plain decoding.
Whether it happens depends on the weights' quantization, the KV cache's type, the length of the
context and the processor; so it is tried, in about a second, and the answer is kept with the
step costs.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from racer_local.backend.base import Target
from racer_local.config import KvType
from racer_local.cost_store import CostStore
from racer_local.errors import UnsupportedModelError
from racer_local.tree import ROOT, DraftTree, Source, TokenId

__all__ = ["ExactTarget", "find_exact_rows", "probe_exact_rows"]

# Tokens that are read, and how often their cells are there in the second round: llama.cpp's
# attention takes another path for single rows from 512 cells on where the cache's type allows it.
_N_READ = 32
_COPIES = 19
# Kernels work on groups of 4, 8 or 16 rows: sizes around those. What was found in one context is
# checked in the other with few.
_SIZES = (2, 3, 4, 5, 8, 16)
_CHECK_SIZES = (2,)
_N_CHECKED = 4
# Larger ones where a row costs less than this share of a single one: elsewhere they never pay.
_CHEAP = 0.375
_LARGE_SIZES = (17, 24, 32, 48, 64, 96, 128, 192, 256)
# Rows to compare, by the seconds of a single step: a large model must not keep anybody waiting.
_N_COMPARED = ((0.05, 16), (0.25, 8), (float("inf"), 4))


class ExactTarget(Target, Protocol):
    """A target that can be limited, and whose context can be made to look long.

    Attributes:
        kv_type: element type of the KV cache, by its ggml name.
    """

    kv_type: KvType

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


def probe_exact_rows(target: ExactTarget, clock: Callable[[], float] = perf_counter) -> int:
    """Return the most rows that are computed, bit for bit, as one row after the other is.

    A short context and one beyond 512 cells are tried, and a side branch that wins.

    Args:
        target: anything in its cache is dropped.
        clock: seconds; large trees are tried only where they cost little.
    """
    n_read = min(_N_READ, target.n_ctx // 4)
    n_rows = min(target.max_nodes + 1, target.n_ctx // 2)
    n_copies = max(0, min(_COPIES, (target.n_ctx - n_rows) // _N_READ - 1))
    try:
        for copies in dict.fromkeys((n_copies, 0)):
            if n_rows >= 2:
                is_first = copies == n_copies
                rows = _Rows(target, clock, (n_read, copies), n_rows, is_check=not is_first)
                n_rows = rows.count_identical()
    finally:
        target.rewind(0)
    return n_rows


class _Rows:
    """One context, a text to go on with, and its logits from single rows."""

    def __init__(
        self,
        target: ExactTarget,
        clock: Callable[[], float],
        n_cells: tuple[int, int],
        n_max: int,
        *,
        is_check: bool,
    ) -> None:
        """Read some tokens, and then their copies; get the logits of single rows after them."""
        n_read, n_copies = n_cells
        self._target = target
        self._clock = clock
        self._n_max = n_max
        self._sizes = _CHECK_SIZES if is_check else _SIZES
        target.rewind(0)
        target.prefill(_tokens(n_read, target.n_vocab), [])
        if n_copies:
            target.multiply_cells(n_copies)
        self._n_past = len(target.tokens)
        self._text = _tokens(_N_COMPARED[0][1] + 1, target.n_vocab, start=100)
        # The first one pays for what is loaded late.
        self._single(self._text[0])
        self._back()
        started = self._clock()
        self._expected = [self._single(self._text[0])]
        self._seconds = self._clock() - started
        n = next(n for limit, n in _N_COMPARED if self._seconds < limit)
        # Rows beyond are not compared; their number still decides about the kernel.
        self._n_small = min(n, n_max)
        n = min(_N_CHECKED if is_check else n, n_max)
        self._expected += [self._single(token) for token in self._text[1:n]]
        self._back()

    def _single(self, token: TokenId) -> NDArray[np.float32]:
        self._target.decode_tree(DraftTree(token))
        row: NDArray[np.float32] = self._target.logits()[0].copy()
        self._target.commit([ROOT])
        return row

    def _back(self) -> None:
        self._target.rewind(self._n_past)

    def count_identical(self) -> int:
        """Try sizes, rising; return the last one before a difference."""
        n_good, seconds = 1, 0.0
        # A limit between two sizes is of no kernel's making.
        for n in (*(n for n in self._sizes if n < self._n_small), self._n_small):
            started = self._clock()
            if not self._is_identical(self._chain(n), 0, min(n, len(self._expected))):
                break
            n_good, seconds = n, self._clock() - started
        if n_good >= 3 and not self._repair_is_identical():
            return 1
        if n_good == self._n_small and seconds < _CHEAP * n_good * self._seconds:
            return self._count_many_identical()
        return n_good

    def _count_many_identical(self) -> int:
        n_good, n_compared = self._n_small, len(self._expected)
        for n in (*(n for n in _LARGE_SIZES if n < self._n_max), self._n_max):
            if n <= n_good:
                continue
            is_same = self._is_identical(self._chain(n), 0, n_compared)
            if not is_same or not self._is_identical(self._late_branch(n), n - n_compared, n):
                break
            n_good = n
        return n_good

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
        nodes = self._target.decode_tree(tree)
        rows = self._target.logits()
        # The root is a row of its own where the text is not the first branch.
        same = all(
            np.array_equal(rows[row], self._expected[tree.depths[nodes[row]]])
            for row in range(start + (start > 0), end)
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
