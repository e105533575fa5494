"""Speed is that of the decode steps: their tokens over their time."""

from __future__ import annotations

import pytest
from fakes import ScriptedTarget, TreeDrafter, chain

from racer_local.config import DraftConfig, GenerationConfig, SamplingConfig
from racer_local.decoding.engine import Engine
from racer_local.speculation.stats import Stats

GREEDY = SamplingConfig(temperature=0)
PROMPT = [1, 2, 3]


def answer(n: int, end: int | None = None) -> list[int]:
    engine = Engine(ScriptedTarget(end=end), DraftConfig(mode="off"))
    return [e.token for e in engine.generate(PROMPT, GREEDY, GenerationConfig(max_tokens=n))]


@pytest.mark.parametrize("budget", [0, 3])
@pytest.mark.parametrize("n", [1, 2, 3, 9])
@pytest.mark.parametrize("is_ended", [False, True])
def test_the_tokens_are_those_of_the_steps_whose_time_is_counted(
    budget: int, n: int, is_ended: bool
) -> None:
    expected = answer(20)
    end = expected[n] if is_ended else None
    assert end not in expected[:n]
    engine = Engine(ScriptedTarget(end=end), DraftConfig(mode="off"))
    if budget:
        engine.use(
            TreeDrafter(
                lambda text, room: chain(text[-1], expected[len(text) - len(PROMPT) :][:room])
            ),
            budget,
        )
    generation = engine.generate(PROMPT, GREEDY, GenerationConfig(max_tokens=20 if end else n))
    tokens = [event.token for event in generation]
    stats = generation.stats
    assert tokens == expected[:n]
    assert stats.n_generated == n
    # All but the first token come from steps, and so does the end token.
    assert stats.n_decoded == n - 1 + is_ended
    assert stats.n_decoded == stats.n_steps * stats.mean_accepted_tokens or not stats.n_steps
    assert (stats.tokens_per_s > 0) == (stats.n_steps > 0)
    if stats.n_steps:
        assert stats.tokens_per_s == stats.n_decoded / stats.decode_s


def test_without_a_step_there_is_no_speed() -> None:
    assert Stats().tokens_per_s == 0.0
    assert Stats(n_steps=2, n_accepted=4, decode_s=3.0).tokens_per_s == 2.0
