"""The merged drafter by hand-made texts."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from racer_local.config import DraftConfig
from racer_local.drafting.make import make_drafter
from racer_local.drafting.racer.automaton import NgramAutomaton
from racer_local.drafting.racer.drafter import RacerDrafter, grow_logits, retrieval_candidates
from racer_local.speculation.drafter import Rows, StepOutcome
from racer_local.speculation.tree import ROOT, DraftTree, Source


def rows(index: Sequence[int], *ids: Sequence[int]) -> Rows:
    """Make rows whose probabilities are 0.5, 0.25, ..."""
    array = np.array(ids, np.int32)
    probs = np.tile(
        np.float32(0.5) ** np.arange(1, array.shape[1] + 1, dtype=np.float32), (len(array), 1)
    )
    return Rows(np.array(index, np.int32), array, probs.astype(np.float32))


def tokens_below(tree: DraftTree, node: int) -> list[int]:
    return [tree.tokens[child] for child in tree.children(node)]


def test_retrieval_continues_what_was_seen() -> None:
    drafter = RacerDrafter(DraftConfig(), logits=False)
    drafter.feed([1, 2, 3, 4, 5, 1, 2])
    tree = drafter.draft(3)
    assert tree.tokens == [2, 3, 4, 5]
    assert set(tree.sources[1:]) == {Source.RETRIEVAL}
    assert drafter.row_width == 0
    assert drafter.wanted_rows([1, 2]).tolist() == []


def test_the_longest_match_is_the_principal_path() -> None:
    drafter = RacerDrafter(DraftConfig(), logits=False)
    drafter.feed([7, 1, 2, 3, 9, 8, 1, 2, 4, 9, 7, 1, 2])
    assert tokens_below(drafter.draft(8), ROOT)[0] == 3


def test_a_shorter_match_fills_in_what_the_longer_one_has_not_seen() -> None:
    automaton = NgramAutomaton(1_000, 10)
    for token in [7, 1, 2, 3, 9, 8, 1, 2, 4, 9, 7, 1, 2]:
        automaton.append(token)
    found = retrieval_candidates(automaton, automaton.state, 2)
    assert [token for _, token in found] == [3, 4]
    assert 0 < found[1][0] < found[0][0]
    assert sum(prob for prob, _ in found) < 1
    assert retrieval_candidates(automaton, automaton.state, 4) == []


def test_matches_shorter_than_asked_for_propose_nothing() -> None:
    drafter = RacerDrafter(DraftConfig(min_match=3), logits=False)
    drafter.feed([1, 2, 3, 9, 1, 2])
    assert drafter.draft(8).n_drafted == 0


def test_the_logits_tree_narrows_by_rank() -> None:
    table = {token: ([10 * token + i for i in range(1, 9)], [0.1] * 8) for token in range(400)}
    tree = DraftTree(1)
    grow_logits(tree, lambda before, token: table.get(token), -1, 8 + 8 + 4 + 2 + 5, 8)
    assert [len(tree.children(child)) for child in tree.children(ROOT)] == [8, 4, 2] + [1] * 5


def test_rows_are_matched_with_their_tokens() -> None:
    drafter = RacerDrafter(DraftConfig(breadth=2), retrieval=False)
    drafter.feed([5, 6])
    drafter.learn(rows([0, 1], [1, 2], [3, 4]))
    drafter.feed([5])
    assert tokens_below(drafter.draft(2), ROOT) == [1, 2]
    assert drafter.draft(2).sources[1] == Source.LOGITS


def test_an_unseen_token_proposes_nothing() -> None:
    drafter = RacerDrafter(DraftConfig(), retrieval=False)
    drafter.feed([0])
    assert drafter.draft(8).n_drafted == 0


def test_both_trees_are_one_without_duplicates() -> None:
    drafter = RacerDrafter(DraftConfig(breadth=2))
    drafter.feed([1, 2, 3, 1, 2])
    drafter.learn(rows([1], [3, 8]))
    tree = drafter.draft(64)
    tree.check()
    assert tokens_below(tree, ROOT) == [3, 8]
    sources = [tree.sources[node] for node in tree.children(ROOT)]
    assert sources == [Source.RETRIEVAL, Source.LOGITS]


def test_retrieval_is_served_before_logits() -> None:
    drafter = RacerDrafter(DraftConfig(breadth=2))
    drafter.feed([1, 2, 3, 1, 2])
    drafter.learn(rows([1], [8, 9]))
    assert drafter.draft(1).tokens == [2, 3]


def test_accepted_tokens_join_the_text_and_rejected_rows_are_learned() -> None:
    drafter = RacerDrafter(DraftConfig(breadth=2), retrieval=False)
    drafter.feed([1])
    tree = DraftTree(1)
    taken = tree.add(ROOT, 2, Source.LOGITS)
    rejected = tree.add(ROOT, 3, Source.LOGITS)
    drafter.accept(
        StepOutcome(tree, [ROOT, taken], 3, rows([ROOT, taken, rejected], [2, 9], [3, 9], [4, 5]))
    )
    assert drafter.draft(2).tokens == [3, 4, 5]


def test_the_row_of_an_accepted_node_outlives_that_of_a_rejected_one() -> None:
    drafter = RacerDrafter(DraftConfig(breadth=2), retrieval=False)
    drafter.feed([1])
    tree = DraftTree(1)
    taken = tree.add(ROOT, 2, Source.LOGITS)
    other = tree.add(ROOT, 3, Source.LOGITS)
    rejected = tree.add(other, 2, Source.LOGITS)
    for order in ([taken, rejected], [rejected, taken]):
        ids = {taken: [6, 7], rejected: [8, 9]}
        step = rows(order, *(ids[node] for node in order))
        drafter.accept(StepOutcome(tree, [ROOT, taken], 77, step))
        drafter.feed([2])
        assert tokens_below(drafter.draft(2), ROOT) == [6, 7]
        drafter.begin()
        drafter.feed([1])


def test_only_the_last_row_of_each_key_of_a_prompt_is_wanted() -> None:
    text = [1, 2, 1, 2, 3, 1]
    assert RacerDrafter(DraftConfig()).wanted_rows(text).tolist() == [0, 2, 3, 4, 5]
    paper = RacerDrafter(DraftConfig(), two_token_keys=False)
    assert paper.wanted_rows(text).tolist() == [3, 4, 5]
    assert paper.wanted_rows([]).tolist() == []


def test_the_wanted_rows_teach_as_much_as_all_rows() -> None:
    rng = random.Random(3)
    text = [rng.randrange(12) for _ in range(200)]
    ids = np.array([[rng.randrange(12) for _ in range(8)] for _ in text], np.int32)
    probs = np.full(ids.shape, 0.1, np.float32)
    trees = []
    for wanted in (np.arange(200, dtype=np.int32), None):
        drafter = RacerDrafter(DraftConfig(), retrieval=False)
        drafter.feed(text)
        index = drafter.wanted_rows(text) if wanted is None else wanted
        drafter.learn(Rows(index, ids[index], probs[index]))
        trees.append(drafter.draft(60))
    assert trees[0].tokens == trees[1].tokens


def test_rows_of_places_no_longer_known_are_ignored() -> None:
    drafter = RacerDrafter(DraftConfig(breadth=2), retrieval=False)
    drafter.feed([1, 2, 3])
    drafter.accept(StepOutcome(DraftTree(3), [ROOT], 4, None))
    drafter.learn(rows([0, 3, 9], [5, 6], [7, 8], [5, 6]))
    assert drafter.draft(2).tokens == [4, 7, 8]
    drafter.feed([1])
    assert drafter.draft(2).n_drafted == 0


def test_places_go_on_counting_after_a_generation() -> None:
    drafter = RacerDrafter(DraftConfig(breadth=2), retrieval=False)
    drafter.feed([1, 2])
    drafter.accept(StepOutcome(DraftTree(2), [ROOT], 3, None))
    drafter.feed([4, 5])
    drafter.learn(rows([4], [6, 7]))
    assert drafter.draft(2).tokens == [5, 6, 7]


def test_two_drafts_agree() -> None:
    drafter = RacerDrafter(DraftConfig())
    drafter.feed([1, 2, 3, 1, 2])
    drafter.learn(rows([1, 2], list(range(8)), list(range(8))))
    assert drafter.draft(20).tokens == drafter.draft(20).tokens


def test_a_text_begun_anew_owes_nothing_to_the_one_before() -> None:
    drafter, fresh = RacerDrafter(DraftConfig()), RacerDrafter(DraftConfig())
    drafter.feed([4, 5, 6, 4, 5])
    drafter.learn(rows([1], list(range(8))))
    drafter.begin()
    for each in (drafter, fresh):
        each.feed([4, 5])
        assert each.draft(8).n_drafted == 0
    assert drafter.size_bytes() == fresh.size_bytes()


def test_an_empty_text_and_a_negative_token_are_refused() -> None:
    drafter = RacerDrafter(DraftConfig())
    with pytest.raises(ValueError, match="the text is empty"):
        drafter.draft(4)
    with pytest.raises(ValueError, match="negative"):
        drafter.feed([1, -1])
    with pytest.raises(ValueError, match="the text is empty"):
        drafter.draft(4)


def test_tokens_may_be_numpy_integers() -> None:
    drafter = RacerDrafter(DraftConfig())
    drafter.feed(np.array([1, 2, 3, 1], np.int32))
    drafter.accept(StepOutcome(DraftTree(1), [ROOT], np.int32(2), None))
    tree = drafter.draft(4)
    assert tree.tokens[:2] == [2, 3]
    assert {type(token) for token in tree.tokens} == {int}


@pytest.mark.parametrize("mode", ["racer", "retrieval", "logits", "last-logit", "pld", "off"])
def test_memory_stays_flat_and_small_over_a_long_random_text(mode: str) -> None:
    rng = np.random.default_rng(0)
    drafter = make_drafter(DraftConfig(mode=mode, max_nodes=1_000))
    drafter.feed([1])
    sizes = []
    for _ in range(4):
        for _ in range(600):
            tree = drafter.draft(4)
            n = len(tree)
            ids = rng.integers(0, 300, (n, 8)).astype(np.int32)
            top = Rows(np.arange(n, dtype=np.int32), ids, np.full((n, 8), 0.1, np.float32))
            path = [ROOT, *tree.children(ROOT)[:1]]
            drafter.accept(StepOutcome(tree, path, int(rng.integers(300)), top))
        sizes.append(drafter.size_bytes())
    assert max(sizes) < 4_000_000


def test_a_row_that_names_one_token_only_makes_a_chain() -> None:
    drafter = RacerDrafter(DraftConfig(), retrieval=False)
    drafter.feed([1])
    drafter.learn(rows([0], [1] * 8))
    assert drafter.draft(30).parents == list(range(-1, 30))


def test_tokens_without_probability_are_not_proposed() -> None:
    drafter = RacerDrafter(DraftConfig(), retrieval=False)
    drafter.feed([1])
    drafter.learn(rows([0], [4, 5]))
    assert drafter.draft(30).tokens == [1, 4, 5]
    ids = np.arange(8, dtype=np.int32)[None]
    drafter.learn(Rows(np.zeros(1, np.int32), ids, np.zeros((1, 8), np.float32)))
    assert drafter.draft(30).n_drafted == 0
