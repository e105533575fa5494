"""Everybody answers every prompt, in turn, from nothing; what is complete survives a stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner
from fakes import ScriptedTarget

from racer_local.bench.contest import (
    BenchAnswer,
    ModeContestant,
    PeerError,
    base_of,
    parse_modes,
    tree_size,
)
from racer_local.bench.record import (
    batch_for_all_rows,
    record_answer,
    record_prompts,
    trace_of,
)
from racer_local.bench.runner import Race, needed_context, write_prompt
from racer_local.bench.suites import Prompt
from racer_local.bench.warm import fill_row_memory
from racer_local.cli.bench import command as bench_command
from racer_local.cli.warm import command as warm_command
from racer_local.config import GenerationConfig, SamplingConfig
from racer_local.decoding.engine import Engine, Generation
from racer_local.drafting.auto.row_memory import RowMemory
from racer_local.errors import ConfigError, TraceError
from racer_local.speculation.topk import top_k


class FakeStream:
    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self.stats = generation.stats
        self.tokens: list[int] = []

    @property
    def text(self) -> str:
        return "".join(chr(97 + token % 26) for token in self.tokens)

    @property
    def finish_reason(self) -> str | None:
        return self._generation.finish_reason

    def __next__(self) -> Any:
        event = next(self._generation)
        self.tokens.append(event.token)
        return event

    def close(self) -> None:
        self._generation.close()


class FakeModel:
    """A scripted target under an engine, with a tokenizer of one token per word."""

    def __init__(self, **options: Any) -> None:
        self.target = ScriptedTarget(max_prompt_rows=16, **options)
        self.engine = Engine(self.target)
        self.asked: list[list[str]] = []

    def chat_tokens(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        self.asked.append([message["content"] for message in messages])
        return self.prompt_tokens(" ".join(message["content"] for message in messages))

    def prompt_tokens(self, text: str) -> list[int]:
        return [1, *(sum(word.encode()) % self.target.n_vocab for word in text.split())]

    def stream(
        self,
        prompt: Sequence[int],
        sampling: SamplingConfig | None = None,
        limits: GenerationConfig | None = None,
    ) -> FakeStream:
        return FakeStream(self.engine.generate(prompt, sampling, limits))


class FakeContestant:
    def __init__(self, name: str, calls: list[str], act: Callable[[], None] = lambda: None) -> None:
        self.name = name
        self._calls = calls
        self._act = act
        self.prompts: list[list[int]] = []

    def answer(self, prompt: Sequence[int], max_tokens: int) -> BenchAnswer:
        self._calls.append(self.name)
        self.prompts.append(list(prompt))
        self._act()
        return BenchAnswer(
            tokens=[1, 2],
            text=f"said by {self.name}",
            n_decoded=1,
            n_steps=1,
            n_drafted=0,
            prefill_s=0.1,
            decode_s=0.1,
        )


def prompts(n: int, turns: tuple[str, ...] = ("what is this",)) -> list[Prompt]:
    return [Prompt("spec_bench", "qa", i, turns) for i in range(n)]


def race(model: FakeModel, *contestants: Any, n_ctx: int = 256) -> Race:
    return Race(model, contestants, as_chat=True, max_tokens=8, n_ctx=n_ctx)


def test_all_answer_a_prompt_before_the_next_and_each_is_first_in_turn() -> None:
    calls: list[str] = []
    names = ["off", "auto", "pld"]
    running = race(FakeModel(), *(FakeContestant(name, calls) for name in names))
    told: list[tuple[int, int]] = []
    running.run(prompts(3), lambda done, total: told.append((done, total)))
    # The warm-up comes first and is not kept.
    rounds = [calls[i : i + 3] for i in range(0, 12, 3)]
    assert rounds == [names, names, ["auto", "pld", "off"], ["pld", "off", "auto"]]
    assert told == [(i, 9) for i in range(1, 10)]
    assert [sorted(r.answers) for r in running.rounds] == [sorted(names)] * 3


def test_later_turns_go_on_from_the_answer_of_plain_decoding() -> None:
    calls: list[str] = []
    model = FakeModel()
    auto, off = FakeContestant("auto", calls), FakeContestant("off", calls)
    running = race(model, auto, off)
    running.run(prompts(1, ("first", "second")))
    assert model.asked[-1] == ["first", "said by off", "second"]
    assert auto.prompts == off.prompts
    assert [r.turn for r in running.rounds] == [0, 1]
    assert running.rounds[1].n_prompt > running.rounds[0].n_prompt


def test_a_prompt_that_does_not_fit_is_skipped_for_all() -> None:
    calls: list[str] = []
    running = race(FakeModel(), FakeContestant("off", calls), n_ctx=20)
    running.run([*prompts(1, ("many " * 30,)), *prompts(1)])
    assert len(running.skipped) == 1
    assert len(running.rounds) == 1


def test_a_peer_that_fails_drops_out_and_the_rest_goes_on() -> None:
    calls: list[str] = []

    def fail() -> None:
        if calls.count("peer") == 3:
            raise PeerError("it died")

    running = race(FakeModel(), FakeContestant("off", calls), FakeContestant("peer", calls, fail))
    running.run(prompts(4))
    assert running.dropped == {"peer": "it died"}
    assert [sorted(r.answers) for r in running.rounds] == [["off", "peer"], *[["off"]] * 3]
    assert calls.count("peer") == 3


def test_a_stop_keeps_complete_rounds_only() -> None:
    calls: list[str] = []

    def stop() -> None:
        if len(calls) == 7:
            raise KeyboardInterrupt

    running = race(
        FakeModel(), FakeContestant("off", calls, stop), FakeContestant("auto", calls, stop)
    )
    with pytest.raises(KeyboardInterrupt):
        running.run(prompts(9))
    assert len(running.rounds) == 2
    assert all(sorted(r.answers) == ["auto", "off"] for r in running.rounds)


def test_plain_decoding_must_take_part() -> None:
    with pytest.raises(ValueError, match="'off'"):
        race(FakeModel(), FakeContestant("auto", []))


def test_every_mode_gives_the_tokens_of_plain_decoding_and_honest_counts() -> None:
    model = FakeModel(n_vocab=8)
    modes = parse_modes("off,racer:4,pld:3")
    running = race(model, *(ModeContestant(n, c, model) for n, c in modes.items()))
    running.run(prompts(3))
    for round_ in running.rounds:
        plain = round_.answers["off"]
        assert plain.n_steps == plain.n_decoded == 7
        assert plain.n_drafted == 0
        assert len(plain.text) == len(plain.tokens) == 8
        for answer in round_.answers.values():
            assert answer.tokens == plain.tokens
            assert answer.n_decoded == 7
            assert answer.n_steps <= 7
            assert answer.decode_s > 0
    assert any(r.answers["racer:4"].n_drafted for r in running.rounds)


def test_every_answer_starts_from_an_empty_cache() -> None:
    model = FakeModel()
    mode = ModeContestant("off", parse_modes("off")["off"], model)
    first = mode.answer([1, 2, 3], 4)
    before = model.target.n_decodes
    assert mode.answer([1, 2, 3], 4).tokens == first.tokens
    # One prefill and three single tokens: nothing was reused.
    assert model.target.n_decodes - before == 4


def test_the_token_that_ends_an_answer_counts_as_decoded() -> None:
    model = FakeModel()
    mode = ModeContestant("off", parse_modes("off")["off"], model)
    tokens = mode.answer([1, 2, 3], 6).tokens
    model.target.end = tokens[3]
    answer = mode.answer([1, 2, 3], 6)
    assert answer.tokens == tokens[: tokens.index(tokens[3])]
    assert answer.n_decoded == answer.n_steps == len(answer.tokens)


def test_modes_are_read_with_their_budgets_and_plain_decoding_comes_first() -> None:
    modes = parse_modes(" auto, racer:16,auto,")
    assert list(modes) == ["off", "auto", "racer:16"]
    assert modes["racer:16"].budget == 16
    assert tree_size(modes).budget == 64
    assert tree_size(modes).max_leaves == 16
    assert tree_size(parse_modes("auto,racer:17")).max_leaves == 64
    assert tree_size(parse_modes("racer:16,pld:3")).budget == 16
    assert tree_size(parse_modes("off")).mode == "off"


def test_exact_modes_bring_exact_plain_decoding_with_them() -> None:
    modes = parse_modes("racer:16,auto+exact,racer:4+exact")
    assert list(modes) == ["off", "off+exact", "racer:16", "auto+exact", "racer:4+exact"]
    assert modes["off+exact"].mode == "off"
    assert modes["auto+exact"].mode == "auto"
    assert modes["racer:4+exact"].budget == 4
    assert [base_of(name) for name in ("auto", "auto+exact")] == ["off", "off+exact"]


@pytest.mark.parametrize(
    "text",
    [
        *("fast", "racer:", "racer:x", "racer:9999", "racer:-1", "off:4", "exact", "+exact"),
        *("auto+fast", "racer+exact:4", "off:4+exact", "auto+exact+exact"),
    ],
)
def test_bad_modes_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"mode|budget"):
        parse_modes(text)


def test_raw_prompts_follow_each_other() -> None:
    class Raw(FakeModel):
        def prompt_tokens(self, text: str) -> list[int]:
            self.asked.append([text])
            return [1]

    model = Raw()
    write_prompt(model, ["a", "b"], ["x"], as_chat=False)
    assert model.asked == [["a\n\nx\n\nb"]]


def test_the_context_needed_holds_every_conversation() -> None:
    needed = needed_context(FakeModel(), prompts(1, ("a b", "c")), 100, as_chat=True)
    assert needed >= 4 + 200
    assert needed % 256 == 0


# --- recording -------------------------------------------------------------------------------


def test_a_record_has_the_row_of_every_position() -> None:
    model = FakeModel()
    prompt = [int(t) for t in np.random.default_rng(1).integers(0, 32, 40)]
    record, text = record_answer(model, "qa", prompt, 9)
    mode = ModeContestant("off", parse_modes("off")["off"], model)
    tokens = record.tokens.tolist()
    assert tokens == prompt + mode.answer(prompt, 9).tokens
    assert (record.category, record.n_prompt, len(text)) == ("qa", 40, 9)
    rows = np.stack([model.target.row_after(tokens[: i + 1]) for i in range(len(tokens))])
    ids, probs = top_k(rows, 8)
    assert (record.topk_ids == ids).all()
    assert np.allclose(record.topk_probs, probs)
    # The likeliest token after each place of a greedy answer is the next one.
    assert record.topk_ids[39:-1, 0].tolist() == tokens[40:]


def test_a_record_that_ends_by_itself_keeps_all_its_tokens() -> None:
    model = FakeModel()
    record, _ = record_answer(model, "qa", [1, 2, 3], 6)
    end = model.target.end = int(record.tokens[-2])
    shorter, _ = record_answer(model, "qa", [1, 2, 3], 6)
    answer = record.tokens[3:].tolist()
    assert shorter.tokens[3:].tolist() == answer[: answer.index(end)]


def test_rows_lost_to_a_large_batch_are_noticed() -> None:
    model = FakeModel(n_batch=64)
    with pytest.raises(TraceError, match="smaller batch"):
        record_answer(model, "qa", [1] * 40, 4)


def test_a_batch_never_has_more_rows_than_can_be_read() -> None:
    assert batch_for_all_rows(262_144) * 262_144 * 4 <= 64 * 2**20
    assert batch_for_all_rows(100) == 512
    assert batch_for_all_rows(2**30) == 1


def test_recording_takes_every_turn_and_leaves_out_what_does_not_fit() -> None:
    model = FakeModel()
    asked = [*prompts(1, ("first", "second")), *prompts(1, ("many " * 300,))]
    records = list(record_prompts(model, asked, as_chat=True, max_tokens=5, n_ctx=256))
    assert len(records) == 2
    assert records[1].n_prompt > records[0].n_prompt
    trace = trace_of(records)
    assert len(trace) == 2
    assert [r.n_prompt for r in trace] == [r.n_prompt for r in records]
    with pytest.raises(TraceError, match="nothing"):
        trace_of([])


# --- warm ------------------------------------------------------------------------------------


def test_warm_stops_when_the_time_is_up_and_answers_at_least_one() -> None:
    ticks = iter(range(100))
    options: dict[str, Any] = {"as_chat": True, "n_ctx": 100_000, "max_tokens": 4}
    model = FakeModel(n_ctx=100_000)
    memory = RowMemory("m")
    told: list[tuple[float, float]] = []
    n = fill_row_memory(
        model,
        memory,
        seconds=3,
        clock=lambda: next(ticks),
        on_progress=lambda *now: told.append(now),
        **options,
    )
    assert n == 2
    assert told == [(1, 3), (2, 3)]
    assert len(memory) > 0
    assert fill_row_memory(model, memory, seconds=0, clock=lambda: next(ticks), **options) == 1


def test_warm_leaves_out_what_does_not_fit() -> None:
    assert (
        fill_row_memory(FakeModel(), RowMemory("m"), as_chat=True, n_ctx=1, max_tokens=4, seconds=9)
        == 0
    )


# --- command line ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--suites", "gsm8k"], "gsm8k"),
        (["--suites", ","], "--suites"),
        (["--modes", "fast"], "fast"),
        (["--per-category", "0"], "at least 1"),
        (["--max-tokens", "1"], "at least 2"),
        (["--json", "no/such/folder/out.json"], "no such folder"),
        (["--record", "no/such/folder/out.npz"], "no such folder"),
    ],
)
def test_bad_options_are_refused_before_a_model_is_opened(
    arguments: list[str], message: str
) -> None:
    result = CliRunner().invoke(bench_command, [*arguments, "--model", "no-such-model.gguf"])
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)


def test_warm_needs_time() -> None:
    result = CliRunner().invoke(warm_command, ["--minutes", "0", "no-such-model.gguf"])
    assert isinstance(result.exception, ConfigError)


@pytest.mark.parametrize("command", [bench_command, warm_command])
def test_help_shows_examples_line_by_line(command: click.Command) -> None:
    text = CliRunner().invoke(command, ["--help"]).output
    assert f"\n    racer-local {command.name}" in text
    assert "\\b" not in text
