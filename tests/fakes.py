"""A scripted target and drafters, for tests of logic that needs no model."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from racer_local.config import SamplingConfig
from racer_local.errors import DecodeError
from racer_local.speculation.drafter import Rows, StepOutcome
from racer_local.speculation.tree import DraftTree, NodeId, Source, TokenId


@dataclass
class FakeRows:
    """Rows in any order."""

    nodes: list[NodeId]

    @property
    def row_of(self) -> list[int]:
        return [self.nodes.index(node) for node in range(len(self.nodes))]


class ScriptedTarget:
    """Computes logits from the last two tokens of a path; a real target's interface.

    Attributes:
        n_decodes: decode calls so far, prefill included.
        fail_with: return codes for the next tree decodes, in order; 0 succeeds.
    """

    def __init__(
        self,
        *,
        n_vocab: int = 32,
        n_ctx: int = 256,
        n_batch: int = 16,
        max_nodes: int = 64,
        max_leaves: int = 64,
        max_prompt_rows: int = 8,
        max_states: int = 0,
        end: TokenId | None = None,
    ) -> None:
        self.n_vocab = n_vocab
        self.n_ctx = n_ctx
        self.n_batch = n_batch
        self.max_nodes = max_nodes
        self.max_leaves = max_leaves
        self.max_prompt_rows = max_prompt_rows
        self.max_states = max_states
        self.max_state_bytes = 2**30
        self.can_rewind = True
        self.end = end
        self.tokens: list[TokenId] = []
        self.n_decodes = 0
        self.n_samplers_open = 0
        self.fail_with: list[int] = []
        self.on_decode: Callable[[], None] = lambda: None
        self._rows = np.empty((0, n_vocab), np.float32)
        self._tree: DraftTree | None = None
        self.is_stopped = False
        self.is_exact = False

    def row_after(self, text: Sequence[TokenId]) -> NDArray[np.float32]:
        seed = sum((i + 1) * 1_000_003**i * t for i, t in enumerate(text[-2:], 1)) % 2**32
        return np.random.default_rng(seed).normal(size=self.n_vocab).astype(np.float32)

    def prefill(
        self, tokens: Sequence[TokenId], wanted: Sequence[int] | NDArray[np.int32]
    ) -> NDArray[np.float32]:
        assert 0 < len(tokens) <= self.n_batch
        assert len(wanted) <= self.max_prompt_rows
        self._decode(0)
        text = self.tokens + list(tokens)
        n_past = len(self.tokens)
        rows = [self.row_after(text[: n_past + int(place) + 1]) for place in wanted]
        self._rows = np.array(rows, np.float32).reshape(len(rows), self.n_vocab)
        self.tokens = text
        assert len(text) <= self.n_ctx
        return self._rows

    def _decode(self, rc: int) -> None:
        self.n_decodes += 1
        self.on_decode()
        if self.is_stopped:
            raise DecodeError(2)
        if rc:
            raise DecodeError(rc)

    def decode_tree(self, tree: DraftTree) -> FakeRows:
        self._decode(self.fail_with.pop(0) if self.fail_with else 0)
        tree.check(self.n_vocab)
        assert tree.n_leaves <= self.max_leaves
        assert len(self.tokens) + len(tree) <= self.n_ctx
        # Reversed rows: the engine must go by the nodes it is told, not by their order.
        nodes = list(range(len(tree)))[::-1]
        texts = [self.tokens + [tree.tokens[n] for n in tree.path(node)] for node in nodes]
        self._rows = np.stack([self.row_after(text) for text in texts])
        self._tree = tree
        return FakeRows(nodes)

    def logits(self) -> NDArray[np.float32]:
        return self._rows

    def commit(self, path: Sequence[NodeId]) -> None:
        assert self._tree is not None
        assert list(path) == self._tree.path(path[-1])
        self.tokens = self.tokens + [self._tree.tokens[node] for node in path]
        self._tree = None

    def resync(self) -> None:
        pass

    def rewind(self, n_tokens: int) -> None:
        is_possible = self.can_rewind or n_tokens >= len(self.tokens)
        self.tokens = self.tokens[: n_tokens if is_possible else 0]
        self._tree = None

    def save_state(self, max_bytes: int | None = None) -> bytes:
        state = repr(self.tokens).encode()
        return state if max_bytes is None or len(state) <= max_bytes else b""

    def load_state(self, tokens: Sequence[TokenId], state: bytes | bytearray) -> bool:
        self.tokens = list(tokens) if state == repr(list(tokens)).encode() else []
        self._tree = None
        return bool(self.tokens)

    def sampler(self, config: SamplingConfig) -> ScriptedSampler:
        self.n_samplers_open += 1
        return ScriptedSampler(self, config)

    def is_end(self, token: TokenId) -> bool:
        return token == self.end

    def stop(self) -> None:
        self.is_stopped = True

    def resume(self) -> None:
        self.is_stopped = False


class ScriptedSampler:
    """Argmax at temperature 0, else one draw from the softmax for each call."""

    def __init__(self, target: ScriptedTarget, config: SamplingConfig) -> None:
        self._target = target
        self._temperature = config.temperature
        self.seed = 0 if config.seed is None else config.seed
        self._random = random.Random(self.seed)
        self._is_open = True

    def sample(self, row: int) -> TokenId:
        logits = self._target.logits()[row].astype(np.float64)
        if self._temperature == 0:
            return int(logits.argmax())
        weights = np.exp((logits - logits.max()) / self._temperature)
        return self._random.choices(range(len(weights)), weights)[0]

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._target.n_samplers_open -= 1


class TreeDrafter:
    """Drafts what a function makes of the text so far."""

    row_width = 0

    def __init__(self, grow: Callable[[list[TokenId], int], DraftTree]) -> None:
        self._grow = grow
        self.text: list[TokenId] = []
        self.outcomes: list[StepOutcome] = []

    def begin(self) -> None:
        self.text = []

    def feed(self, tokens: Sequence[TokenId]) -> None:
        self.text += tokens

    def wanted_rows(self, tokens: Sequence[TokenId]) -> NDArray[np.int32]:
        return np.empty(0, np.int32)

    def learn(self, rows: Rows) -> None:
        raise AssertionError("rows were not asked for")

    def draft(self, budget: int) -> DraftTree:
        return self._grow(self.text, budget)

    def accept(self, outcome: StepOutcome) -> None:
        self.outcomes.append(outcome)
        self.text += [outcome.tree.tokens[node] for node in outcome.path[1:]]
        self.text.append(outcome.next_token)

    def size_bytes(self) -> int:
        return 0


def chain(root: TokenId, tokens: Sequence[TokenId]) -> DraftTree:
    """Make a tree of a single branch."""
    tree = DraftTree(root)
    node = 0
    for token in tokens:
        node = tree.add(node, token, Source.RETRIEVAL)
    return tree


def random_tree(
    root: TokenId, budget: int, n_vocab: int, choose: Callable[[int], int]
) -> DraftTree:
    """Make a tree of ``budget`` nodes; ``choose(n)`` picks a number below n."""
    tree = DraftTree(root)
    for _ in range(budget):
        tree.add(choose(len(tree)), choose(n_vocab), Source.LOGITS)
    return tree
