"""What books say about places of a draft, how estimates see it, and what `auto` makes of it."""

from __future__ import annotations

import numpy as np

from racer_local.books.book_set import BookGuess, BookSet, drafted_from
from racer_local.books.phrase_book import DEPTH, PhraseBook
from racer_local.books.phrase_build import SourceText, build_book
from racer_local.config import DraftConfig
from racer_local.drafting.auto.candidates import Candidates
from racer_local.drafting.auto.drafter import AutoDrafter
from racer_local.drafting.auto.estimate import N_CELLS, Estimator
from racer_local.drafting.auto.phrase_cells import N_BOOK_CELLS, add_guesses
from racer_local.drafting.make import make_drafter
from racer_local.measuring.cost import CostCurve, CostModel
from racer_local.speculation.drafter import StepOutcome
from racer_local.speculation.tree import ROOT, DraftTree, Source

FLAT = CostModel.of_curve(CostCurve([1, 64], [1.0, 1.5]), 65)
STORY = list(range(100, 160))


def book_of(**texts: list[int]) -> PhraseBook:
    sources = [SourceText(n, 9, 1, np.array(t, np.int32)) for n, t in texts.items()]
    return build_book(sources, "tok", 1000)


def auto(*books: PhraseBook) -> AutoDrafter:
    made = make_drafter(DraftConfig(mode="auto"), FLAT, books=BookSet(books))
    assert isinstance(made, AutoDrafter)
    return made


def principal(tree: DraftTree) -> list[int]:
    node, tokens = ROOT, []
    while children := tree.children(node):
        node = children[0]
        tokens.append(tree.tokens[node])
    return tokens


def test_guesses_are_weighed_by_length_and_number_and_the_best_are_kept() -> None:
    shelf = BookSet([book_of(a=[1, 2, 3, 4, 50], b=[9, 2, 3, 4, 60], c=[8, 2, 3, 4, 60])])
    guesses = shelf.at([1, 2, 3, 4]).guesses
    assert guesses == [BookGuess(50, 4, 81 / (81 + 27 + 27), 1), BookGuess(60, 3, 54 / 135, 2)]
    many = BookSet([book_of(**{f"f{i}": [1, 2, 3, 50 + i] for i in range(9)})])
    assert len(many.at([1, 2, 3]).guesses) == 4
    assert BookSet([]).at([1, 2, 3]).guesses == []


def test_places_below_follow_the_matches_of_the_root_and_no_others() -> None:
    shelf = BookSet([book_of(a=STORY, b=[*STORY[20:30], 7, 8, 9])])
    place = shelf.at(STORY[:DEPTH])
    for token in STORY[DEPTH:40]:
        assert token in [guess.token for guess in place.guesses]
        place = place.below(token)
    assert place.guesses == [BookGuess(STORY[40], DEPTH, 1.0, 1)]
    elsewhere = place.below(1)
    assert elsewhere.guesses == []
    for token in STORY[10:14]:
        elsewhere = elsewhere.below(token)
    assert elsewhere.guesses == []
    assert shelf.at(STORY[10:14]).guesses == [BookGuess(STORY[14], 4, 1.0, 1)]


def test_books_count_together_and_the_report_names_the_files() -> None:
    shelf = BookSet([book_of(a=[1, 2, 3, 4, 5]), book_of(b=[0, 1, 2, 3, 4, 5, 6])])
    assert shelf.at([0, 1, 2, 3]).guesses == [BookGuess(4, 4, 1.0, 2)]
    text = [0, 1, 2, 3, 4, 5, 6, 7]
    assert drafted_from(shelf, text, [4, 5, 6]) == [("b", 3)]
    assert drafted_from(shelf, text[1:], [3]) == [("a", 1)]
    assert drafted_from(shelf, text, [0, 1, 7]) == []


