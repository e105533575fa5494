"""The draft tree: guesses about what the target model will say next.

A tree is grown by a drafter, laid out for the target by ``layout``, and walked by ``verify``.
It holds token ids only; it knows no model, no KV cache and no drafter. Layer: pure.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum
from typing import TypeAlias

__all__ = ["ROOT", "DraftTree", "NodeId", "Source", "TokenId"]

TokenId: TypeAlias = int
NodeId: TypeAlias = int

ROOT: NodeId = 0


class Source(IntEnum):
    """Who proposed a token."""

    TARGET = 0
    RETRIEVAL = 1
    LOGITS = 2
    PHRASEBOOK = 3


class DraftTree:
    """A token tree in flat arrays; node 0 is the root.

    The root is the token that was sampled but not yet decoded: it is always right, so a tree of
    the root alone is plain decoding. Invariants: ``parents[i] < i`` for every node but the root
    (whose parent is -1); the children of one node have different tokens. Children are kept in
    the order in which they were added, and a drafter adds its best guess first: following first
    children from the root gives the principal path.

    Attributes:
        tokens: token id per node.
        parents: parent node per node, -1 for the root.
        sources: who proposed the node; ``Source.TARGET`` for the root.
        probs: the drafter's estimate that the whole path down to the node will be accepted,
            in [0, 1]; 1.0 for the root and where a drafter makes no estimate.
        depths: distance from the root in tokens; 0 for the root.
    """

    __slots__ = ("_children", "depths", "parents", "probs", "sources", "tokens")

    def __init__(self, root: TokenId) -> None:
        """Make a tree of the root alone."""
        self.tokens: list[TokenId] = [root]
        self.parents: list[NodeId] = [-1]
        self.sources: list[Source] = [Source.TARGET]
        self.probs: list[float] = [1.0]
        self.depths: list[int] = [0]
        self._children: list[dict[TokenId, NodeId]] = [{}]

    def __len__(self) -> int:
        """Count the nodes, the root included."""
        return len(self.tokens)

    @property
    def n_drafted(self) -> int:
        """Count the guesses: all nodes but the root."""
        return len(self.tokens) - 1

    @property
    def n_leaves(self) -> int:
        """Count the branches; a root alone is one."""
        return sum(not children for children in self._children)

    def add(self, parent: NodeId, token: TokenId, source: Source, prob: float = 1.0) -> NodeId:
        """Add ``token`` under ``parent``, or find it there.

        A token that is already a child is merged: the first proposer keeps the credit.

        Returns:
            The id of the new or the existing child.
        """
        siblings = self._children[parent]
        node = siblings.get(token)
        if node is not None:
            return node
        node = len(self.tokens)
        siblings[token] = node
        self.tokens.append(token)
        self.parents.append(parent)
        self.sources.append(source)
        self.probs.append(prob)
        self.depths.append(self.depths[parent] + 1)
        self._children.append({})
        return node

    def child(self, node: NodeId, token: TokenId) -> NodeId | None:
        """Find the child of ``node`` that carries ``token``."""
        return self._children[node].get(token)

    def children(self, node: NodeId) -> list[NodeId]:
        """List the children of ``node``, best guess first."""
        return list(self._children[node].values())

    def path(self, node: NodeId) -> list[NodeId]:
        """List the nodes from the root down to ``node``, both included."""
        path = []
        while node >= 0:
            path.append(node)
            node = self.parents[node]
        path.reverse()
        return path

    def check(self, n_vocab: int | None = None) -> None:
        """Verify the invariants.

        Raises:
            ValueError: naming the first invariant that does not hold, or the first token that
                is not below ``n_vocab``.
        """
        n = len(self.tokens)
        if not (n == len(self.parents) == len(self.sources) == len(self.probs) == len(self.depths)):
            raise ValueError("draft tree arrays have different lengths")
        if self.parents[0] != -1:
            raise ValueError("node 0 of a draft tree must be its root")
        for node in range(1, n):
            parent = self.parents[node]
            if not 0 <= parent < node:
                raise ValueError(f"node {node} has parent {parent}; a parent comes first")
            if self._children[parent].get(self.tokens[node]) != node:
                raise ValueError(f"node {node} is not known to its parent, or has a twin")
        if n_vocab is not None:
            for node, token in enumerate(self.tokens):
                if not 0 <= token < n_vocab:
                    raise ValueError(
                        f"node {node} has token {token}, outside the vocabulary of {n_vocab}"
                    )

    def limit_leaves(self, max_leaves: int) -> DraftTree:
        """Leave out what would make more than ``max_leaves`` branches, latest additions first."""
        if self.n_leaves <= max_leaves:
            return self
        n_leaves = 1
        kept: dict[NodeId, NodeId] = {ROOT: ROOT}
        pruned = DraftTree(self.tokens[ROOT])
        for node in range(1, len(self.tokens)):
            parent = kept.get(self.parents[node])
            if parent is None:
                continue
            if pruned._children[parent]:
                if n_leaves == max_leaves:
                    continue
                n_leaves += 1
            kept[node] = pruned.add(parent, self.tokens[node], self.sources[node], self.probs[node])
        return pruned

    def limit_nodes(self, budget: int) -> DraftTree:
        """Leave out all but the first ``budget`` draft nodes."""
        if self.n_drafted <= budget:
            return self
        pruned = DraftTree(self.tokens[ROOT])
        for node in range(1, min(budget + 1, len(self.tokens))):
            pruned.add(self.parents[node], self.tokens[node], self.sources[node], self.probs[node])
        return pruned

    def without(self, nodes: Collection[NodeId]) -> DraftTree:
        """Leave out some draft nodes, and what is below them."""
        if not nodes:
            return self
        kept: dict[NodeId, NodeId] = {ROOT: ROOT}
        pruned = DraftTree(self.tokens[ROOT])
        for node in range(1, len(self.tokens)):
            parent = kept.get(self.parents[node])
            if parent is not None and node not in nodes:
                kept[node] = pruned.add(
                    parent, self.tokens[node], self.sources[node], self.probs[node]
                )
        return pruned
