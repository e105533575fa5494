"""Phrase books against brute force, against pyahocorasick, and against damage."""

from __future__ import annotations

import random
from pathlib import Path

import ahocorasick
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from racer_local.books.phrase_book import DEPTH, PhraseBook
from racer_local.books.phrase_build import SourceText, build_book, sort_places
from racer_local.errors import ConfigError

MIN_MATCH = 3
MAX_MATCHES = 12

# Few different tokens, so that matches abound; large vocabularies take four bytes a token.
vocabularies = st.sampled_from([4, 300, 70_000, 262_144])


def sources_of(texts: list[list[int]]) -> list[SourceText]:
    return [
        SourceText(f"file {i}", 3 * len(text), i, np.array(text, np.int32))
        for i, text in enumerate(texts)
    ]


@st.composite
def texts_and_context(draw: st.DrawFn) -> tuple[int, list[list[int]], list[int]]:
    n_vocab = draw(vocabularies)
    tokens = st.integers(0, min(n_vocab, 4) - 1).map(lambda t: n_vocab - 1 - t)
    texts = draw(st.lists(st.lists(tokens, max_size=40), max_size=5))
    context = draw(st.lists(tokens, max_size=20))
    if texts and draw(st.booleans()):
        # A context that really occurs.
        text = draw(st.sampled_from(texts))
        context = text[: draw(st.integers(0, len(text)))]
    return n_vocab, texts, context


def brute_force(texts: list[list[int]], context: list[int]) -> list[tuple[int, int]]:
    """Every place with a token after it: match length and that token. Equal texts count once."""
    found = []
    for text in dict.fromkeys(map(tuple, texts)):
        for place in range(len(text) - 1):
            length = 0
            limit = min(DEPTH, place + 1, len(context))
            while length < limit and text[place - length] == context[-1 - length]:
                length += 1
            if length >= MIN_MATCH:
                found.append((length, text[place + 1]))
    return sorted(found, reverse=True)


@given(texts_and_context())
def test_matches_are_those_of_a_brute_force_search(
    case: tuple[int, list[list[int]], list[int]],
) -> None:
    n_vocab, texts, context = case
    book = build_book(sources_of(texts), "tokenizer", n_vocab)
    found = [(match.length, match.token) for match in book.find(context)]
    expected = brute_force(texts, context)
    lengths = [length for length, _ in found]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths == [length for length, _ in expected[:MAX_MATCHES]]
    # Of the shortest ones listed, others may be as long as those that were taken.
    for each in set(found):
        assert found.count(each) <= expected.count(each)
        if each[0] > lengths[-1] or len(expected) <= MAX_MATCHES:
            assert found.count(each) == expected.count(each)


@given(texts_and_context())
def test_every_match_stands_where_it_says(case: tuple[int, list[list[int]], list[int]]) -> None:
    n_vocab, texts, context = case
    book = build_book(sources_of(texts), "tokenizer", n_vocab)
    text = book.text().astype(int) - 1
    for length, token, place in book.find(context):
        assert text[place - length + 1 : place + 1].tolist() == context[len(context) - length :]
        assert text[place + 1] == token
        file = book.file_at(place)
        assert file is not None
        assert book.tokens(file).tolist() == texts[int(file.name.split()[1])]


@given(texts_and_context(), st.integers(0, 3))
def test_following_matches_over_a_token_finds_what_a_new_search_finds(
    case: tuple[int, list[list[int]], list[int]], offset: int
) -> None:
    n_vocab, texts, context = case
    book = build_book(sources_of(texts), "tokenizer", n_vocab)
    token = n_vocab - 1 - min(offset, n_vocab - 1)
    before = book.find(context)
    after = book.advance(before, token)
    again = book.find([*context, token])
    if len(before) < MAX_MATCHES:
        # All longer matches are known; new ones can only be of the shortest kind.
        assert sorted(after) == sorted(m for m in again if m.length > MIN_MATCH or m in after)
    for match in after:
        assert match.length > MIN_MATCH
        if len(again) < MAX_MATCHES:
            assert match in again


