"""The retrieval automaton by hand-made texts; ``property/test_ngram.py`` tries the rest."""

from __future__ import annotations

import random

import pytest

from racer_local.drafting.racer.automaton import NgramAutomaton


def automaton_of(text: list[int], max_nodes: int = 10_000, max_depth: int = 10) -> NgramAutomaton:
    automaton = NgramAutomaton(max_nodes, max_depth)
    for token in text:
        automaton.append(token)
    return automaton


def strings(automaton: NgramAutomaton) -> set[tuple[int, ...]]:
    return {tuple(automaton.tokens_of(node)) for node in automaton.nodes()}


def test_all_ngrams_up_to_the_depth_are_stored() -> None:
    assert strings(automaton_of([1, 2, 3], max_depth=2)) == {(1,), (2,), (3,), (1, 2), (2, 3)}


def test_the_newest_tokens_are_visible_at_once() -> None:
    automaton = automaton_of([7, 8, 9, 7, 8])
    depth, node = automaton.matches(2)[0]
    assert depth == 2
    assert [entry[0] for entry in automaton.continuations(node, 8)] == [9]


def test_matches_go_from_the_longest_suffix_to_the_shortest() -> None:
    automaton = automaton_of([1, 2, 3, 4, 1, 2, 3])
    assert [depth for depth, _ in automaton.matches()] == [3, 2, 1]
    assert [automaton.tokens_of(node) for _, node in automaton.matches(2)] == [[1, 2, 3], [2, 3]]


def test_a_token_never_seen_leaves_no_match() -> None:
    automaton = automaton_of([1, 2, 3, 1, 2, 99])
    assert automaton.matches() == []


def test_continuations_are_ordered_by_count_then_recency() -> None:
    automaton = automaton_of([1, 2, 1, 3, 1, 3, 1, 4, 1])
    found = automaton.continuations(automaton.child(0, 1), 8)
    assert [(token, count) for token, count, _, _ in found] == [(3, 2), (4, 1), (2, 1)]
    assert [last_seen for _, _, last_seen, _ in found] == [5, 7, 1]
    assert len(automaton.continuations(automaton.child(0, 1), 2)) == 2


def test_advance_follows_failure_links_to_the_longest_stored_suffix() -> None:
    automaton = automaton_of([1, 2, 3, 9, 2, 3, 4])
    state = automaton.child(automaton.child(automaton.child(0, 1), 2), 3)
    assert automaton.tokens_of(automaton.advance(state, 4)) == [2, 3, 4]
    assert automaton.advance(state, 77) == 0


def test_a_chain_goes_on_beyond_the_depth() -> None:
    text = list(range(30))
    automaton = automaton_of([*text, 0, 1, 2], max_depth=3)
    state, said = automaton.state, []
    for _ in range(20):
        while not (found := automaton.continuations(state, 1)):
            state = automaton.fail[state]
        said.append(found[0][0])
        state = automaton.advance(state, said[-1])
    assert said == text[3:23]


def test_eviction_drops_the_text_seen_longest_ago() -> None:
    automaton = automaton_of([*range(100), *range(500, 600)], max_nodes=200)
    assert len(automaton) == 200
    assert automaton.child(0, 599)
    assert not automaton.child(0, 0)
    automaton.check_integrity()


def test_text_that_keeps_coming_back_survives_eviction() -> None:
    automaton = NgramAutomaton(300, 5)
    for i in range(200):
        for token in (1, 2, 3, 1000 + i):
            automaton.append(token)
    node = automaton.child(automaton.child(automaton.child(0, 1), 2), 3)
    assert automaton.count[node] == 200


def test_questions_change_nothing() -> None:
    automaton = automaton_of([1, 2, 3, 1, 2, 4, 1, 2])
    before = (strings(automaton), automaton.state, list(automaton.nodes()))
    for _, node in automaton.matches():
        automaton.continuations(node, 3)
        automaton.advance(node, 3)
        automaton.advance(node, 12345)
    assert (strings(automaton), automaton.state, list(automaton.nodes())) == before


def test_clear_forgets_everything() -> None:
    automaton = automaton_of([1, 2, 1, 2])
    automaton.clear()
    assert (len(automaton), automaton.n_tokens, automaton.matches()) == (0, 0, [])
    automaton.append(2)
    automaton.check_integrity()


def test_only_the_most_recent_children_of_a_crowded_node_are_looked_at() -> None:
    text = [token for i in range(200) for token in (1, 10 + i)]
    found = automaton_of([*text, 1]).continuations(1, 500)
    assert [entry[0] for entry in found] == [209 - i for i in range(64)]


@pytest.mark.parametrize(("max_nodes", "max_depth"), [(0, 1), (1, 0)])
def test_sizes_below_one_are_refused(max_nodes: int, max_depth: int) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        NgramAutomaton(max_nodes, max_depth)


def test_a_negative_token_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        NgramAutomaton(10, 2).append(-1)


def test_the_integrity_check_names_what_is_broken() -> None:
    automaton = automaton_of([1, 2, 3])
    automaton.fail[automaton.child(automaton.child(0, 1), 2)] = 0
    with pytest.raises(RuntimeError, match="failure link is wrong"):
        automaton.check_integrity()
    automaton = automaton_of([1, 2, 3])
    automaton.count[automaton.child(automaton.child(0, 1), 2)] = 9
    with pytest.raises(RuntimeError, match="count exceeds"):
        automaton.check_integrity()
    automaton = automaton_of([1, 2, 3])
    automaton.last_seen[automaton.child(0, 1)] = 50
    with pytest.raises(RuntimeError, match="not ordered by rank"):
        automaton.check_integrity()


def test_memory_stays_flat_over_a_long_text() -> None:
    rng = random.Random(0)
    automaton = NgramAutomaton(1_000, 10)
    sizes = []
    for _ in range(4):
        for _ in range(5_000):
            automaton.append(rng.randrange(49_152))
        sizes.append(automaton.size_bytes())
        assert len(automaton) == 1_000
    assert max(sizes[1:]) <= sizes[0] * 1.1
    assert max(sizes) < 400_000
