"""One test per known fault of the reference implementation, so that none comes back.

Source: hkr04/RACER at fc494a3; the docstring of each test says what happens there.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest

import racer_local
from racer_local.config import DraftConfig
from racer_local.drafting.make import make_drafter
from racer_local.drafting.racer.automaton import NgramAutomaton
from racer_local.drafting.racer.copy_logit import CopyLogit
from racer_local.drafting.racer.drafter import RacerDrafter
from racer_local.errors import ConfigError
from racer_local.speculation.acceptance import verify
from racer_local.speculation.drafter import Rows, StepOutcome
from racer_local.speculation.tree import ROOT, DraftTree, Source


def automaton_of(text: list[int], max_nodes: int, max_depth: int = 10) -> NgramAutomaton:
    automaton = NgramAutomaton(max_nodes, max_depth)
    for token in text:
        automaton.append(token)
        automaton.check_integrity()
    return automaton


def test_eviction_takes_leaves_only() -> None:
    """Five nodes and [1, 2], [3, 4], [5]: an inner node is evicted, its child orphaned."""
    automaton = automaton_of([1, 2, 3, 4, 5], max_nodes=5, max_depth=2)
    for node in automaton.nodes():
        assert automaton.tokens_of(node)[-1] == automaton.token[node]
    assert len(automaton) == 5


def test_a_parent_is_never_older_than_its_children() -> None:
    """Insertion touches from the root down, so parents age first."""
    automaton = automaton_of([1, 2, 3, 4, 1, 2, 5, 1, 2, 3], max_nodes=60, max_depth=4)
    age = {node: i for i, node in enumerate(automaton.nodes())}
    for node in age:
        assert age.get(automaton.parent[node], -1) < age[node]


def test_no_failure_link_is_reset_or_points_at_a_recycled_node() -> None:
    """Touching a prefix resets failure links to the root; links to recycled nodes stay."""
    automaton = automaton_of([i * i % 17 for i in range(300)], max_nodes=60, max_depth=4)
    for node in automaton.nodes():
        fail = automaton.fail[node]
        assert automaton.tokens_of(fail) == automaton.tokens_of(node)[1:]


def test_the_newest_tokens_can_be_continued_from() -> None:
    """Only whole windows of 10 tokens are inserted: the newest 9 are invisible."""
    drafter = RacerDrafter(DraftConfig(), logits=False)
    drafter.feed([1, 2, 3, 1, 2])
    assert drafter.draft(1).tokens == [2, 3]


def test_the_same_question_gets_the_same_answer() -> None:
    """Asking moves the state: two identical calls give [11, 12, 13] and then [11]."""
    drafter = RacerDrafter(DraftConfig())
    drafter.feed([10, 9, 11, 12, 13, 7, 10, 9])
    assert [drafter.draft(3).tokens for _ in range(3)] == [[9, 11, 12, 13]] * 3


def test_a_token_that_matches_nothing_ends_the_old_match() -> None:
    """The old state is kept, and the next draft continues a context that is gone."""
    drafter = RacerDrafter(DraftConfig(), logits=False)
    drafter.feed([1, 2, 3, 4, 1, 2, 99])
    assert drafter.draft(8).n_drafted == 0


def test_nothing_leaks_from_one_text_into_the_next() -> None:
    """The reset is not exposed, so every text sees the ones before it."""
    for mode in ("racer", "retrieval", "logits", "last-logit", "pld"):
        drafter = make_drafter(DraftConfig(mode=mode))
        drafter.feed([1, 2, 3, 1, 2])
        ids = np.array([[3, 4]], np.int32)
        drafter.learn(Rows(np.array([4], np.int32), ids, np.full((1, 2), 0.4, np.float32)))
        assert drafter.draft(4).n_drafted > 0
        drafter.begin()
        drafter.feed([1, 2])
        assert drafter.draft(4).n_drafted == 0


def test_an_unseen_token_does_not_propose_token_0() -> None:
    """Rows start as zeros without a mark: an unseen token proposes token 0 in every slot."""
    assert CopyLogit(8).row(-1, 5) is None
    drafter = RacerDrafter(DraftConfig(), retrieval=False)
    drafter.feed([5])
    assert drafter.draft(64).n_drafted == 0


def test_settings_are_checked_before_they_are_used() -> None:
    """Limits are clamped too late, or on the parameter instead of the member."""
    for settings in ({"max_nodes": 0}, {"min_match": 0}, {"min_match": 11}, {"max_match": 0}):
        with pytest.raises(ConfigError):
            DraftConfig(**settings)
    assert automaton_of(list(range(20)), max_nodes=1, max_depth=5).check_integrity() is None


def test_a_tree_of_the_root_alone_needs_no_padding() -> None:
    """A helper fails on a tree of one node, so a fake pad token is drafted."""
    for mode in ("racer", "retrieval", "logits", "last-logit", "pld", "off"):
        drafter = make_drafter(DraftConfig(mode=mode))
        drafter.feed([5])
        tree = drafter.draft(0)
        assert (tree.tokens, verify(tree, lambda node: 6)) == ([5], ([ROOT], 6))
        drafter.accept(StepOutcome(tree, [ROOT], 6, None))
        assert drafter.draft(8).tokens[ROOT] == 6


def test_a_node_shared_by_several_paths_is_sampled_once() -> None:
    """Paths are sampled one by one, so a shared prefix gets several independent draws."""
    tree = DraftTree(0)
    shared = tree.add(ROOT, 1, Source.LOGITS)
    for token in (2, 3, 4):
        tree.add(shared, token, Source.LOGITS)
    visits = []

    def sample(node: int) -> int:
        visits.append(node)
        return 1 if node == ROOT else 9

    assert verify(tree, sample) == ([ROOT, shared], 9)
    assert visits == [ROOT, shared]


def test_limits_are_in_tokens_and_not_in_steps() -> None:
    """``max_steps`` makes the length of the answer depend on what was accepted."""
    assert "budget" in inspect.signature(RacerDrafter.draft).parameters
    drafter = RacerDrafter(DraftConfig(budget=64))
    drafter.feed([1, 2, 3, 4, 5, 6, 7, 8] * 3)
    assert [drafter.draft(budget).n_drafted for budget in (0, 1, 5)] == [0, 1, 5]


def test_drafting_loads_no_pickle() -> None:
    """Recorded data is untrusted: reading it must not run code."""
    source = Path(racer_local.__file__).parent
    paths = list(source.rglob("*.py"))
    assert len(paths) > 100
    for path in paths:
        assert "import pickle" not in path.read_text(encoding="utf-8")