@given(texts_and_context())
def test_the_longest_match_is_pyahocorasicks(
    case: tuple[int, list[list[int]], list[int]],
) -> None:
    n_vocab, texts, context = case
    automaton = ahocorasick.Automaton(ahocorasick.STORE_LENGTH)
    for text in texts:
        # One code point a token, past the surrogates; a phrase must have a token after it.
        coded = "".join(chr(token + 0x800 if token >= 0xD800 else token) for token in text[:-1])
        for end in range(len(coded)):
            for start in range(max(0, end + 1 - DEPTH), end + 1):
                automaton.add_word(coded[start : end + 1])
    longest = 0
    coded = "".join(chr(token + 0x800 if token >= 0xD800 else token) for token in context)
    if len(automaton):
        automaton.make_automaton()
        for end, length in automaton.iter(coded):
            if end == len(coded) - 1:
                longest = max(longest, length)
    book = build_book(sources_of(texts), "tokenizer", n_vocab)
    found = book.find(context)
    assert (found[0].length if found else 0) == (longest if longest >= MIN_MATCH else 0)


@given(texts_and_context())
def test_places_are_sorted_by_what_comes_before_them(
    case: tuple[int, list[list[int]], list[int]],
) -> None:
    n_vocab, texts, _ = case
    text = build_book(sources_of(texts), "tokenizer", n_vocab).text()
    order, ranks = sort_places(text)
    padded = [0] * DEPTH + text.tolist()
    before = [tuple(padded[i + 1 : i + 1 + DEPTH][::-1]) for i in range(len(text))]
    assert [before[i] for i in order] == sorted(before[i] for i in order)
    for i in range(1, len(text)):
        assert (ranks[i] < ranks[i - 1]) == (before[i] < before[i - 1])


def test_no_damage_to_a_file_does_more_than_have_it_refused(tmp_path: Path) -> None:
    chance = random.Random(8)
    texts = [[chance.randrange(20) for _ in range(chance.randrange(60))] for _ in range(6)]
    path = tmp_path / "book.npz"
    build_book(sources_of(texts), "tokenizer", 300).save(path)
    whole = path.read_bytes()
    n_refused = 0
    for _ in range(2500):
        content = bytearray(whole)
        kind = chance.randrange(4)
        if kind == 0:
            del content[chance.randrange(len(content)) :]
        elif kind == 1:
            start = chance.randrange(len(content))
            del content[start : start + chance.randrange(1, 40)]
        elif kind == 2:
            content[chance.randrange(len(content)) :] = chance.randbytes(chance.randrange(200))
        else:
            for _ in range(chance.randrange(1, 8)):
                content[chance.randrange(len(content))] = chance.randrange(256)
        path.write_bytes(content)
        try:
            book = PhraseBook.load(path, "tokenizer")
        except ConfigError:
            n_refused += 1
            continue
        # Damage that no checksum covers changes nothing that is read.
        for text in texts:
            for match in book.find(text):
                assert 0 <= match.token < book.n_vocab
                book.file_at(match.place)
    assert n_refused > 1500


def test_wrong_values_in_a_sound_file_never_lead_outside_the_book(tmp_path: Path) -> None:
    chance = np.random.default_rng(8)
    texts = [chance.integers(0, 20, 50).tolist() for _ in range(4)]
    path, foreign = tmp_path / "book.npz", tmp_path / "foreign.npz"
    build_book(sources_of(texts), "tokenizer", 300).save(path)
    with np.load(path) as content:
        arrays = dict(content)
    n_loaded = 0
    for _ in range(300):
        changed = {key: value.copy() for key, value in arrays.items()}
        key = chance.choice(["text", "order", "ranges", "marks", "names", "n_vocab"])
        flat = changed[key].reshape(-1)
        info = np.iinfo(flat.dtype)
        flat[chance.integers(len(flat))] = chance.choice(
            [info.min, info.max, 0, 1, 19, chance.integers(info.min, info.max)]
        )
        np.savez(foreign, **changed)
        try:
            book = PhraseBook.load(foreign, "tokenizer")
        except ConfigError:
            continue
        n_loaded += 1
        for text in texts:
            found = book.find(text)
            for match in found:
                assert 0 <= match.token < book.n_vocab
                book.file_at(match.place)
            for match in book.advance(found, text[0]):
                assert 0 <= match.token < book.n_vocab
    assert n_loaded > 30
