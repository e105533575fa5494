"""A forest of tokens: whoever is below another begins with it, and everybody is found."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from racer_local.backend.token_prefixes import TokenPrefixes

PIECES = st.lists(
    st.one_of(
        st.none(),
        st.text(alphabet="ab,é🚀\0", max_size=4).map(lambda text: text.encode()),
        st.binary(max_size=4),
    ),
    min_size=1,
    max_size=40,
)


def forest(pieces: list[bytes | None]) -> TokenPrefixes:
    prefixes = TokenPrefixes()
    prefixes.read(pieces)
    return prefixes


@given(PIECES)
def test_every_token_is_found_once_and_below_a_whole_beginning_of_its_own(
    pieces: list[bytes | None],
) -> None:
    prefixes = forest(pieces)
    found = list(prefixes.roots)
    level = prefixes.roots
    while len(level):
        for above in level:
            for below in prefixes.longer(np.array([above], np.int32)):
                start, piece = pieces[above], pieces[below]
                assert start is not None
                assert piece is not None
                assert piece.startswith(start)
                assert piece != start
                start.decode("utf-8")
        level = prefixes.longer(level)
        found.extend(level)
    assert sorted(found) == list(range(len(pieces)))


def test_a_token_that_ends_the_text_stands_for_no_other() -> None:
    assert list(forest([None, b"<", b"<end>"]).roots) == [0, 1]
    assert list(forest([b"<", None, b"<e"]).longer(np.array([0], np.int32))) == [2]


def test_reading_waits_until_it_is_worth_it() -> None:
    prefixes = TokenPrefixes()
    assert [prefixes.is_worth_reading(2) for _ in range(4)] == [False, False, True, True]
