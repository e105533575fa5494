from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
from fakes import ScriptedSampler, ScriptedTarget, TreeDrafter, chain

from racer_local.config import DraftConfig, GenerationConfig, SamplingConfig
from racer_local.decoding.engine import Engine
from racer_local.errors import BusyError, ConfigError, ContextFullError, DecodeError
from racer_local.speculation.tree import DraftTree, Source

GREEDY = SamplingConfig(temperature=0)
PROMPT = [1, 2, 3, 1, 2, 3, 1, 2]
OFF = DraftConfig(mode="off")


def plain(n: int, prompt: list[int] = PROMPT, sampling: SamplingConfig = GREEDY, **target):
    engine = Engine(ScriptedTarget(**target), OFF)
    generation = engine.generate(prompt, sampling, GenerationConfig(max_tokens=n))
    return [event.token for event in generation]


def run(engine: Engine, n: int | None = 24, prompt: list[int] = PROMPT) -> list[int]:
    generation = engine.generate(prompt, GREEDY, GenerationConfig(max_tokens=n))
    return [event.token for event in generation]


def oracle(expected: list[int], n_prompt: int, *, spoil_last: bool = False) -> TreeDrafter:
    """Drafts the true continuation; with its last token wrong if asked."""

    def grow(text: list[int], budget: int) -> DraftTree:
        at = len(text) - n_prompt
        guess = expected[at : at + budget]
        if spoil_last and guess:
            guess[-1] = (guess[-1] + 1) % 32
        return chain(text[-1], guess)

    return TreeDrafter(grow)


def test_the_true_continuation_needs_few_decodes_and_gives_the_same_tokens() -> None:
    expected = plain(25)
    target = ScriptedTarget()
    engine = Engine(target, OFF)
    engine.use(oracle(expected, len(PROMPT)), 8)
    generation = engine.generate(PROMPT, GREEDY, GenerationConfig(max_tokens=24))
    events = list(generation)
    assert [event.token for event in events] == expected[:24]
    assert generation.stats.n_steps == 3
    assert generation.stats.n_accepted == generation.stats.n_drafted
    assert sum(event.source is Source.RETRIEVAL for event in events) == generation.stats.n_accepted
    assert generation.finish_reason == "length"


def test_drafts_that_the_sampler_forbids_are_not_decoded() -> None:
    class Choosy(ScriptedSampler):
        def forbidden(self, tree: DraftTree) -> set[int]:
            return {node for node in range(1, len(tree)) if tree.tokens[node] == 31}

    expected = plain(25)
    assert 31 not in expected

    def grow(text: list[int], budget: int) -> DraftTree:
        at = len(text) - len(PROMPT)
        tree = chain(text[-1], [31, 30, 29])
        node = 0
        for token in expected[at : at + 4]:
            node = tree.add(node, token, Source.LOGITS)
        return tree

    target = ScriptedTarget()
    engine = Engine(target, OFF)
    drafter = TreeDrafter(grow)
    engine.use(drafter, 8)
    generation = engine.generate(
        PROMPT,
        limits=GenerationConfig(max_tokens=24),
        make_sampler=lambda: Choosy(target, GREEDY),
    )
    assert [event.token for event in generation] == expected[:24]
    assert generation.stats.n_drafted == generation.stats.n_accepted > 10
    assert all(31 not in outcome.tree.tokens for outcome in drafter.outcomes)


def test_a_draft_whose_last_token_is_always_wrong_still_makes_progress() -> None:
    expected = plain(25)
    engine = Engine(ScriptedTarget(), OFF)
    engine.use(oracle(expected, len(PROMPT), spoil_last=True), 4)
    assert run(engine) == expected[:24]


@pytest.mark.parametrize(
    "grow",
    [
        lambda text, budget: DraftTree(text[-1]),
        lambda text, budget: chain(text[-1], [0] * budget),
        lambda text, budget: chain(text[-1], [31, 30, 29][:budget]),
        lambda text, budget: chain(text[-1], [5] * (budget + 7)),
    ],
    ids=["empty", "zeros", "arbitrary", "over budget"],
)
def test_bad_drafts_cost_speed_and_never_the_text(grow) -> None:
    target = ScriptedTarget()
    engine = Engine(target, OFF)
    engine.use(TreeDrafter(grow), 6)
    assert run(engine) == plain(24)
    assert target.n_decodes <= 24 + 1


@pytest.mark.parametrize(
    "grow",
    [
        lambda text, budget: chain(text[-1], [99]),
        lambda text, budget: chain(text[-1], [-1]),
        lambda text, budget: chain(text[-1] + 1, [1]),
        lambda text, budget: 1 / 0,
    ],
    ids=["token too large", "negative token", "wrong root", "raises"],
)
def test_a_faulty_drafter_is_turned_off_with_a_notice_and_the_answer_stays_right(grow) -> None:
    engine = Engine(ScriptedTarget(), OFF)
    engine.use(TreeDrafter(grow), 6)
    generation = engine.generate(PROMPT, GREEDY, GenerationConfig(max_tokens=24))
    assert [event.token for event in generation] == plain(24)
    assert generation.stats.n_drafted == 0
    assert any("turned off" in notice for notice in generation.stats.notices)


