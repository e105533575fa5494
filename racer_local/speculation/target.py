"""What the engine needs of a target model; the real one is ``LlamaTarget``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from racer_local.config import SamplingConfig
from racer_local.speculation.tree import DraftTree, NodeId, TokenId

__all__ = ["Slot", "Target", "TokenSampler", "TreePruner", "TreeRows"]


class TokenSampler(Protocol):
    """Chooses tokens for one request, in the order of the text."""

    @property
    def seed(self) -> int:
        """The seed in use, also where none was asked for."""

    def sample(self, row: int) -> TokenId:
        """Choose the token after a row of the latest batch: an index into ``Target.logits``."""

    def close(self) -> None:
        """Free what it holds; a second call does nothing."""


@runtime_checkable
class TreePruner(Protocol):
    """A sampler that knows of some drafts beforehand that it cannot choose; not all do."""

    def forbidden(self, tree: DraftTree) -> set[NodeId]:
        """Return draft nodes that it can never choose, maybe without those below them.

        The root is the token that was sampled last.
        """


class TreeRows(Protocol):
    """Which row of the logits belongs to which node of a decoded tree."""

    @property
    def nodes(self) -> Sequence[NodeId]:
        """The node of every row."""

    @property
    def row_of(self) -> Sequence[int]:
        """The row of every node."""


class Slot(Protocol):
    """A place in the KV cache for one text: its tokens, their positions and sequence ids.

    Attributes:
        tokens: the text. A decode leaves it as it was until ``commit`` says what to keep.
    """

    tokens: list[TokenId]

    @property
    def can_rewind(self) -> bool:
        """Whether the text can be shortened by some of its tokens."""

    def resync(self) -> None:
        """Drop the text if somebody else changed its cells."""

    def commit(self, path: Sequence[NodeId]) -> None:
        """Keep these nodes of the decoded tree (from the root down) and drop the others."""

    def rewind(self, n_tokens: int) -> None:
        """Shorten the text to ``n_tokens``; where that is impossible, to nothing."""

    def save_state(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Copy the cells of the text, in their order in the cache.

        The bytes are the same if, and only if, the text's cells are the same in the same order.

        Returns:
            The copy; empty where that is impossible, or larger than ``max_bytes``.
        """

    def load_state(self, tokens: Sequence[TokenId], state: bytes | bytearray) -> bool:
        """Put a text and its saved state in place of what the slot holds.

        Returns:
            False if the state is refused: the slot is empty then.
        """


class Target(Slot, Protocol):
    """A target model with one slot, which is the target itself.

    Logits are float32 [n_rows, n_vocab], views that the next decode overwrites.
    """

    @property
    def n_ctx(self) -> int:
        """Tokens the context can hold."""

    @property
    def n_vocab(self) -> int:
        """Size of the vocabulary."""

    @property
    def n_batch(self) -> int:
        """Most tokens in one prefill call."""

    @property
    def max_prompt_rows(self) -> int:
        """Most rows that one prefill call can return."""

    @property
    def max_nodes(self) -> int:
        """Most draft nodes in one step; 0 where the model cannot take drafts."""

    @property
    def max_leaves(self) -> int:
        """Most branches of one draft tree."""

    @property
    def max_states(self) -> int:
        """How many texts besides those in slots are worth keeping."""

    @property
    def max_state_bytes(self) -> int:
        """Most bytes of saved states altogether; 0 keeps none."""

    @property
    def is_exact(self) -> bool:
        """Whether ``max_nodes`` is a limit of exactness, which larger budgets are cut to."""

    def prefill(
        self, tokens: Sequence[TokenId], wanted: Sequence[int] | NDArray[np.int32]
    ) -> NDArray[np.float32]:
        """Append given text, and return the logits of the ``wanted`` positions in ``tokens``.

        Raises:
            DecodeError: with code 2 if stopped. The text is then as before the call.
        """

    def decode_tree(self, tree: DraftTree) -> TreeRows:
        """Evaluate a draft tree after the text.

        Returns:
            The order of the rows of ``logits``.

        Raises:
            DecodeError: with code 2 if stopped. The text is then as before the call.
        """

    def logits(self) -> NDArray[np.float32]:
        """Return the logits that the latest decode read."""

    def sampler(self, config: SamplingConfig) -> TokenSampler:
        """Make the sampler of one request."""

    def is_end(self, token: TokenId) -> bool:
        """Whether this token ends a generation."""

    def stop(self) -> None:
        """End the running decode soon (from any thread); stays in force until ``resume``."""

    def resume(self) -> None:
        """Allow decoding again."""

    @property
    def is_stopped(self) -> bool:
        """Whether a stop is in force."""
