"""The scanner against a search of the whole text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from racer_local.decoding.scanner import Scanner

# Few letters, one of them of four bytes: strings lie within each other and begin each other.
STRINGS = st.lists(st.text("ab<👍", max_size=5), max_size=5)


@st.composite
def cut_texts(draw: st.DrawFn) -> list[str]:
    return draw(st.lists(st.text("ab<👍", max_size=6), max_size=12))


def first_of(text: str, strings: list[str]) -> tuple[int, str] | None:
    found = [(text.find(s), len(s), s) for s in strings if s and s in text]
    return (min(found)[0], min(found)[2]) if found else None


def longest_beginning(text: str, strings: list[str]) -> int:
    ends = (n for n in range(len(text), 0, -1) if any(s[:n] == text[-n:] for s in strings))
    return next(ends, 0)


@given(cut_texts(), STRINGS)
def test_it_finds_what_a_search_of_the_whole_text_finds(
    pieces: list[str], strings: list[str]
) -> None:
    scanner, text = Scanner(strings), "".join(pieces)
    shown = "".join([*map(scanner.push, pieces), scanner.flush()])
    first = first_of(text, strings)
    if first is None:
        assert (shown, scanner.found, scanner.rest) == (text, None, "")
    else:
        at, string = first
        assert (shown, scanner.found) == (text[:at], string)
        assert scanner.rest == text[at + len(string) :]


@given(cut_texts(), STRINGS)
def test_it_holds_back_the_longest_end_that_a_string_begins_with(
    pieces: list[str], strings: list[str]
) -> None:
    scanner, text, shown = Scanner(strings), "", ""
    for piece in pieces:
        text += piece
        shown += scanner.push(piece)
        if first_of(text, strings) is None:
            assert len(text) - len(shown) == longest_beginning(text, strings)
        elif scanner.found is None:
            # A string that began earlier may still come.
            n_held = longest_beginning(text, strings)
            assert first_of(text, strings)[0] > len(text) - n_held  # type: ignore[index]  # seen
            assert len(text) - len(shown) == n_held