@pytest.mark.parametrize("moment", ["feed", "wanted_rows", "learn", "accept", "row_width"])
def test_a_drafter_that_fails_at_any_moment_spoils_nothing(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Faulty(TreeDrafter):
        row_width = 4

    def fail(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(Faulty, moment, fail, raising=True)
    if moment != "learn":
        monkeypatch.setattr(Faulty, "learn", lambda *_: None)
    if moment == "row_width":
        monkeypatch.setattr(Faulty, moment, 10_000)  # more than the vocabulary has
    engine = Engine(ScriptedTarget(), OFF)
    engine.use(Faulty(lambda text, budget: chain(text[-1], [1])), 6)
    if moment == "learn":
        monkeypatch.setattr(Faulty, "wanted_rows", lambda self, tokens: np.array([0, 1], np.int32))
    generation = engine.generate(PROMPT, GREEDY, GenerationConfig(max_tokens=24))
    assert [event.token for event in generation] == plain(24)
    assert bool(generation.stats.notices) == (moment != "row_width")


def test_more_leaves_than_sequences_are_cut() -> None:
    def fan(text: list[int], budget: int) -> DraftTree:
        tree = DraftTree(text[-1])
        for token in range(budget):
            tree.add(0, token, Source.LOGITS)
        return tree

    engine = Engine(ScriptedTarget(max_leaves=3), OFF)
    engine.use(TreeDrafter(fan), 20)
    assert run(engine) == plain(24)


@pytest.mark.parametrize("n", [1, 2, 3, 7])
@pytest.mark.parametrize("budget", [1, 8, 64])
def test_max_tokens_is_exact(n: int, budget: int) -> None:
    expected = plain(80)
    engine = Engine(ScriptedTarget(), OFF)
    engine.use(oracle(expected, len(PROMPT)), budget)
    assert run(engine, n) == expected[:n]


@pytest.mark.parametrize("n_free", [1, 2, 3, 8])
def test_the_context_is_filled_to_the_last_token_and_not_beyond(n_free: int) -> None:
    prompt = [i % 7 for i in range(64 - n_free)]
    expected = plain(200, prompt, n_ctx=300)
    target = ScriptedTarget(n_ctx=64)
    engine = Engine(target, OFF)
    engine.use(oracle(expected, len(prompt)), 16)
    generation = engine.generate(prompt, GREEDY)
    assert [event.token for event in generation] == expected[:n_free]
    assert generation.finish_reason == "length"


def test_a_prompt_that_leaves_no_room_is_refused_with_both_counts() -> None:
    engine = Engine(ScriptedTarget(n_ctx=8), OFF)
    with pytest.raises(ContextFullError, match="8 tokens but the context holds 8"):
        engine.generate(PROMPT)


@pytest.mark.parametrize("prompt", [[], [32], [-1]])
def test_a_prompt_must_have_tokens_of_the_vocabulary(prompt: list[int]) -> None:
    with pytest.raises(ConfigError):
        Engine(ScriptedTarget(), OFF).generate(prompt)


def test_generation_ends_at_an_end_token_inside_an_accepted_draft() -> None:
    expected = plain(25)
    end = expected[5]
    first = expected.index(end)
    engine = Engine(ScriptedTarget(end=end), OFF)
    engine.use(oracle(expected, len(PROMPT)), 16)
    generation = engine.generate(PROMPT, GREEDY, GenerationConfig(max_tokens=24))
    assert [event.token for event in generation] == expected[:first]
    assert generation.finish_reason == "stop"
    assert engine.target.tokens == PROMPT + expected[:first]
    ignoring = GenerationConfig(max_tokens=24, ignore_eos=True)
    assert [event.token for event in engine.generate(PROMPT, GREEDY, ignoring)] == expected[:24]


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("how", ["close", "drop"])
def test_after_stopping_early_the_next_answer_is_right(n: int, how: str) -> None:
    expected = plain(25)
    target = ScriptedTarget()
    engine = Engine(target, OFF)
    engine.use(oracle(expected, len(PROMPT)), 8)
    generation = engine.generate(PROMPT, GREEDY, GenerationConfig(max_tokens=24))
    assert [next(generation).token for _ in range(n)] == expected[:n]
    if how == "close":
        generation.close()
    del generation
    gc.collect()
    # The last token is not in the cache; tokens nobody asked for were taken back.
    assert target.tokens in (PROMPT + expected[:n], PROMPT + expected[: n - 1])
    assert target.n_samplers_open == 0
    assert run(engine) == expected[:24]


def test_a_second_prompt_reuses_the_prefix_and_the_drafter_keeps_what_still_holds() -> None:
    engine = Engine(ScriptedTarget(), DraftConfig(mode="racer", budget=8))
    first = run(engine, 10)
    prompt = PROMPT + first + [4, 5]
    generation = engine.generate(prompt, GREEDY, GenerationConfig(max_tokens=10))
    again = [event.token for event in generation]
    assert again == plain(10, prompt)
    assert generation.stats.n_reused >= len(PROMPT) + 9


@pytest.mark.parametrize("code", [1, -1, -2])
def test_a_failed_decode_does_not_poison_the_next_generation(code: int) -> None:
    expected = plain(25)
    target = ScriptedTarget()
    engine = Engine(target, OFF)
    engine.use(oracle(expected, len(PROMPT)), 4)
    target.fail_with = [0, code]
    if code == 1:  # retried without a draft
        assert run(engine) == expected[:24]
    else:
        with pytest.raises(DecodeError, match=f"code {code}"):
            run(engine)
    assert target.n_samplers_open == 0
    assert run(engine) == expected[:24]


def test_without_room_even_for_one_token_the_failure_is_told() -> None:
    target = ScriptedTarget()
    engine = Engine(target, OFF)
    target.fail_with = [1]
    with pytest.raises(DecodeError, match="KV cache"):
        run(engine)


@pytest.mark.parametrize("at", [1, 2, 5])
def test_cancel_ends_within_one_step_and_leaves_the_engine_usable(at: int) -> None:
    target = ScriptedTarget(n_batch=3)
    engine = Engine(target, OFF)

    def cancel_at_call() -> None:
        if target.n_decodes == at:
            engine.cancel()

    target.on_decode = cancel_at_call
    generation = engine.generate(PROMPT, GREEDY, GenerationConfig(max_tokens=24))
    list(generation)
    assert generation.finish_reason == "cancelled"
    assert target.n_decodes == at
    assert run(engine) == plain(24)


def test_cancel_without_a_generation_does_nothing() -> None:
    engine = Engine(ScriptedTarget(), OFF)
    engine.cancel()
    assert run(engine) == plain(24)


def test_one_thread_cannot_wait_for_itself() -> None:
    engine = Engine(ScriptedTarget(), OFF)
    first = engine.generate(PROMPT, GREEDY)
    next(first)
    with pytest.raises(BusyError, match="unfinished"):
        run(engine)
    first.close()
    assert run(engine) == plain(24)


def test_threads_wait_for_each_other() -> None:
    engine = Engine(ScriptedTarget(), DraftConfig(mode="racer", budget=8))
    prompts = [[i, i + 1, i, i + 1, i] for i in range(4)]
    answers: dict[int, list[int]] = {}

    def work(i: int) -> None:
        answers[i] = run(engine, 20, prompts[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {i: plain(20, prompts[i]) for i in range(4)}


def test_budget_beyond_what_the_target_was_opened_for_is_refused() -> None:
    with pytest.raises(ConfigError, match="at most 8"):
        Engine(ScriptedTarget(max_nodes=8), DraftConfig(mode="racer", budget=16))


def test_a_target_that_cannot_take_drafts_decodes_plainly_and_says_so() -> None:
    engine = Engine(ScriptedTarget(max_nodes=0, max_leaves=1), DraftConfig(mode="racer", budget=16))
    generation = engine.generate(PROMPT, GREEDY, GenerationConfig(max_tokens=24))
    assert [event.token for event in generation] == plain(24)
    assert generation.stats.draft == "off"
    assert generation.stats.notices


def test_progress_and_steps_are_reported() -> None:
    read: list[tuple[int, int]] = []
    steps = []
    engine = Engine(ScriptedTarget(n_batch=3), DraftConfig(mode="racer", budget=4))
    generation = engine.generate(
        PROMPT,
        GREEDY,
        GenerationConfig(max_tokens=6),
        on_prefill=lambda done, total: read.append((done, total)),
        on_step=steps.append,
    )
    list(generation)
    assert read == [(3, 8), (6, 8), (8, 8)]
    assert len(steps) == generation.stats.n_steps + 1


def test_drafting_differently_for_a_while_leaves_what_was_learned() -> None:
    engine = Engine(ScriptedTarget(), DraftConfig(mode="racer", budget=8))
    run(engine)
    drafter, n_known = engine.drafter, engine.drafter.n_known
    assert n_known > 0
    with engine.drafting(DraftConfig(mode="pld", budget=4)):
        generation = engine.generate(PROMPT, GREEDY, GenerationConfig(max_tokens=24))
        assert [event.token for event in generation] == plain(24)
        assert generation.stats.draft == "pld"
    # What is in use already is not begun afresh.
    with engine.drafting(DraftConfig(mode="racer", budget=8)):
        assert engine.drafter is drafter
    with pytest.raises(ConfigError, match="at most 64"), engine.drafting(DraftConfig(budget=99)):
        pass
    assert (engine.drafter, engine.drafter.n_known) == (drafter, n_known)


def test_work_on_the_side_begins_with_nothing_and_leaves_what_was_learned() -> None:
    target = ScriptedTarget()
    engine = Engine(target, DraftConfig(mode="racer", budget=8))
    run(engine)
    drafter, n_known = engine.drafter, engine.drafter.n_known
    with engine.aside(DraftConfig(mode="racer", budget=8)):
        assert target.tokens == []
        assert engine.drafter.n_known == 0
        assert run(engine) == plain(24)
        engine.forget()
        engine.use(OFF)
    assert (engine.drafter, engine.drafter.n_known) == (drafter, n_known)
    assert run(engine) == plain(24)
