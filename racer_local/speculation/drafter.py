"""The contract between the engine and whatever proposes tokens. Layer: pure.

The life of a drafter: ``begin`` a text, ``feed`` it prompt tokens (and the rows the target
computed for them), then for every decode step ``draft`` a tree and ``accept`` what came of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from racer_local.speculation.tree import DraftTree, NodeId, TokenId

__all__ = ["ContextAware", "Drafter", "Heir", "RowChooser", "Rows", "StepObserver", "StepOutcome"]


@dataclass(frozen=True, slots=True)
class Rows:
    """The head of the target's next-token distribution at some places.

    Attributes:
        index: int32 [n], the place each row belongs to: for a prompt, its position in the text
            (0 is the first token fed since ``begin``); for a step, its node in the draft tree.
        ids: int32 [n, k], the k likeliest next tokens after that place, likeliest first.
        probs: float32 [n, k], their softmax probabilities at temperature 1.
    """

    index: NDArray[np.int32]
    ids: NDArray[np.int32]
    probs: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What the target made of one draft tree.

    Attributes:
        tree: the tree that was decoded.
        path: the accepted nodes from the root down, the root included.
        next_token: the token that the target chose after the last of them; the next root.
        rows: rows of decoded nodes, accepted and rejected alike; maybe not of all, maybe of none.
    """

    tree: DraftTree
    path: Sequence[NodeId]
    next_token: TokenId
    rows: Rows | None


class Drafter(Protocol):
    """Proposes a tree of next tokens.

    Invariants the engine relies on: ``draft`` changes nothing, so two calls agree; what is
    learned comes in by ``feed`` and ``accept`` alone; the size of all state is bounded.
    """

    @property
    def row_width(self) -> int:
        """How many of the likeliest tokens it wants of each decoded row; 0 for none."""

    def begin(self) -> None:
        """Forget the text: a new one starts."""

    def feed(self, tokens: Sequence[TokenId]) -> None:
        """Append tokens that were given, not generated (the prompt)."""

    def wanted_rows(self, tokens: Sequence[TokenId]) -> NDArray[np.int32]:
        """Say which rows of a prompt are worth reading: positions into ``tokens``, ascending."""

    def learn(self, rows: Rows) -> None:
        """Take the target's rows for positions of the text that was fed."""

    def draft(self, budget: int) -> DraftTree:
        """Guess what follows the text fed and accepted so far.

        The root of the tree is the last token of the text. At most ``budget`` nodes besides the
        root; the best guess among siblings is added first.
        """

    def accept(self, outcome: StepOutcome) -> None:
        """Learn from a decoded tree; the accepted tokens and the next one join the text."""

    def size_bytes(self) -> int:
        """Estimate the memory held."""


@runtime_checkable
class Heir(Protocol):
    """A drafter that knows more of a text than its tokens, and can pass that on; not all do."""

    def begin_from(self, other: Any, tokens: Sequence[TokenId]) -> None:
        """Begin a text with ``tokens``, and know of them what another drafter knows.

        Args:
            other: a drafter of the same class, maybe this one; if not, it stays as it is.
            tokens: the beginning of its text.
        """


@runtime_checkable
class StepObserver(Protocol):
    """A drafter that wants to know what decode steps take; not all do."""

    def observe_step(
        self, n_tokens: int, n_context: int, seconds: float, overhead_s: float = 0.0
    ) -> None:
        """Take note of a decode step; called before its ``accept``.

        Args:
            n_tokens: decoded tokens, the root included.
            n_context: tokens in the KV cache before the step.
            seconds: time of the target's pass.
            overhead_s: time spent on drafting and learning since the step before.
        """


@runtime_checkable
class ContextAware(Protocol):
    """A drafter that predicts what steps take, which depends on the length of the context."""

    def set_context(self, n_context: int) -> None:
        """Say how long the text of this request is; called after ``feed``.

        Other texts that were fed before it are no part of it: the KV cache does not hold them.
        """


@runtime_checkable
class RowChooser(Protocol):
    """A drafter that does not want all of the decoded rows; reading one costs time."""

    @property
    def min_prob(self) -> float:
        """Tokens of a row below this probability are of no use."""

    def useful_nodes(self, path: Sequence[NodeId]) -> Sequence[NodeId]:
        """Say whose rows are worth reading; called before ``accept``.

        Args:
            path: the accepted nodes from the root down, the root included.
        """
