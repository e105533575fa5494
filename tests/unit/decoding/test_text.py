from __future__ import annotations

import pytest

from racer_local.decoding.text import StopScanner, TextDecoder

FAMILY = "🏋️‍♀️ 你好 é"


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_characters_appear_whole_however_their_bytes_are_split(size: int) -> None:
    decoder = TextDecoder()
    encoded = FAMILY.encode()
    shown = [decoder.push(encoded[i : i + size]) for i in range(0, len(encoded), size)]
    assert "".join(shown) == FAMILY
    assert "\ufffd" not in "".join(shown)


def test_bytes_that_are_no_character_are_replaced_and_an_unfinished_one_is_left_out() -> None:
    decoder = TextDecoder()
    assert decoder.push(b"a\xffb") == "a\ufffdb"
    assert decoder.push("👍".encode()[:3]) == ""


def test_a_stop_string_across_pieces_ends_the_text_before_it() -> None:
    scanner = StopScanner(["</end>"])
    assert [scanner.push(piece) for piece in ["one <", "/", "e", "nd", "> two"]] == [
        "one ",
        "",
        "",
        "",
        "",
    ]
    assert scanner.is_stopped
    assert scanner.push("more") == ""
    assert scanner.flush() == ""


def test_text_that_only_looked_like_a_stop_string_is_shown_after_all() -> None:
    scanner = StopScanner(["abcd"])
    assert scanner.push("xab") == "x"
    assert scanner.push("cx") == "abcx"
    assert scanner.push("abc") == ""
    assert scanner.flush() == "abc"


def test_the_stop_string_that_begins_first_wins() -> None:
    scanner = StopScanner(["world", "lo w"])
    assert scanner.push("hello world") == "hel"


def test_without_stop_strings_nothing_is_held_back() -> None:
    scanner = StopScanner([])
    assert scanner.push("abc") == "abc"
    assert not scanner.is_stopped
