"""RACER's drafter: retrieval and Copy-Logit merged into one tree. Layer: pure.

Retrieval proposes what followed the same words earlier in the text. The logits tree proposes what
the target itself ranked high where the same token came up before. Retrieval is served first, the
logits tree gets the rest of the budget, and what both propose is one node.

Source: RACER, arXiv 2604.14885. Differs: the automaton is exact (``ngram``), rows may be keyed
by two tokens (``copy_logit``), and both trees grow best-first instead of level by level.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from racer_local.config import DraftConfig
from racer_local.drafting.racer.automaton import NgramAutomaton
from racer_local.drafting.racer.copy_logit import CopyLogit, Row, last_places
from racer_local.speculation.drafter import Rows, StepOutcome
from racer_local.speculation.tree import ROOT, DraftTree, NodeId, Source, TokenId

__all__ = ["RacerDrafter", "grow_logits", "grow_retrieval", "retrieval_candidates"]

# Children proposed for one node by retrieval.
_MAX_CONTINUATIONS = 8
# Retrieval leaves paths below this probability to the logits tree.
_MIN_PATH_PROB = 0.02
# How far a copied row is trusted in its new context, per level. It decides between going deeper
# and going wider; of 0.1, 0.3, 0.5, 0.7 and 1.0 this gave the longest accepted paths in replay.
_COPY_TRUST = 0.5
# Given tokens are kept until generation starts, so that rows can be matched with their tokens.
_MAX_FED = 262_144


class RacerDrafter:
    """Drafts from the automaton, from Copy-Logit rows, or from both."""

    __slots__ = ("_automaton", "_config", "_fed", "_fed_start", "_table")

    def __init__(
        self,
        config: DraftConfig,
        *,
        retrieval: bool = True,
        logits: bool = True,
        two_token_keys: bool = True,
    ) -> None:
        """Start without a text.

        Args:
            config: sizes and widths.
            retrieval: draft from the automaton.
            logits: draft from Copy-Logit rows.
            two_token_keys: key rows by the last two tokens too; off is the paper's table.
        """
        self._config = config
        self._automaton = NgramAutomaton(config.max_nodes, config.max_match) if retrieval else None
        table = CopyLogit(config.breadth, two_token_keys=two_token_keys) if logits else None
        self._table = table
        self._fed = array("i")
        self._fed_start = 0

    @property
    def row_width(self) -> int:
        """Want as many tokens of a row as the root of the logits tree has children."""
        return 0 if self._table is None else self._config.breadth

    def begin(self) -> None:
        """Forget the text and everything learned from it."""
        if self._automaton is not None:
            self._automaton.clear()
        if self._table is not None:
            self._table.clear()
        self._fed = array("i")
        self._fed_start = 0

    def begin_from(self, other: RacerDrafter, tokens: Sequence[TokenId]) -> None:
        """Begin with the first tokens of another drafter's text, and the rows it learned there."""
        table = None if other._table is None else other._table.part(tokens)
        self.begin()
        self._table = table
        self.feed(tokens)

    def feed(self, tokens: Sequence[TokenId]) -> None:
        """Append given tokens.

        Raises:
            ValueError: if a token is negative.
        """
        new = array("i", tokens)
        if new and min(new) < 0:
            raise ValueError(f"token {min(new)} is negative; token ids start at 0")
        if self._automaton is not None:
            for token in new:
                self._automaton.append(token)
        self._fed.extend(new)
        self._forget_fed_but(_MAX_FED)

    def wanted_rows(self, tokens: Sequence[TokenId]) -> NDArray[np.int32]:
        """Want the row of the last place of every key: earlier ones would be overwritten."""
        if self._table is None:
            return np.zeros(0, dtype=np.int32)
        return last_places(tokens, by_pair=self._table.has_two_token_keys)

    def learn(self, rows: Rows) -> None:
        """Store rows of the given text; of places no longer known, none."""
        if self._table is None:
            return
        places = rows.index - self._fed_start
        known = np.flatnonzero((places >= 0) & (places < len(self._fed)))
        fed = self._fed
        pairs = [(fed[i - 1] if i else -1, fed[i]) for i in places[known].tolist()]
        self._table.learn(pairs, rows.ids[known], rows.probs[known], rows.index[known].tolist())

    def draft(self, budget: int) -> DraftTree:
        """Guess a tree of at most ``budget`` nodes besides the root.

        Raises:
            ValueError: if the text is empty.
        """
        if not self._fed:
            raise ValueError("nothing to draft from: the text is empty")
        tree = DraftTree(self._fed[-1])
        if self._automaton is not None:
            grow_retrieval(tree, self._automaton, budget, self._config.min_match)
        if self._table is not None:
            grow_logits(tree, self._table.row, self._before_root(), budget, self._config.breadth)
        return tree

    def accept(self, outcome: StepOutcome) -> None:
        """Learn the rows of a step, then append the accepted tokens and the next one."""
        tree = outcome.tree
        if self._table is not None and outcome.rows is not None:
            self._learn_step(self._table, outcome)
        tokens = [tree.tokens[node] for node in outcome.path[1:]]
        tokens.append(outcome.next_token)
        self.feed(tokens)
        # Two tokens are enough from here on: the root and the one before it.
        self._forget_fed_but(2)

    def size_bytes(self) -> int:
        """Estimate the memory held."""
        parts = [part.size_bytes() for part in (self._automaton, self._table) if part is not None]
        return sum(parts) + self._fed.itemsize * len(self._fed)

    def _before_root(self) -> TokenId:
        return self._fed[-2] if len(self._fed) > 1 else -1

    def _forget_fed_but(self, n_kept: int) -> None:
        n_dropped = len(self._fed) - n_kept
        if n_dropped > 0:
            del self._fed[:n_dropped]
            self._fed_start += n_dropped

    def _learn_step(self, table: CopyLogit, outcome: StepOutcome) -> None:
        tree, rows = outcome.tree, outcome.rows
        assert rows is not None
        nodes = rows.index.tolist()
        accepted = set(outcome.path)
        # Accepted rows last: where a token occurs twice, the row of the real text stays.
        order = sorted(range(len(nodes)), key=lambda i: nodes[i] in accepted)
        pairs = []
        for i in order:
            parent = tree.parents[nodes[i]]
            before = tree.tokens[parent] if parent >= 0 else self._before_root()
            pairs.append((before, tree.tokens[nodes[i]]))
        root = self._fed_start + len(self._fed) - 1
        positions = [root + tree.depths[nodes[i]] for i in order]
        table.learn(pairs, rows.ids[order], rows.probs[order], positions)


