"""What the engine needs of a target model. Layer: pure; the real one is ``LlamaTarget``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from racer_local.config import SamplingConfig
from racer_local.speculation.tree import DraftTree, NodeId, TokenId

__all__ = ["Target", "TokenSampler", "TreePruner"]


class TokenSampler(Protocol):
    """Chooses tokens for one request, in the order of the text."""

    @property
    def seed(self) -> int:
        """The seed in use, also where none was asked for."""

    def sample(self, row: int) -> TokenId:
        """Choose the token after a row of the latest batch: a place among its read rows."""

    def close(self) -> None:
        """Free what it holds; a second call does nothing."""


@runtime_checkable
class TreePruner(Protocol):
    """A sampler that knows of some drafts beforehand that it cannot choose; not all do."""

    def forbidden(self, tree: DraftTree) -> set[NodeId]:
        """Return draft nodes that it can never choose, maybe without those below them.

        The root is the token that was sampled last.
        """


class Target(Protocol):
    """A target model with one text in its KV cache.

    ``tokens`` is that text. A decode leaves it as it was until ``commit`` says what to keep.
    Logits are float32 [n_rows, n_vocab], views that the next decode overwrites.
    """

    tokens: list[TokenId]

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
    def is_exact(self) -> bool:
        """Whether ``max_nodes`` is a limit of exactness, which larger budgets are cut to."""

    def reuse(self, prompt: Sequence[TokenId]) -> int:
        """Keep what the cache shares with ``prompt``, but not its last token; drop the rest.

        Returns:
            How many tokens were kept.
        """

    def prefill(
        self, tokens: Sequence[TokenId], wanted: Sequence[int] | NDArray[np.int32]
    ) -> NDArray[np.float32]:
        """Append given text, and return the logits at the ``wanted`` places.

        Raises:
            DecodeError: with code 2 if stopped. The text is then as before the call.
        """

    def decode_tree(self, tree: DraftTree) -> Sequence[NodeId]:
        """Evaluate a draft tree after the text.

        Returns:
            The node of every row of ``logits``.

        Raises:
            DecodeError: with code 2 if stopped. The text is then as before the call.
        """

    def logits(self) -> NDArray[np.float32]:
        """Return the logits that the latest decode read."""

    def commit(self, path: Sequence[NodeId]) -> None:
        """Keep these nodes of the decoded tree (from the root down) and drop the others."""

    def rewind(self, n_tokens: int) -> None:
        """Shorten the text to ``n_tokens``; where that is impossible, to nothing."""

    def save_state(self) -> bytes | bytearray:
        """Copy the cells of the text, in their order in the cache; empty where that is impossible.

        The bytes are the same if, and only if, the text's cells are the same in the same order.
        """

    @property
    def max_states(self) -> int:
        """How many texts besides the one in the cache it can keep saved."""

    def forget(self) -> None:
        """Drop the text, and all saved ones."""

    def aside(self) -> AbstractContextManager[None]:
        """Begin with an empty cache; the texts from before are saved, and there again at the end.

        Nothing of what is read in between is kept.
        """

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
