"""``verify`` on a real model: all is well as it is, and faults that are put in are found."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import llama_cpp
import pytest
from click.testing import CliRunner
from inputs import open_session

from racer_local.backend import target as target_module
from racer_local.backend.kv import KvCache
from racer_local.backend.layout import CopyIds, RemoveIds, lay_out
from racer_local.backend.sampler import Sampler
from racer_local.cli import cli
from racer_local.config import DraftConfig, ModelConfig
from racer_local.decoding.session import Session
from racer_local.measuring.cost import CostModel
from racer_local.verification.draws import check_draws
from racer_local.verification.report import faults, worst_p
from racer_local.verification.runner import QUICK, Findings, Plan, Setting, run

# As little as finds every fault.
SMALL = replace(
    QUICK, n_prompts=1, n_tokens=16, contexts=(32,), sizes=(2, 3, 4, 8), n_places=1, n_draws=300
)

PLANS = [pytest.param(SMALL, id="small"), pytest.param(QUICK, id="quick", marks=pytest.mark.slow)]


@pytest.fixture
def check(smol_path: Path) -> Callable[..., Findings]:
    @contextmanager
    def opened(exact: bool) -> Iterator[Session]:
        with open_session(ModelConfig(path=smol_path, n_ctx=1024, exact=exact)) as model:
            yield model

    return lambda plan=SMALL: run(opened, plan)


@pytest.mark.parametrize("plan", PLANS)
def test_a_broken_mask_is_told(
    check: Callable[..., Findings], monkeypatch: pytest.MonkeyPatch, plan: Plan
) -> None:
    def see_siblings(tree, n_seq):
        layout = lay_out(tree, n_seq)
        n = len(layout.nodes)
        # llama.cpp refuses a sequence with falling positions: only siblings can see each other.
        if max(layout.depths) > 1 or n == 1:
            return layout
        return replace(layout, first_ids=[0] * n, n_ids=[layout.n_seq] * n)

    # The probe for exact rows would refuse a broken mask: it is put in after loading.
    with_mask = target_module.LlamaTarget.limit_nodes

    def limit(self, max_nodes: int) -> None:
        with_mask(self, max_nodes)
        monkeypatch.setattr(target_module, "lay_out", see_siblings)

    monkeypatch.setattr(target_module.LlamaTarget, "limit_nodes", limit)
    found = faults(check(plan))
    assert any("mask is broken" in fault for fault in found), found


@pytest.mark.parametrize("plan", PLANS)
def test_a_skipped_repair_is_told(
    check: Callable[..., Findings], monkeypatch: pytest.MonkeyPatch, plan: Plan
) -> None:
    def leave_gap(self: KvCache, source: int, start: int, end: int) -> None:
        for seq in range(self._n_seq):
            if seq != source:
                self.apply([RemoveIds(seq, start, -1), CopyIds(source, seq, start, end)])
        self.apply([RemoveIds(source, end, -1)])

    monkeypatch.setattr(KvCache, "close_gap", leave_gap)
    found = faults(check(plan))
    assert any("not put back in order" in fault for fault in found), found


@pytest.mark.parametrize("plan", PLANS)
def test_a_double_accepted_sampler_is_told(
    check: Callable[..., Findings], monkeypatch: pytest.MonkeyPatch, plan: Plan
) -> None:
    once = Sampler.sample

    def twice(self: Sampler, ctx: object, batch_row: int, logits) -> int:
        token = once(self, ctx, batch_row, logits)
        if not self._is_argmax:
            llama_cpp.llama_sampler_accept(self._chain, ctypes.c_int32(token))
        return token

    monkeypatch.setattr(Sampler, "sample", twice)
    found = faults(check(plan))
    assert any("accepts every token twice" in fault for fault in found), found


SLOW_MODES = ["retrieval", "logits", "last-logit", "pld"]


@pytest.mark.parametrize("n_draws", [1000, pytest.param(5000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "mode", ["auto", "racer", *(pytest.param(m, marks=pytest.mark.slow) for m in SLOW_MODES)]
)
def test_drafting_keeps_the_distribution_over_thousands_of_draws(
    smol: Session, mode: str, n_draws: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What pays by the clock may be nothing on a busy machine.
    monkeypatch.setattr(smol.engine, "cost", CostModel.of_curve(lambda n: 0.95 + 0.05 * n, 65))
    draft = DraftConfig() if mode == "auto" else DraftConfig(mode=mode, budget=16)
    prompt = smol.prompt_tokens("red blue red green red blue yellow red green blue red blue")
    fits = check_draws(smol.engine, prompt, draft, n_places=4, n_draws=n_draws)
    assert sum(fit.n_draws for fit in fits) >= 4 * n_draws
    assert worst_p(Setting(draws={mode: fits})) > 0.001


def test_a_sound_program_has_no_faults_and_the_command_says_so_in_json(
    smol_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from racer_local.verification import runner

    monkeypatch.setattr(runner, "QUICK", SMALL)
    done = CliRunner().invoke(cli, ["verify", str(smol_path), "--quick", "--ctx", "1024", "--json"])
    assert done.exit_code == 0, done.output
    result = json.loads(done.output)
    assert result["verdict"].startswith("--exact holds")
    assert result["faults"] == []
    rows = result["exact"]["rows"][0]
    assert rows["n_identical"] == 8
    assert rows["tree_is_identical"] is True
    assert rows["repair_is_identical"] is True
    assert {"machine", "model", "verdict", "default"} <= result.keys()


def test_quick_and_full_exclude_each_other() -> None:
    done = CliRunner().invoke(cli, ["verify", "x.gguf", "--quick", "--full"])
    assert done.exit_code == 2
