"""For any tree, however bad, the output equals plain decoding's: the first rule of all."""

from __future__ import annotations

import random

import numpy as np
from fakes import ScriptedTarget, TreeDrafter, random_tree
from hypothesis import given
from hypothesis import strategies as st

from racer_local.books.book_set import BookSet
from racer_local.books.phrase_build import SourceText, build_book
from racer_local.config import DraftConfig, GenerationConfig, SamplingConfig
from racer_local.decoding.engine import Engine

OFF = DraftConfig(mode="off")


@given(
    st.lists(st.integers(0, 7), min_size=1, max_size=30),
    st.integers(0, 24),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 1.0, 3.0]),
    st.integers(1, 40),
)
def test_any_tree_leaves_the_output_as_plain_decoding_has_it(
    prompt: list[int], budget: int, seed: int, temperature: float, n: int
) -> None:
    sampling = SamplingConfig(temperature=temperature, seed=seed % 1000)
    limits = GenerationConfig(max_tokens=n)
    size = {"n_vocab": 8, "n_ctx": 60, "end": 5}
    expected = Engine(ScriptedTarget(**size), OFF).generate(prompt, sampling, limits)
    tokens = [event.token for event in expected]
    rng = random.Random(seed)
    engine = Engine(ScriptedTarget(**size, max_leaves=rng.randint(1, 8)), OFF)
    engine.use(
        TreeDrafter(lambda text, room: random_tree(text[-1], room, 8, rng.randrange)), budget
    )
    generation = engine.generate(prompt, sampling, limits)
    assert [event.token for event in generation] == tokens
    assert generation.finish_reason == expected.finish_reason
    assert generation.stats.n_generated == len(tokens)


@given(
    st.lists(st.integers(0, 7), min_size=1, max_size=40),
    st.sampled_from(["auto", "racer", "retrieval", "logits", "last-logit", "pld"]),
    st.integers(1, 64),
    st.integers(1, 60),
)
def test_every_drafter_leaves_the_output_as_it_is(
    prompt: list[int], mode: str, budget: int, n: int
) -> None:
    sampling = SamplingConfig(temperature=0)
    limits = GenerationConfig(max_tokens=n)
    plain = Engine(ScriptedTarget(n_vocab=8), OFF).generate(prompt, sampling, limits)
    tokens = [event.token for event in plain]
    engine = Engine(ScriptedTarget(n_vocab=8), DraftConfig(mode=mode, budget=budget))
    drafted = engine.generate(prompt, sampling, limits)
    assert [event.token for event in drafted] == tokens
    assert not drafted.stats.notices


@given(
    st.lists(st.integers(0, 7), min_size=1, max_size=40),
    st.lists(st.lists(st.integers(0, 7), max_size=60), max_size=3),
    st.booleans(),
    st.integers(1, 60),
)
def test_books_leave_the_output_as_it_is(
    prompt: list[int], texts: list[list[int]], has_answer: bool, n: int
) -> None:
    sampling = SamplingConfig(temperature=0)
    limits = GenerationConfig(max_tokens=n)
    plain = Engine(ScriptedTarget(n_vocab=8), OFF).generate(prompt, sampling, limits)
    tokens = [event.token for event in plain]
    if has_answer:
        texts = [*texts, [*prompt, *tokens]]
    sources = [SourceText("text", 99, 1, np.array(text, np.int32)) for text in texts]
    shelf = BookSet([build_book(sources, "any", 8)])
    engine = Engine(ScriptedTarget(n_vocab=8), DraftConfig(mode="auto"), books=shelf)
    drafted = engine.generate(prompt, sampling, limits)
    assert [event.token for event in drafted] == tokens
    assert not drafted.stats.notices
    assert drafted.stats.n_accepted == sum(
        count.accepted for count in drafted.stats.by_source.values()
    )
