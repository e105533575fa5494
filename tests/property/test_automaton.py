"""The automaton against a slow model of it, against brute force, and against pyahocorasick."""

from __future__ import annotations

import random

import ahocorasick
from hypothesis import given
from hypothesis import strategies as st

from racer_local.drafting.racer.automaton import NgramAutomaton


def random_text(seed: int, length: int, n_vocab: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(n_vocab) for _ in range(length)]


# Hypothesis prefers short lists, which shrink well but rarely fill an automaton.
texts = st.one_of(
    st.lists(st.integers(0, 3), max_size=40),
    st.builds(random_text, st.integers(0, 2**32), st.integers(30, 120), st.integers(1, 9)),
)
depths = st.integers(1, 6)


class SlowModel:
    """What the automaton promises, written with a dictionary of strings.

    Attributes:
        kept: string -> [start of the last occurrence, count].
    """

    def __init__(self, max_nodes: int, max_depth: int) -> None:
        self.max_nodes, self.max_depth = max_nodes, max_depth
        self.text: list[int] = []
        self.kept: dict[tuple[int, ...], list[int]] = {}

    def append(self, token: int) -> None:
        before = set(self.kept)
        self.text.append(token)
        for length in range(1, min(self.max_depth, len(self.text)) + 1):
            suffix = tuple(self.text[-length:])
            if length > 1 and suffix[:-1] not in before:
                break
            entry = self.kept.setdefault(suffix, [0, 0])
            entry[0] = len(self.text) - length
            entry[1] += 1
        while len(self.kept) > self.max_nodes:
            del self.kept[min(self.kept, key=lambda s: (self.kept[s][0], -len(s)))]


def strings(automaton: NgramAutomaton) -> dict[tuple[int, ...], int]:
    return {tuple(automaton.tokens_of(node)): node for node in automaton.nodes()}


def longest_suffix(text: list[int], stored: dict[tuple[int, ...], int]) -> tuple[int, ...]:
    for start in range(len(text)):
        if tuple(text[start:]) in stored:
            return tuple(text[start:])
    return ()


@given(texts, st.integers(1, 40), depths)
def test_it_keeps_exactly_the_most_recent_ngrams(
    text: list[int], max_nodes: int, max_depth: int
) -> None:
    automaton = NgramAutomaton(max_nodes, max_depth)
    model = SlowModel(max_nodes, max_depth)
    for token in text:
        automaton.append(token)
        model.append(token)
        automaton.check_integrity()
        assert len(automaton) <= max_nodes
        kept = {
            string: [automaton.last_seen[node] - len(string) + 1, automaton.count[node]]
            for string, node in strings(automaton).items()
        }
        assert kept == model.kept


@given(texts, st.integers(1, 40), depths)
def test_its_state_is_the_longest_stored_suffix(
    text: list[int], max_nodes: int, max_depth: int
) -> None:
    automaton = NgramAutomaton(max_nodes, max_depth)
    for i, token in enumerate(text):
        automaton.append(token)
        found = longest_suffix(text[: i + 1], strings(automaton))
        assert tuple(automaton.tokens_of(automaton.state)) == found


@given(texts, depths)
def test_matches_are_the_suffixes_that_were_continued_before(
    text: list[int], max_depth: int
) -> None:
    automaton = NgramAutomaton(10_000, max_depth)
    for token in text:
        automaton.append(token)
    expected = []
    for length in range(min(max_depth - 1, len(text)), 0, -1):
        suffix = text[len(text) - length :]
        starts = [i for i in range(len(text) - length) if text[i : i + length] == suffix]
        if starts:
            followers = [text[i + length] for i in starts]
            expected.append((length, {token: followers.count(token) for token in followers}))
    found = []
    for length, node in automaton.matches():
        continuations = automaton.continuations(node, 100)
        found.append((length, {token: count for token, count, _, _ in continuations}))
        ranks = [(-count, -seen) for _, count, seen, _ in continuations]
        assert ranks == sorted(ranks)
    assert found == expected


@given(texts, st.integers(1, 60), depths)
def test_continuations_were_really_seen_even_after_eviction(
    text: list[int], max_nodes: int, max_depth: int
) -> None:
    automaton = NgramAutomaton(max_nodes, max_depth)
    seen: set[tuple[int, ...]] = set()
    for i, token in enumerate(text):
        automaton.append(token)
        seen.update(tuple(text[max(0, i + 1 - n) : i + 1]) for n in range(1, max_depth + 1))
        for _, node in automaton.matches():
            string = tuple(automaton.tokens_of(node))
            for follower, *_ in automaton.continuations(node, 10):
                assert (*string, follower) in seen


@given(texts, st.integers(1, 40), depths, st.lists(st.integers(0, 7), max_size=12))
def test_it_walks_as_pyahocorasick_does(
    text: list[int], max_nodes: int, max_depth: int, walk: list[int]
) -> None:
    automaton = NgramAutomaton(max_nodes, max_depth)
    for token in text:
        automaton.append(token)
    reference = ahocorasick.Automaton(ahocorasick.STORE_ANY, ahocorasick.KEY_SEQUENCE)
    for string in strings(automaton):
        reference.add_word(string, string)
    reference.make_automaton()
    state = automaton.state
    so_far = list(automaton.tokens_of(state))
    for token in walk:
        state = automaton.advance(state, token)
        so_far.append(token)
        longest: tuple[int, ...] = ()
        if len(reference):
            for end, string in reference.iter(tuple(so_far)):
                if end == len(so_far) - 1 and len(string) > len(longest):
                    longest = string
        assert tuple(automaton.tokens_of(state)) == longest
