"""Are rows of a batch the rows of single tokens, bit for bit? Layer: pure (through a target)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from racer_local.speculation.target import Target
from racer_local.speculation.tree import ROOT, DraftTree, Source, TokenId
from racer_local.verification.plain import PlainDecoder

__all__ = ["RowFacts", "check_rows"]

_N_COMPARED = 16
# A side branch that won must leave the next rows as they are. So many tokens fill any gap that was
# left where the losing branch was.
_N_AFTER = 3


@dataclass(frozen=True, slots=True)
class RowFacts:
    """What was found in one context.

    Attributes:
        n_context: tokens read before.
        n_identical: most rows of one batch that are as single ones are; sizes up to ``n_tried``.
        n_tried: the largest size tried.
        tree_is_identical: rows of two branches are as if the other were not there; None where
            trees of three rows are not identical in the first place.
        repair_is_identical: rows after a side branch won are as if there had been no tree, and so
            are the cells of the text and their order.
    """

    n_context: int
    n_identical: int
    n_tried: int
    tree_is_identical: bool | None
    repair_is_identical: bool | None


def check_rows(
    target: Target, context: Sequence[TokenId], coming: Sequence[TokenId], sizes: Sequence[int]
) -> RowFacts:
    """Compare batches of several sizes with single tokens after a context.

    Args:
        target: its text is replaced.
        context: text to read first.
        coming: tokens to evaluate; at least 20.
        sizes: rows in a batch, rising, at most ``target.max_nodes`` + 1.
    """
    rows = _Rows(target, context, coming)
    n_identical = 1
    for n in sizes:
        if not rows.chain_is_identical(n):
            break
        n_identical = n
    if n_identical < 3 or target.max_leaves < 2:
        return RowFacts(len(context), n_identical, max(sizes, default=1), None, None)
    shapes = rows.shapes(min(n_identical, _N_COMPARED))
    return RowFacts(
        len(context),
        n_identical,
        max(sizes, default=1),
        all(rows.tree_is_identical(*shape) for shape in shapes),
        all(rows.repair_is_identical(*shape) for shape in shapes),
    )


class _Rows:
    """A context with a text to go on with, and its logits from single tokens."""

    def __init__(
        self, target: Target, context: Sequence[TokenId], coming: Sequence[TokenId]
    ) -> None:
        self._target = target
        self._coming = list(coming)
        self._n_past = len(context)
        plain = PlainDecoder(target, context)
        self._expected = []
        self._cells = []
        for token in self._coming[: _N_COMPARED + _N_AFTER]:
            plain.read(token)
            self._expected.append(plain.logits)
            self._cells.append(self._digest())
        self._back()

    def _digest(self) -> bytes:
        """Return what stands for the cells of the text and their order."""
        return hashlib.blake2b(self._target.save_state()).digest()

    def _back(self) -> None:
        self._target.rewind(self._n_past)

    def _add(
        self, tree: DraftTree, tokens: Sequence[TokenId], path: Sequence[int] = (ROOT,)
    ) -> list[int]:
        path = list(path)
        for token in tokens:
            path.append(tree.add(path[-1], token, Source.LOGITS))
        return path

    def _same(self, tree: DraftTree, path: Sequence[int]) -> bool:
        row_of = self._target.decode_tree(tree).row_of
        logits = self._target.logits()
        return all(
            np.array_equal(logits[row_of[node]], self._expected[depth])
            for depth, node in enumerate(path)
        )

    def chain_is_identical(self, n: int) -> bool:
        """Try one branch of ``n`` rows; more than 16 are evaluated, but not compared."""
        tokens = (self._coming * (n // len(self._coming) + 1))[:n]
        tree = DraftTree(tokens[0])
        path = self._add(tree, tokens[1:])
        same = self._same(tree, path[:_N_COMPARED])
        self._back()
        return same

    def shapes(self, n: int) -> list[tuple[int, int]]:
        """List trees of two branches: (rows, how many of them both branches share).

        A fault may show in siblings alone, or only where branches part late.
        """
        shapes = [(3, 1), (n, 1), (n, 2), (n, n // 2)]
        return list(dict.fromkeys((n, shared) for n, shared in shapes if n >= shared + 2))

    def _two_branches(self, n: int, n_shared: int) -> tuple[DraftTree, list[int]]:
        """Make a tree whose first branch is wrong and whose second is the text."""
        n_right = (n - n_shared) // 2
        tree = DraftTree(self._coming[0])
        shared = self._add(tree, self._coming[1:n_shared])
        right = self._coming[n_shared : n_shared + n_right]
        wrong = next(token for token in (self._coming[-1], 1, 2) if token != right[0])
        self._add(tree, [wrong] * (n - n_shared - n_right), shared)
        return tree, self._add(tree, right, shared)

    def tree_is_identical(self, n: int, n_shared: int) -> bool:
        """Try two branches that must not see each other."""
        tree, path = self._two_branches(n, n_shared)
        same = self._same(tree, path)
        self._back()
        return same

    def repair_is_identical(self, n: int, n_shared: int) -> bool:
        """Let the second branch win, and go on with single tokens.

        Differences in logits may drown in later rounding, even where the cells are out of order;
        so the cells are compared as well.
        """
        tree, path = self._two_branches(n, n_shared)
        self._target.decode_tree(tree)
        self._target.commit(path)
        end = len(path) + _N_AFTER
        same = True
        for depth in range(len(path), end):
            self._target.decode_tree(DraftTree(self._coming[depth]))
            same = same and np.array_equal(self._target.logits()[0], self._expected[depth])
            self._target.commit([ROOT])
        same = same and (self._digest() == self._cells[end - 1] or not self._cells_can_be_same(n))
        self._back()
        return same

    def _cells_can_be_same(self, n: int) -> bool:
        """Whether cells that were computed together are, bit for bit, those of single tokens.

        Their logits are; only where the cells of a chain are the same as well are those of a tree
        a matter of order.
        """
        self._back()
        tree = DraftTree(self._coming[0])
        path = self._add(tree, self._coming[1:n])
        self._target.decode_tree(tree)
        self._target.commit(path)
        return self._digest() == self._cells[n - 1]
