"""The retrieval automaton: an Aho-Corasick automaton of the text that grows token by token.

It stores every n-gram of the text up to ``max_depth`` tokens, forgets the least recent ones when
it is full, and answers at any moment which suffixes of the text were seen before and what
followed them. It knows no model, no draft tree and no budget. Layer: pure.

**Why no rebuild is needed.** With every n-gram all of its suffixes are stored (the trie is
suffix-closed). Then the failure link of a node is always its string without the first token, and
the longest suffix of the text in the trie is known at all times: ``active[l]`` is the node of
the last l tokens. Token t turns ``active[l-1]`` into ``child(active[l-1], t)``, the new
``active[l]``, whose failure link is the new ``active[l-1]``. That is O(max_depth) per token.

**Why eviction leaves nothing dangling.** Nodes are ranked by where their last occurrence
*starts*: later starts are newer, and of nodes with the same start the shorter is newer. No two
nodes have the same rank, since start and length determine the string. Two facts follow.

1. The parent of a node is newer than the node: where the node's string starts, so does its
   prefix, which is shorter.
2. The failure node of a node is newer than the node: wherever the node's string occurs, its
   suffix occurs one token later.

So the oldest node is nobody's parent and nobody's failure node, and removing it leaves a
suffix-closed trie with exact links. Touching when an occurrence *ends*, as an ordinary LRU does,
keeps 2 but not 1, or needs O(max_depth^2) touches per token.

**Why the order costs O(1) per touch.** With token i the node ``active[l]`` gets the start
i - l + 1, and its parent, the former ``active[l-1]``, got the same start with token i - 1.
Between rank (start, l - 1) and rank (start, l) there is no other, and no node of rank
(start, longer) exists yet, since it would end after token i. So the node belongs right behind its
parent. Going from the longest to the shortest, the parent still has that rank when it is used
as an anchor: only nodes of length l and more have moved, and the parent has length l - 1.

``active`` itself is ordered by rank, the longest being the oldest. If a very small automaton
evicts an active node, it is therefore the last one, and forgetting that entry is enough.

Differs: hkr04/RACER touches from root to leaf, evicts inner nodes, resets failure links to the
root, inserts only whole windows, and moves its state when asked. Source: Aho and Corasick,
"Efficient string matching", 1975; RACER, arXiv 2604.14885, section on retrieval.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator

from racer_local.drafting.racer.lru import RecencyList
from racer_local.speculation.tree import TokenId

__all__ = ["NgramAutomaton"]

_ROOT = 0
# Children of one node that are looked at when the best are asked for, the most recent first:
# after a frequent token there may be thousands.
_SCAN = 64


class NgramAutomaton:
    """All recent n-grams of a text, with counts, recency and exact failure links.

    Nodes are integers from 1; 0 is the empty string. The arrays are public for reading and
    indexed by node.

    Attributes:
        token: last token of the node's string.
        parent: node of the string without its last token.
        fail: node of the string without its first token.
        depth: tokens in the string.
        count: occurrences since the node was created.
        last_seen: position in the text at which its most recent occurrence ended.
    """

    __slots__ = (
        "_active",
        "_children",
        "_first_child",
        "_free",
        "_max_depth",
        "_max_nodes",
        "_n_tokens",
        "_next_sibling",
        "_previous_sibling",
        "_recency",
        "count",
        "depth",
        "fail",
        "last_seen",
        "parent",
        "token",
    )

    def __init__(self, max_nodes: int, max_depth: int) -> None:
        """Make an empty automaton.

        Args:
            max_nodes: most nodes held, the root not counted.
            max_depth: most tokens in one n-gram.

        Raises:
            ValueError: if either is below 1.
        """
        if max_nodes < 1 or max_depth < 1:
            raise ValueError(f"max_nodes {max_nodes} and max_depth {max_depth} must be positive")
        self._max_nodes = max_nodes
        self._max_depth = max_depth
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        # One token adds up to max_depth nodes before the oldest are evicted.
        self._recency = RecencyList(self._max_nodes + self._max_depth)
        self._children: dict[int, int] = {}
        self._free: list[int] = []
        self._active = [_ROOT]
        self._n_tokens = 0
        self.token = array("i", [-1])
        self.parent = array("i", [-1])
        self.fail = array("i", [_ROOT])
        self.depth = array("i", [0])
        self.count = array("i", [0])
        self.last_seen = array("i", [-1])
        self._first_child = array("i", [0])
        self._next_sibling = array("i", [0])
        self._previous_sibling = array("i", [0])

    def __len__(self) -> int:
        """Count the nodes, the root not included."""
        return len(self._children)

    @property
    def n_tokens(self) -> int:
        """Tokens appended since the start."""
        return self._n_tokens

    # ---------------------------------------------------------------- growing

    def append(self, token: TokenId) -> None:
        """Add one token to the text.

        Raises:
            ValueError: if the token is negative.
        """
        if token < 0:
            raise ValueError(f"token {token} is negative; token ids start at 0")
        before = self._active
        length = min(len(before), self._max_depth)
        after = [_ROOT] * (length + 1)
        children, count, last_seen, fail = self._children, self.count, self.last_seen, self.fail
        longer = _ROOT
        for depth in range(length, 0, -1):
            parent = before[depth - 1]
            key = parent << 32 | token
            node = children.get(key, _ROOT)
            if node:
                self._recency.move_after(node, parent)
                if self._previous_sibling[node]:
                    self._unlink_sibling(node, parent)
                    self._link_sibling(node, parent)
            else:
                node = children[key] = self._create(token, parent, depth)
                self._recency.insert_after(node, parent)
                self._link_sibling(node, parent)
            count[node] += 1
            last_seen[node] = self._n_tokens
            if longer:
                fail[longer] = node
            longer = after[depth] = node
        self._active = after
        self._n_tokens += 1
        while len(children) > self._max_nodes:
            self._evict()

    def _create(self, token: TokenId, parent: int, depth: int) -> int:
        if self._free:
            node = self._free.pop()
            self.token[node] = token
            self.parent[node] = parent
            self.fail[node] = _ROOT
            self.depth[node] = depth
            self.count[node] = 0
            return node
        node = len(self.token)
        self.token.append(token)
        self.parent.append(parent)
        self.fail.append(_ROOT)
        self.depth.append(depth)
        self.count.append(0)
        self.last_seen.append(0)
        self._first_child.append(0)
        self._next_sibling.append(0)
        self._previous_sibling.append(0)
        return node

    def _evict(self) -> None:
        node = self._recency.oldest
        if self._active[-1] == node:
            self._active.pop()
        self._recency.remove(node)
        parent = self.parent[node]
        self._unlink_sibling(node, parent)
        del self._children[parent << 32 | self.token[node]]
        self._free.append(node)

    def _link_sibling(self, node: int, parent: int) -> None:
        first = self._first_child[parent]
        self._next_sibling[node] = first
        self._previous_sibling[node] = 0
        if first:
            self._previous_sibling[first] = node
        self._first_child[parent] = node

    def _unlink_sibling(self, node: int, parent: int) -> None:
        before, after = self._previous_sibling[node], self._next_sibling[node]
        if before:
            self._next_sibling[before] = after
        else:
            self._first_child[parent] = after
        if after:
            self._previous_sibling[after] = before

    # ---------------------------------------------------------------- asking

    @property
    def state(self) -> int:
        """Node of the longest suffix of the text that is stored."""
        return self._active[-1]

    def matches(self, min_depth: int = 1) -> list[tuple[int, int]]:
        """List (depth, node) of the suffixes of the text that something has followed before.

        From the longest to the shortest, none shorter than ``min_depth`` tokens.
        """
        found = []
        for depth in range(len(self._active) - 1, max(min_depth, 1) - 1, -1):
            node = self._active[depth]
            if self._first_child[node]:
                found.append((depth, node))
        return found

    def child(self, node: int, token: TokenId) -> int:
        """Find the node of the string with ``token`` appended; 0 if it is not stored."""
        return self._children.get(node << 32 | token, _ROOT)

    def advance(self, node: int, token: TokenId) -> int:
        """Find the longest stored suffix of the string of ``node`` with ``token`` appended."""
        children, fail = self._children, self.fail
        while True:
            found = children.get(node << 32 | token)
            if found is not None:
                return found
            if not node:
                return _ROOT
            node = fail[node]

    def continuations(self, node: int, limit: int) -> list[tuple[TokenId, int, int, int]]:
        """List what followed the string of ``node``: (token, count, last seen, its node).

        The most frequent first, and of equally frequent ones the most recent. Only the 64 most
        recent are looked at.
        """
        first = self._first_child[node]
        if not first:
            return []
        token, count, last_seen = self.token, self.count, self.last_seen
        following = self._next_sibling
        found = []
        for _ in range(_SCAN):
            found.append((token[first], count[first], last_seen[first], first))
            first = following[first]
            if not first:
                break
        if len(found) > 1:
            found.sort(key=_by_count_then_recency)
        return found[:limit]

    def nodes(self) -> Iterator[int]:
        """Go through all nodes, the newest first; the root is not among them."""
        return iter(self._recency)

    def tokens_of(self, node: int) -> list[TokenId]:
        """Spell out the string of a node."""
        tokens = []
        while node:
            tokens.append(self.token[node])
            node = self.parent[node]
        tokens.reverse()
        return tokens

    def size_bytes(self) -> int:
        """Estimate the memory held, Python's own objects included."""
        arrays = 9 * self.token.itemsize * len(self.token)
        # Keys above 2**30 take 32 to 36 bytes, values 28.
        objects = 64 * len(self._children) + 28 * len(self._free)
        tables = sys.getsizeof(self._children) + sys.getsizeof(self._free)
        return arrays + objects + tables + self._recency.size_bytes()

    def check_integrity(self) -> None:
        """Walk everything and verify what this module promises.

        Raises:
            RuntimeError: naming the first condition that does not hold, and the node.
        """
        order = list(self._recency)
        newness = {node: -i for i, node in enumerate(order)}
        newness[_ROOT] = 1
        n_used = len(self.token) - 1 - len(self._free)
        _require(len(order) == len(newness) - 1, "a node is twice in the recency order", 0)
        _require(len(order) == len(self._children) == n_used, "node counts differ", len(order))
        _require(len(order) <= self._max_nodes, "more nodes than max_nodes", len(order))
        for newer, node in zip([_ROOT, *order], order, strict=False):
            _require(self._rank(newer) > self._rank(node), "recency is not ordered by rank", node)
        for node in order:
            self._check_links(node, newness)
        n_siblings = sum(self._check_siblings(node) for node in [_ROOT, *order])
        _require(n_siblings == len(order), "sibling lists hold other nodes", n_siblings)
        for depth, node in enumerate(self._active):
            _require(self.depth[node] == depth, "active node has another depth", node)
            if depth:
                _require(self.fail[node] == self._active[depth - 1], "active suffixes broken", node)
                _require(self.last_seen[node] == self._n_tokens - 1, "active node is old", node)

    def _rank(self, node: int) -> tuple[int, int]:
        """Start of the last occurrence, then shortness; the root is the newest of all."""
        if node == _ROOT:
            return self._n_tokens, 1
        return self.last_seen[node] - self.depth[node] + 1, -self.depth[node]

    def _check_links(self, node: int, newness: dict[int, int]) -> None:
        parent, fail = self.parent[node], self.fail[node]
        key = parent << 32 | self.token[node]
        _require(self._children.get(key) == node, "node is not known to its parent", node)
        _require(parent in newness and fail in newness, "link to an evicted node", node)
        _require(newness[parent] > newness[node], "node is newer than its parent", node)
        _require(newness[fail] > newness[node], "node is newer than its failure node", node)
        depth = self.depth[node]
        _require(depth == self.depth[parent] + 1, "depth does not follow the parent's", node)
        _require(depth <= self._max_depth, "n-gram is too long", node)
        _require(self.tokens_of(fail) == self.tokens_of(node)[1:], "failure link is wrong", node)
        fewest = min((self.count[other] for other in (parent, fail) if other), default=2**31)
        _require(1 <= self.count[node] <= fewest, "count exceeds a shorter string's", node)

    def _check_siblings(self, parent: int) -> int:
        n, before, node = 0, 0, self._first_child[parent]
        while node:
            _require(self.parent[node] == parent, "child of another node in a sibling list", node)
            _require(self._previous_sibling[node] == before, "sibling list broken", node)
            is_ordered = not before or self.last_seen[before] >= self.last_seen[node]
            _require(is_ordered, "sibling list is not ordered by recency", node)
            n, before, node = n + 1, node, self._next_sibling[node]
            _require(n <= len(self._children), "sibling list is a circle", parent)
        return n


def _require(ok: bool, condition: str, node: int) -> None:
    if not ok:
        raise RuntimeError(f"automaton integrity: {condition} ({node})")


def _by_count_then_recency(found: tuple[int, int, int, int]) -> tuple[int, int]:
    return -found[1], -found[2]