def test_book_cells_are_apart_from_all_others() -> None:
    found = Candidates([5, 6], [(1, 2), (3,)], 1)
    assert add_guesses(found, [], 0) == (found, frozenset())
    guesses = [
        BookGuess(token, length, share, count)
        for token in (5, 6, 7)
        for length in range(3, DEPTH + 1)
        for share in (0.001, 0.5, 1.0)
        for count in (1, 24)
    ]
    for own_length in (0, 2, 3, 9, 16, 24):
        for guess in guesses:
            both, _ = add_guesses(found, [guess], own_length, guess.share)
            added = both.cells[both.tokens.index(guess.token)][-3:]
            assert all(N_CELLS <= cell < N_CELLS + N_BOOK_CELLS for cell in added)
            assert both.n_retrieved == 1
    assert len(Estimator().weights) == N_CELLS + N_BOOK_CELLS
    assert found == Candidates([5, 6], [(1, 2), (3,)], 1)


def test_the_text_itself_has_the_credit_at_equal_match() -> None:
    found = Candidates([5, 6], [(1,), (3,)], 1)

    def credit(token: int, length: int, own_length: int) -> bool:
        return token in add_guesses(found, [BookGuess(token, length, 1.0, 1)], own_length)[1]

    assert not credit(5, 4, 4)
    assert not credit(5, 4, 9)
    assert credit(5, 5, 4)
    assert credit(6, 3, 9)
    assert credit(7, 3, 9)


def test_auto_quotes_a_book_and_says_so() -> None:
    d = auto(book_of(story=STORY))
    d.feed([1, 2, *STORY[:12]])
    assert set(d.draft(64).sources[1:]) == {Source.PHRASEBOOK}
    # Once it is seen that the book is being quoted, much is drafted.
    for token in STORY[12:24]:
        d.accept(StepOutcome(d.draft(0), [ROOT], token, None))
    tree = d.draft(64)
    assert principal(tree)[:8] == STORY[24:32]
    assert set(tree.sources[1:]) == {Source.PHRASEBOOK}
    assert d.size_bytes() > auto().size_bytes()


def test_what_the_text_says_goes_before_what_a_book_says() -> None:
    other = [*STORY[:20], 900, 901, 902, 903]
    d = auto(book_of(other=other))
    d.feed([*STORY, 1, 2, 3, *STORY[:20]])
    tree = d.draft(64)
    assert principal(tree)[:3] == STORY[20:23]
    assert tree.sources[1] == Source.RETRIEVAL


def test_books_that_mislead_are_believed_less_and_less() -> None:
    chance = np.random.default_rng(1)
    text = chance.integers(0, 30, 1600).tolist()
    texts = {}
    for i in range(1596):
        texts[f"f{i}"] = [*text[i : i + 3], 500 + i % 400]
    d = auto(book_of(**texts))
    d.feed(text[:4])
    first = d.draft(64).n_drafted
    for token in text[4:]:
        d.accept(StepOutcome(DraftTree(token), [ROOT], token, None))
    assert first > 0
    cells = add_guesses(Candidates([], [], 0), [BookGuess(1, 3, 1.0, 1)], 0)[0].cells
    assert d.estimator.estimate(cells)[0] < 0.7 * Estimator().estimate(cells)[0]


def test_books_that_are_never_right_are_asked_at_few_places() -> None:
    chance = np.random.default_rng(2)
    text = chance.integers(0, 5, 200).tolist()
    texts = {f"f{i}": [*text[i : i + 3], 500 + i] for i in range(196)}
    d = auto(book_of(story=STORY, **texts))
    d.feed(text[:10])

    def is_asked(token: int) -> bool:
        tree, asked = d.draft(64), d._root_place().book is not None
        d.accept(StepOutcome(tree, [ROOT], token, None))
        return asked

    for token in text[10:110]:
        is_asked(token)
    assert sum(map(is_asked, text[110:190])) == 20
    # Once they are quoted they are asked everywhere.
    for token in STORY[:24]:
        is_asked(token)
    assert all(map(is_asked, STORY[24:48]))
