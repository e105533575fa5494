"""For any tree, however bad, the output is that of plain decoding."""

from __future__ import annotations

import random
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from racer_local.speculation.acceptance import verify
from racer_local.speculation.tree import DraftTree, Source

N_VOCAB = 4
N_TOKENS = 30


def plain(target: Callable[[list[int]], int], prompt: list[int], end: int | None) -> list[int]:
    text = list(prompt)
    while len(text) < len(prompt) + N_TOKENS:
        text.append(target(text))
        if text[-1] == end:
            break
    return text


def sampler_of(
    target: Callable[[list[int]], int], text: list[int], tree: DraftTree
) -> Callable[[int], int]:
    before = text[:-1]
    return lambda node: target(before + [tree.tokens[n] for n in tree.path(node)])


def speculative(
    target: Callable[[list[int]], int],
    prompt: list[int],
    end: int | None,
    grow: Callable[[DraftTree], None],
) -> list[int]:
    text = [*prompt, target(prompt)]
    while len(text) < len(prompt) + N_TOKENS and text[-1] != end:
        tree = DraftTree(text[-1])
        grow(tree)

        path, token = verify(tree, sampler_of(target, text, tree), lambda token: token == end)
        text += [tree.tokens[node] for node in path[1:]]
        text.append(token)
    return text[: len(prompt) + N_TOKENS]


@given(st.integers(0, 2**32), st.integers(0, 40), st.one_of(st.none(), st.integers(0, 3)))
def test_verified_output_equals_plain_decoding(seed: int, n_nodes: int, end: int | None) -> None:
    rng = random.Random(seed)

    def target(text: list[int]) -> int:
        return random.Random(str((seed, text[-3:]))).randrange(N_VOCAB)

    def grow(tree: DraftTree) -> None:
        for _ in range(n_nodes):
            tree.add(rng.randrange(len(tree)), rng.randrange(N_VOCAB), Source.LOGITS)

    assert speculative(target, [1, 2], end, grow) == plain(target, [1, 2], end)


@given(st.integers(0, 2**32), st.integers(0, 40))
def test_a_sampler_with_state_sees_what_plain_decoding_shows_it(seed: int, n_nodes: int) -> None:
    rng = random.Random(seed)

    def sampler() -> Callable[[list[int]], int]:
        draws = random.Random(seed + 1)
        return lambda text: (draws.randrange(N_VOCAB) + text[-1]) % N_VOCAB

    def grow(tree: DraftTree) -> None:
        for _ in range(n_nodes):
            tree.add(rng.randrange(len(tree)), rng.randrange(N_VOCAB), Source.LOGITS)

    assert speculative(sampler(), [1], None, grow) == plain(sampler(), [1], None)
