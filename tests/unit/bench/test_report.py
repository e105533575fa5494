"""Figures add up before they are divided; tables stay readable."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from racer_local.bench.contest import BenchAnswer
from racer_local.bench.plot import plot, require_matplotlib
from racer_local.bench.report import summarize, table
from racer_local.bench.runner import Round
from racer_local.bench.suites import Prompt
from racer_local.errors import ConfigError
from racer_local.hardware.machine import describe_machine


def answer(
    n_decoded: int, decode_s: float, *, steps: int | None = None, drafted: int = 0, last: int = 7
) -> BenchAnswer:
    return BenchAnswer(
        tokens=[*range(n_decoded), last],
        n_decoded=n_decoded,
        n_steps=n_decoded if steps is None else steps,
        n_drafted=drafted,
        prefill_s=0.5,
        decode_s=decode_s,
    )


def round_of(category: str, **answers: BenchAnswer) -> Round:
    prompt = Prompt("spec_bench", category, 1, ("?",))
    return Round(prompt=prompt, turn=0, n_prompt=10, answers=answers)


ROUNDS = [
    round_of("qa", off=answer(10, 1.0), auto=answer(10, 0.5, steps=5, drafted=10)),
    round_of("qa", off=answer(30, 3.0), auto=answer(30, 2.5, steps=20, drafted=30, last=8)),
    round_of("rag", off=answer(20, 2.0), auto=answer(20, 2.5)),
]


def test_the_speed_is_all_tokens_over_all_seconds() -> None:
    modes = summarize(ROUNDS, ["off", "auto"])
    qa = modes["auto"]["qa"]
    assert qa["tokens"] == 40
    assert qa["seconds"] == pytest.approx(3.0)
    assert qa["tokens_per_s"] == pytest.approx(40 / 3)
    assert qa["speedup"] == pytest.approx(40 / 3 / 10)
    assert qa["mean_accepted_tokens"] == pytest.approx(40 / 25)
    assert qa["nodes_per_step"] == pytest.approx(1 + 40 / 25)
    assert qa["same_as_plain"] == 0.5
    assert (qa["answers"], qa["prompt_tokens"], qa["prefill_s"]) == (2, 20, 1.0)
    assert qa["total_speedup"] == pytest.approx((42 / 4.0) / (42 / 5.0))


def test_all_is_every_category_and_the_base_is_exactly_one() -> None:
    modes = summarize(ROUNDS, ["off", "auto"])
    assert list(modes["off"]) == ["qa", "rag", "all"]
    assert modes["auto"]["all"]["tokens"] == 60
    assert modes["auto"]["all"]["speedup"] == pytest.approx(60 / 5.5 / 10)
    for figures in modes["off"].values():
        assert figures["speedup"] == 1.0
        assert figures["same_as_plain"] == 1.0
        assert figures["mean_accepted_tokens"] == figures["nodes_per_step"] == 1.0


def test_exact_modes_are_compared_with_both_plain_ones_and_with_themselves() -> None:
    rounds = [
        round_of(
            "qa",
            **{
                "off": answer(10, 1.0),
                "off+exact": answer(10, 1.25, last=8),
                "auto": answer(10, 0.4),
                "auto+exact": answer(10, 0.5, last=8),
                "racer+exact": answer(10, 2.5, last=9),
            },
        )
    ]
    names = list(rounds[0].answers)
    modes = summarize(rounds, names)
    exact = modes["auto+exact"]["all"]
    assert exact["speedup"] == pytest.approx(2.0)
    assert exact["exact_speedup"] == pytest.approx(2.5)
    # Another text than that of a context with other settings is no fault of the drafts.
    assert exact["same_as_plain"] == 1.0
    assert modes["racer+exact"]["all"]["same_as_plain"] == 0.0
    assert modes["auto"]["all"]["exact_speedup"] is None
    lines = table(modes).splitlines()
    [start] = [i for i, line in enumerate(lines) if line.startswith("speed over")]
    cells = [" ".join(line.split()) for line in lines[start : start + 4]]
    assert cells == [
        "speed over off off+exact not exact same as off+exact",
        "off+exact 0.80x 1.00x 0.80x 1 of 1",
        "auto+exact 2.00x 2.50x 0.80x 1 of 1",
        "racer+exact 0.40x 0.50x - 0 of 1",
    ]
    assert "speed over" not in table(summarize(ROUNDS, ["off", "auto"]))


def test_a_contestant_that_dropped_out_is_compared_on_its_own_prompts() -> None:
    rounds = [*ROUNDS[:1], round_of("qa", off=answer(100, 1.0)), ROUNDS[2]]
    rounds[2] = round_of("rag", off=answer(20, 2.0))
    modes = summarize(rounds, ["off", "auto", "gone"])
    assert modes["auto"]["qa"]["answers"] == 1
    assert modes["auto"]["qa"]["speedup"] == pytest.approx(2.0)
    assert "rag" not in modes["auto"]
    assert "gone" not in modes
    assert "-" in table(modes).splitlines()[-2]


def test_answers_of_one_token_have_no_speed() -> None:
    modes = summarize([round_of("qa", off=answer(0, 0.0), auto=answer(0, 0.0))], ["off", "auto"])
    assert modes["auto"]["all"]["tokens_per_s"] == 0.0
    assert modes["auto"]["all"]["speedup"] is None
    assert modes["auto"]["all"]["mean_accepted_tokens"] == 1.0
    assert "-" in table(modes)


def test_the_table_names_every_mode_and_category() -> None:
    text = table(summarize(ROUNDS, ["off", "auto"]))
    assert "auto" in text.splitlines()[2]
    assert "1.09x" in text.splitlines()[2]
    assert text.splitlines()[-3].split() == ["qa", "1.33x"]
    assert text.splitlines()[-2].split() == ["rag", "0.80x"]


def test_wide_tables_are_cut_into_several() -> None:
    names = [f"llama-server:ngram-kind-{i}" for i in range(9)]
    rounds = [round_of("qa", off=answer(5, 1.0), **{name: answer(5, 1.0) for name in names})]
    text = table(summarize(rounds, ["off", *names]))
    assert max(len(line) for line in text.splitlines()) <= 100
    assert all(text.count(name) == 2 for name in names)


def test_nothing_measured_is_said() -> None:
    assert summarize([], ["off"]) == {}
    assert table({}) == "nothing was measured"


def test_a_plot_without_matplotlib_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"racer-local\[bench\]"):
        require_matplotlib()


def test_a_plot_is_written_whole(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rounds = [*ROUNDS, round_of("code_edit", off=answer(5, 1.0))]
    plot(summarize(rounds, ["off", "auto"]), tmp_path / "a.png", "a model")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match="nonsense"):
        plot(summarize(ROUNDS, ["off", "auto"]), tmp_path / "a.nonsense")


def test_the_machine_is_named() -> None:
    machine = describe_machine()
    assert machine["cpu"]
    assert machine["usable_cores"] >= 1
    assert machine["llama_cpp_python"]