def retrieval_candidates(
    automaton: NgramAutomaton, state: int, min_match: int
) -> list[tuple[float, TokenId]]:
    """Estimate what follows the string of ``state``: at most 8 (probability, token), best first.

    The longest match speaks first. Of its probability a part is kept for what it has not seen,
    the larger the more different continuations it had and the shorter it is; that part goes
    to the next shorter match along the failure links, for tokens not named yet.

    Source: escape probabilities of PPM (method C, A. Moffat 1990), here divided by match length.
    """
    left = 1.0
    found: list[tuple[float, TokenId]] = []
    named: set[TokenId] = set()
    depth = automaton.depth[state]
    while depth >= min_match:
        new = automaton.continuations(state, _MAX_CONTINUATIONS)
        if named:
            new = [entry for entry in new if entry[0] not in named]
        if new:
            total = sum(entry[1] for entry in new)
            unit = left / (total + len(new) / depth)
            for token, count, _, _ in new:
                found.append((unit * count, token))
                named.add(token)
            left -= unit * total
            if len(found) >= _MAX_CONTINUATIONS:
                break
        state = automaton.fail[state]
        depth = automaton.depth[state]
    # A shorter match with few continuations may promise more than a rare one of a longer match.
    found.sort(key=lambda entry: -entry[0])
    return found[:_MAX_CONTINUATIONS]


def grow_retrieval(tree: DraftTree, automaton: NgramAutomaton, budget: int, min_match: int) -> None:
    """Add what the automaton predicts, the most probable path first.

    Every node is expanded from the longest stored suffix of the text and its own path, so a
    chain goes on beyond the depth of the automaton.
    """
    # Entries: (-path probability, parent, rank, token, state of the parent).
    heap: list[tuple[float, NodeId, int, TokenId, int]] = []

    def push_children(node: NodeId, state: int, prob: float) -> None:
        for rank, (share, token) in enumerate(retrieval_candidates(automaton, state, min_match)):
            if prob * share >= _MIN_PATH_PROB:
                heappush(heap, (-prob * share, node, rank, token, state))

    push_children(ROOT, automaton.state, 1.0)
    while heap and tree.n_drafted < budget:
        negative_prob, parent, _, token, state = heappop(heap)
        node = tree.add(parent, token, Source.RETRIEVAL, -negative_prob)
        push_children(node, automaton.advance(state, token), -negative_prob)


def grow_logits(
    tree: DraftTree,
    row_of: Callable[[TokenId, TokenId], Row | None],
    before_root: TokenId,
    budget: int,
    breadth: int,
) -> None:
    """Add the tree of likely successors, the most probable path first.

    A node of width b has at most b children, and its child of rank j (from 0) has width
    ``max(1, b >> j)``: the likeliest child stays as wide as its parent.

    Args:
        tree: grown in place; nodes already there are merged with and expanded as well.
        row_of: the row to use for a token, given the token before it.
        before_root: token before the root, -1 if there is none.
        budget: most nodes of the tree, the root not counted.
        breadth: width of the root.

    Source: RACER, arXiv 2604.14885: b_child = max(1, floor(b_parent / 2^j)). The reading of j was
    chosen by replay, mean accepted tokens with 64 nodes, merged and logits alone: rank from 0
    3.28 and 2.61; rank from 1 3.24 and 2.58; depth (same width on a level, 8, 4, 2, 1) 3.26 and
    2.59; halving by depth on top of the parent's 3.23 and 2.56. No narrowing at all: 3.29, 2.62.
    """
    # Entries: (-path probability, parent, rank, token, token before it, width).
    heap: list[tuple[float, NodeId, int, TokenId, TokenId, int]] = []
    expanded: set[NodeId] = set()

    def expand(node: NodeId, before: TokenId, token: TokenId, width: int, prob: float) -> None:
        # Once per node: a row that names a token twice must not be followed for ever.
        row = None if node in expanded else row_of(before, token)
        expanded.add(node)
        if row is None:
            return
        for rank, (child, share) in enumerate(zip(row[0][:width], row[1], strict=False)):
            if share > 0.0:
                path_prob = prob * share * _COPY_TRUST
                width_below = max(1, width >> rank)
                heappush(heap, (-path_prob, node, rank, child, token, width_below))

    expand(ROOT, before_root, tree.tokens[ROOT], breadth, 1.0)
    while heap and tree.n_drafted < budget:
        negative_prob, parent, _, token, before, width = heappop(heap)
        node = tree.add(parent, token, Source.LOGITS, -negative_prob)
        expand(node, before, token, width, -negative_prob)
