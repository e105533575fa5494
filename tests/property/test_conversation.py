"""Wherever an answer is left and a next prompt parts from it: same text, nothing lost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from fakes import ScriptedTarget, chain
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from racer_local.config import DraftConfig, DraftMemory, GenerationConfig, SamplingConfig
from racer_local.decoding.engine import Engine
from racer_local.speculation.drafter import Rows, StepOutcome
from racer_local.speculation.prefix import common_prefix
from racer_local.speculation.tree import DraftTree, TokenId

GREEDY = SamplingConfig(temperature=0)
OFF = DraftConfig(mode="off")
N_VOCAB = 8
LIMITS = GenerationConfig(max_tokens=40)


class Memorizer:
    """Drafts the right or a wrong continuation, and knows the rows of its text by position."""

    row_width = 2

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.text: list[TokenId] = []
        self.rows: dict[int, list[int]] = {}

    def begin_from(self, other: Memorizer, tokens: Sequence[TokenId]) -> None:
        assert other.text[: len(tokens)] == list(tokens)
        self.rows = {i: row for i, row in other.rows.items() if i < len(tokens)}
        self.text = list(tokens)

    def feed(self, tokens: Sequence[TokenId]) -> None:
        self.text += tokens

    def wanted_rows(self, tokens: Sequence[TokenId]) -> NDArray[np.int32]:
        return np.arange(len(tokens), dtype=np.int32)

    def learn(self, rows: Rows) -> None:
        self.rows.update(zip(rows.index.tolist(), rows.ids.tolist(), strict=True))

    def draft(self, budget: int) -> DraftTree:
        return chain(self.text[-1], right_answer(self.text)[:budget])

    def accept(self, outcome: StepOutcome) -> None:
        tree, rows = outcome.tree, outcome.rows
        assert rows is not None
        of_node = dict(zip(rows.index.tolist(), rows.ids.tolist(), strict=True))
        for i, node in enumerate(outcome.path):
            self.rows[len(self.text) - 1 + i] = of_node[node]
        self.text += [tree.tokens[node] for node in outcome.path[1:]]
        self.text.append(outcome.next_token)

    def size_bytes(self) -> int:
        return 0


def right_answer(prompt: list[TokenId]) -> list[TokenId]:
    """Follow the scripted target; a draft is wrong from its fourth token on."""
    target, text = ScriptedTarget(n_vocab=N_VOCAB), list(prompt)
    for i in range(5):
        best = int(target.row_after(text).argmax())
        text.append(best if i < 3 else (best + 1) % N_VOCAB)
    return text[len(prompt) :]


def best_tokens(text: list[TokenId]) -> list[TokenId]:
    row = ScriptedTarget(n_vocab=N_VOCAB).row_after(text)
    found: list[TokenId] = np.argsort(-row)[:2].tolist()
    return found


def plain(prompt: list[TokenId], n: int) -> list[TokenId]:
    engine = Engine(ScriptedTarget(n_vocab=N_VOCAB, n_ctx=400), OFF)
    generation = engine.generate(prompt, GREEDY, LIMITS)
    return [next(generation).token for _ in range(n)]


@st.composite
def turns(draw: st.DrawFn) -> list[tuple[int, int, list[TokenId], int]]:
    """Make (which earlier text, cut from its end, tokens put there, tokens taken) per turn."""
    tail = st.lists(st.integers(0, N_VOCAB - 1), min_size=1, max_size=45)
    # Cuts are near the end (the middle of a step), or anywhere.
    cut = st.one_of(st.integers(0, 6), st.integers(0, 120))
    turn = st.tuples(st.integers(0, 9), cut, tail, st.integers(1, 40))
    return draw(st.lists(turn, min_size=2, max_size=6))


def prompts_of(script: list[tuple[int, int, list[TokenId], int]]):
    """Yield (prompt, tokens to take); send what was taken."""
    texts: list[list[TokenId]] = [[]]
    for which, cut, tail, n in script:
        base = texts[which % len(texts)]
        prompt = (base[: max(0, len(base) - cut)] + tail)[-300:]
        texts.append(prompt + (yield prompt, n))


@given(turns(), st.sampled_from([0, 1, 4]))
def test_a_drafter_keeps_what_it_knew_of_the_common_part(script, max_states: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("racer_local.decoding.engine.make_drafter", lambda *_: Memorizer())
        target = ScriptedTarget(n_vocab=N_VOCAB, n_ctx=400, max_states=max_states)
        engine = Engine(target, DraftConfig(mode="racer", budget=4))
        conversations = engine._conversations
        todo = prompts_of(script)
        prompt, n = next(todo)
        while True:
            before = []
            for kept in conversations._kept:
                if kept.drafter is not None:
                    is_current = kept is conversations._kept[-1]
                    shared = common_prefix(target.tokens if is_current else kept.tokens, prompt)
                    inner = kept.drafter._drafter
                    before.append((shared, list(inner.text), dict(inner.rows)))
            generation = engine.generate(prompt, GREEDY, LIMITS)
            taken = [next(generation).token]
            drafter = engine.drafter._drafter
            # Positions are those of this text, and rows are those of these positions.
            assert drafter.text == prompt + taken
            for i, row in drafter.rows.items():
                assert row == best_tokens(prompt[: i + 1])
            if before:
                most = max(shared for shared, _, _ in before)
                assert any(
                    shared >= most - 16
                    and {i for i in rows if i < common_prefix(text, prompt)} <= set(drafter.rows)
                    for shared, text, rows in before
                )
            taken += [next(generation).token for _ in range(n - 1)]
            generation.close()
            assert taken == plain(prompt, n)
            assert not generation.stats.notices
            assert target.tokens == (prompt + taken)[:-1]
            try:
                prompt, n = todo.send(taken)
            except StopIteration:
                break


MODES = ["off", "auto", "racer", "retrieval", "logits", "last-logit", "pld"]


@given(
    turns(),
    st.sampled_from(MODES),
    st.sampled_from([0, 2]),
    st.sampled_from(["conversation", "server", "off"]),
    st.booleans(),
)
def test_every_answer_is_that_of_plain_decoding(
    script, mode: str, max_states: int, memory: DraftMemory, can_rewind: bool
) -> None:
    target = ScriptedTarget(
        n_vocab=N_VOCAB,
        n_ctx=400,
        max_states=max_states,
        max_nodes=64 if can_rewind else 0,
        max_leaves=64 if can_rewind else 1,
    )
    target.can_rewind = can_rewind
    engine = Engine(target, DraftConfig(mode=mode, budget=6, memory=memory))
    todo = prompts_of(script)
    prompt, n = next(todo)
    while True:
        generation = engine.generate(prompt, GREEDY, LIMITS)
        taken = [next(generation).token for _ in range(n)]
        generation.close()
        assert taken == plain(prompt, n)
        assert generation.stats.n_drafted == 0 or can_rewind
        try:
            prompt, n = todo.send(taken)
        except StopIteration:
            break
