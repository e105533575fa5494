"""The probe for exact rows, on targets that are exact up to a known number of rows."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from fakes import FakeRows, ScriptedTarget, TreeDrafter, chain

from racer_local.config import DraftConfig, GenerationConfig, ModelConfig, SamplingConfig
from racer_local.decoding.engine import Engine
from racer_local.errors import ConfigError, UnsupportedModelError
from racer_local.measuring.cost_store import CostStore
from racer_local.measuring.exactness import find_exact_rows, probe_exact_rows
from racer_local.speculation.tree import DraftTree, NodeId


class RoundingTarget(ScriptedTarget):
    """Rounds differently from some number of rows on, in long contexts, or after side branches."""

    def __init__(
        self, limit: int, *, long_limit: int | None = None, repairs: bool = True, **options: int
    ) -> None:
        super().__init__(n_vocab=997, **{"n_ctx": 4096, "n_batch": 512, **options})
        self.is_exact = True
        self.limit = limit
        self.long_limit = limit if long_limit is None else long_limit
        self.repairs = repairs
        self.n_cells = 0
        self.kv_type = "f16"
        self.sizes: list[int] = []
        self.cpu_bytes = 2**27
        self.pauses: list[float] = []
        self._is_off = False

    def multiply_cells(self, n_copies: int) -> None:
        self.n_cells = len(self.tokens) * n_copies

    def limit_nodes(self, max_nodes: int) -> None:
        self.max_nodes = min(self.max_nodes, max_nodes)

    def decode_tree(self, tree: DraftTree) -> FakeRows:
        super().decode_tree(tree)
        self.sizes.append(len(tree))
        if self.pauses:
            time.sleep(self.pauses.pop())
        # Rows in the order of a real layout: first children first.
        nodes: list[NodeId] = []
        stack = [0]
        while stack:
            nodes.append(stack.pop())
            stack.extend(reversed(tree.children(nodes[-1])))
        self._rows = self._rows[::-1][nodes].copy()
        limit = self.long_limit if len(self.tokens) + self.n_cells >= 512 else self.limit
        if len(tree) > limit or self._is_off:
            self._rows[-1] += 0.5
        return FakeRows(nodes)

    def commit(self, path: Sequence[NodeId]) -> None:
        self._is_off = not self.repairs and len(path) > 1 and path[1] != 1
        super().commit(path)

    def rewind(self, n_tokens: int) -> None:
        super().rewind(n_tokens)
        self._is_off = False
        if n_tokens == 0:
            self.n_cells = 0


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 8, 16, 64])
def test_the_probe_finds_the_last_size_before_a_difference(limit: int) -> None:
    target = RoundingTarget(limit)
    assert probe_exact_rows(target) == limit
    assert target.tokens == []


@pytest.mark.parametrize("cpu_bytes", [0, 2**28, 2**28 + 1, 2**31, 2**33])
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 8, 16])
def test_a_large_model_is_probed_up_to_sixteen_rows(cpu_bytes: int, limit: int) -> None:
    target = RoundingTarget(limit)
    target.cpu_bytes = cpu_bytes
    assert probe_exact_rows(target) == limit
    target = RoundingTarget(64)
    target.cpu_bytes = cpu_bytes
    expected = 64 if cpu_bytes <= 2**28 else 16
    assert probe_exact_rows(target) == expected
    assert (max(target.sizes) == 16) == (expected == 16)


def test_a_slow_moment_changes_nothing() -> None:
    """A limit that moved with the noise of the machine would be another one tomorrow."""
    calm, busy = RoundingTarget(64), RoundingTarget(64)
    busy.pauses = [0.06, 0.06, 0.3]
    assert probe_exact_rows(busy) == probe_exact_rows(calm) == 64
    assert busy.sizes == calm.sizes


def test_a_difference_in_long_contexts_alone_is_found() -> None:
    assert probe_exact_rows(RoundingTarget(64, long_limit=3)) == 3
    assert probe_exact_rows(RoundingTarget(64, long_limit=1)) == 1


def test_a_difference_in_short_contexts_alone_is_found() -> None:
    assert probe_exact_rows(RoundingTarget(1, long_limit=16)) == 1


def test_a_side_branch_that_leaves_traces_is_found() -> None:
    assert probe_exact_rows(RoundingTarget(16, repairs=False)) == 1
    # Chains of two rows have no side branches.
    assert probe_exact_rows(RoundingTarget(2, repairs=False)) == 2


def test_no_size_beyond_the_targets_own_is_tried() -> None:
    target = RoundingTarget(64, max_nodes=6)
    assert probe_exact_rows(target) == 7
    assert max(target.sizes) == 7


@pytest.mark.parametrize("n_ctx", [16, 32, 64, 100, 513, 700])
def test_a_small_context_is_enough(n_ctx: int) -> None:
    target = RoundingTarget(999, n_ctx=n_ctx)
    assert probe_exact_rows(target) == min(65, n_ctx // 2)


@pytest.fixture
def store(tmp_path: Path) -> CostStore:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    return CostStore(ModelConfig(path=path, exact=True), "q8_0", 2, "test")


def test_what_the_probe_found_is_kept(store: CostStore) -> None:
    first = RoundingTarget(8)
    find_exact_rows(first, store)
    assert first.max_nodes == 7
    second = RoundingTarget(8)
    find_exact_rows(second, store)
    assert second.max_nodes == 7
    assert second.sizes == []


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"exact_rows": true}', '{"exact_rows": 0}', '{"exact_rows": 999}']
)
def test_a_damaged_record_is_probed_again(store: CostStore, content: str) -> None:
    store.save_exact_rows(5)
    [path] = store._path.parent.glob("*.exact.json")
    assert json.loads(path.read_text()) == {"exact_rows": 5}
    path.write_text(content)
    target = RoundingTarget(8)
    find_exact_rows(target, store)
    assert target.max_nodes == 7


def test_an_old_record_is_probed_again(store: CostStore) -> None:
    store.save_exact_rows(5)
    [path] = store._path.parent.glob("*.exact.json")
    os.utime(path, (0, 0))
    assert store.load_exact_rows() is None


def test_a_model_that_rounds_two_rows_differently_is_refused(store: CostStore) -> None:
    with pytest.raises(UnsupportedModelError, match="--draft off"):
        find_exact_rows(RoundingTarget(1), store)


def test_plain_decoding_and_inexact_targets_are_not_probed(store: CostStore) -> None:
    plain = RoundingTarget(1, max_nodes=0)
    find_exact_rows(plain, store)
    fast = RoundingTarget(1)
    fast.is_exact = False
    find_exact_rows(fast, store)
    assert plain.sizes == fast.sizes == []
    assert fast.max_nodes == 64


def test_auto_keeps_to_exact_rows_where_they_are_many(store: CostStore) -> None:
    target = RoundingTarget(20)
    target.is_exact = False
    target.kv_type = "q8_0"
    n_rows = find_exact_rows(target, store)
    assert target.max_nodes == 64
    engine = Engine(target, DraftConfig(mode="auto"), exact_rows=n_rows)
    assert engine.drafter.budget == n_rows - 1 >= 15
    engine.use(DraftConfig(mode="racer"))
    assert engine.drafter.budget == 64
    few = Engine(target, DraftConfig(mode="auto"), exact_rows=3)
    assert few.drafter.budget == 64


def test_an_exact_target_cuts_budgets_that_are_too_large() -> None:
    target = ScriptedTarget(max_nodes=15)
    with pytest.raises(ConfigError):
        Engine(target, DraftConfig(mode="racer", budget=64))
    target.is_exact = True
    engine = Engine(target, DraftConfig(mode="racer", budget=64))
    assert engine.drafter.budget == 15
    engine.use(TreeDrafter(lambda text, budget: DraftTree(text[-1])), budget=64)
    assert engine.drafter.budget == 15
    engine.use(DraftConfig(mode="racer", budget=3))
    assert engine.drafter.budget == 3


@pytest.mark.parametrize("n_read", range(8))
def test_an_answer_left_early_leaves_the_same_text_in_the_cache_with_and_without_drafts(
    n_read: int,
) -> None:
    target = ScriptedTarget()
    greedy = SamplingConfig(temperature=0)
    plain = Engine(target, DraftConfig(mode="off"))
    limits = GenerationConfig(max_tokens=20)
    answer = [event.token for event in plain.generate([1, 2], greedy, limits)]

    def right(text: list[int], budget: int) -> DraftTree:
        said = len(text) - 2
        return chain(text[-1], answer[said : said + min(budget, 5)])

    kept = []
    for drafter in (TreeDrafter(lambda text, budget: DraftTree(text[-1])), TreeDrafter(right)):
        plain.use(drafter)
        plain.forget()
        with plain.generate([1, 2], greedy, limits) as generation:
            for _ in range(n_read):
                next(generation)
        kept.append(target.tokens)
    assert kept[0] == kept[1]
