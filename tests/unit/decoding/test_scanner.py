from __future__ import annotations

from racer_local.decoding.scanner import Scanner


def test_text_that_may_begin_a_string_is_held_back_and_no_more() -> None:
    scanner = Scanner(["</think>", "STOP"])
    assert [scanner.push(piece) for piece in ("a<", "/thi", "<", "", "/think")] == [
        *("a", "", "</thi", "", "")
    ]
    assert (scanner.push("> b"), scanner.found, scanner.rest) == ("", "</think>", " b")
    assert (scanner.push("</think>"), scanner.rest) == ("", " b</think>")
    assert scanner.flush() == ""


def test_a_string_waits_for_one_that_began_before_it() -> None:
    scanner = Scanner(["abcd", "bc"])
    assert [scanner.push(piece) for piece in "xabc"] == ["x", "", "", ""]
    assert scanner.found is None
    assert (scanner.push("e"), scanner.found, scanner.rest) == ("a", "bc", "e")
    scanner = Scanner(["abcd", "bc"])
    assert [scanner.push(piece) for piece in "abcd"] == [""] * 4
    assert (scanner.found, scanner.rest) == ("abcd", "")


def test_at_the_end_a_string_waits_no_longer() -> None:
    scanner = Scanner(["abcd", "bc"])
    assert (scanner.push("xabc"), scanner.flush()) == ("x", "a")
    assert (scanner.found, scanner.rest) == ("bc", "")


def test_of_strings_that_begin_together_the_shortest_is_found() -> None:
    scanner = Scanner(["ab", "a"])
    assert (scanner.push("xab"), scanner.found, scanner.rest) == ("x", "a", "b")


def test_without_strings_everything_is_given_at_once() -> None:
    scanner = Scanner(["", ""])
    assert (scanner.push("abc"), scanner.flush(), scanner.found) == ("abc", "", None)
