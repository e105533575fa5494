"""Runs all checks on one model, first with default settings and then with ``exact``.

Layer: above the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from racer_local.bench.contest import BenchModel
from racer_local.bench.runner import write_prompt
from racer_local.bench.suites import choose
from racer_local.config import DraftConfig, SamplingConfig
from racer_local.errors import DecodeError, UnsupportedModelError
from racer_local.speculation.tree import TokenId
from racer_local.verification.agreement import Agreement, check_sampler, compare
from racer_local.verification.chi_square import Fit
from racer_local.verification.draws import check_draws
from racer_local.verification.prompts import spread_prompts
from racer_local.verification.rows import RowFacts, check_rows

__all__ = ["FULL", "NORMAL", "QUICK", "SEEDED", "Findings", "OpenModel", "Plan", "Setting", "run"]

# Opens the model with ``exact`` or without; the model is closed when the block is left.
OpenModel = Callable[[bool], AbstractContextManager[BenchModel]]
Tell = Callable[[int, int], None]

GREEDY = SamplingConfig(temperature=0.0)
SEEDED = SamplingConfig(temperature=0.8, top_p=0.95, repeat_penalty=1.1, seed=20_260)
_SMALL_SIZES = (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16)
# Something to draft from, and something for penalties to do.
_REPETITIVE = (
    "Red is a colour. Blue is a colour. Green is a colour. Red and blue make purple. Blue and "
    "green make teal. Red is a colour. Blue is"
)
_N_COMING = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much to do.

    Attributes:
        per_category: prompts of each of the nine bundled categories.
        n_prompts: most prompts altogether; the shortest ones.
        n_tokens: of each answer.
        contexts: tokens before batches whose rows are compared.
        sizes: rows of those batches.
        n_places: places of each drafter at which tokens are drawn.
        n_draws: draws at each of them.
        longest: most tokens of a prompt where prompts of all lengths are made, in place of
            bundled ones as they are.
        modes: draft modes to compare with plain decoding.
        draw_modes: draft modes to draw with.
    """

    per_category: int
    n_prompts: int
    n_tokens: int
    contexts: tuple[int, ...]
    sizes: tuple[int, ...]
    n_places: int
    n_draws: int
    longest: int | None = None
    modes: tuple[str, ...] = ("auto", "racer")
    draw_modes: tuple[str, ...] = ("auto", "racer", "retrieval", "logits", "last-logit", "pld")

    def draft(self, mode: str) -> DraftConfig:
        """Make the settings of a mode: 16 nodes for fixed trees, auto as it is."""
        if mode == "auto":
            return DraftConfig()
        return DraftConfig(mode=mode, budget=16)  # type: ignore[arg-type]  # checked there


QUICK = Plan(
    per_category=1,
    n_prompts=3,
    n_tokens=24,
    contexts=(32, 560),
    sizes=(2, 3, 4, 8, 16),
    n_places=2,
    n_draws=500,
    draw_modes=("auto", "racer"),
)
NORMAL = Plan(
    per_category=1,
    n_prompts=8,
    n_tokens=48,
    contexts=(32, 300, 560, 1100),
    sizes=(*_SMALL_SIZES, 32, 64),
    n_places=3,
    n_draws=1500,
)
FULL = Plan(
    per_category=12,
    n_prompts=100,
    n_tokens=256,
    contexts=(32, 300, 560, 1100, 2200, 3500),
    sizes=(*_SMALL_SIZES, 17, 24, 32, 33, 48, 64),
    n_places=5,
    n_draws=20_000,
    longest=3500,
)


@dataclass(slots=True)
class Setting:
    """What was found with one way to open the model.

    Attributes:
        rows: batches against single tokens, by context.
        greedy: answers against plain decoding, by mode.
        seeded: the same with a seed.
        sampler: what is wrong with penalties, or None.
        draws: tests of drawn tokens, by mode.
        max_nodes: the largest draft tree it takes.
        failure: the error that ended the checks early, or None.
    """

    rows: list[RowFacts] = field(default_factory=list)
    greedy: dict[str, Agreement] = field(default_factory=dict)
    seeded: dict[str, Agreement] = field(default_factory=dict)
    sampler: str | None = None
    draws: dict[str, list[Fit]] = field(default_factory=dict)
    max_nodes: int = 0
    failure: str | None = None


@dataclass(slots=True)
class Findings:
    """All that was found.

    Attributes:
        default: with default settings.
        exact: with ``exact``; None where it was refused.
        refusal: why it was refused.
        n_prompt: lengths of the prompts in tokens.
    """

    default: Setting
    exact: Setting | None = None
    refusal: str | None = None
    n_prompt: list[int] = field(default_factory=list)


def run(open_model: OpenModel, plan: Plan, tell: Tell | None = None) -> Findings:
    """Check a model.

    Args:
        open_model: opens it with ``exact`` or without.
        plan: how much to do.
        tell: called with (work done, work in all).
    """
    work = _Work(plan, tell or (lambda done, total: None))
    with open_model(False) as model:
        prompts = _prompts(model, plan)
        work.expect(len(prompts), model.engine.target.n_ctx)
        findings = Findings(_check(model, plan, prompts, work), n_prompt=[*map(len, prompts)])
    try:
        with open_model(True) as model:
            findings.exact = _check(model, plan, prompts, work)
    except UnsupportedModelError as error:
        findings.refusal = str(error)
    return findings


class _Work:
    """Counts what has been done, in answers."""

    def __init__(self, plan: Plan, tell: Tell) -> None:
        self._plan, self._tell = plan, tell
        self._done, self._total = 0, 1

    def expect(self, n_prompts: int, n_ctx: int) -> None:
        plan = self._plan
        answers = 2 * n_prompts * (1 + len(plan.modes))
        self._total = 2 * (answers + len(_contexts(plan, n_ctx)) + len(plan.draw_modes))

    def done(self) -> None:
        self._done = min(self._done + 1, self._total)
        self._tell(self._done, self._total)


def _contexts(plan: Plan, n_ctx: int) -> list[int]:
    largest = max(plan.sizes) + _N_COMING
    return [n for n in plan.contexts if n + largest <= n_ctx] or [max(1, n_ctx // 4)]


def _prompts(model: BenchModel, plan: Plan) -> list[list[TokenId]]:
    """Tokenize bundled prompts that fit; in the order of the suites."""
    as_chat = _has_template(model)
    room = model.engine.target.n_ctx - plan.n_tokens - 1
    if plan.longest is not None:
        longest = max(1, min(plan.longest, room))
        return spread_prompts(model, plan.n_prompts, longest, as_chat=as_chat)
    texts = choose(["all"], plan.per_category)
    prompts = [write_prompt(model, text.turns[:1], [], as_chat=as_chat) for text in texts]
    fitting = sorted((p for p in prompts if len(p) <= room), key=len)[: plan.n_prompts]
    return [prompt for prompt in prompts if prompt in fitting]


def _has_template(model: BenchModel) -> bool:
    return getattr(getattr(model, "model", None), "chat_template", None) is not None


def _check(model: BenchModel, plan: Plan, prompts: Sequence[list[TokenId]], work: _Work) -> Setting:
    found = Setting(max_nodes=model.engine.target.max_nodes)
    try:
        _fill(found, model, plan, prompts, work)
    except DecodeError as error:
        found.failure = str(error)
    return found


def _fill(
    found: Setting, model: BenchModel, plan: Plan, prompts: Sequence[list[TokenId]], work: _Work
) -> None:
    engine = model.engine
    target = engine.target
    if target.max_nodes:
        text = _long_text(model)
        sizes = [n for n in plan.sizes if n <= target.max_nodes + 1]
        for n in _contexts(plan, target.n_ctx):
            found.rows.append(check_rows(target, text[:n], text[n : n + _N_COMING], sizes))
            work.done()
    modes = {_name(mode): plan.draft(mode) for mode in plan.modes}
    found.greedy = compare(engine, prompts, modes, plan.n_tokens, GREEDY, work.done)
    found.seeded = compare(engine, prompts, modes, plan.n_tokens, SEEDED, work.done)
    repetitive = model.prompt_tokens(_REPETITIVE)
    found.sampler = check_sampler(engine, repetitive, plan.draft("racer"), plan.n_tokens)
    for mode in plan.draw_modes:
        found.draws[_name(mode)] = check_draws(
            engine, repetitive, plan.draft(mode), n_places=plan.n_places, n_draws=plan.n_draws
        )
        work.done()


def _name(mode: str) -> str:
    return mode if mode == "auto" else f"{mode}:16"


def _long_text(model: BenchModel) -> list[TokenId]:
    """Return real text that is long enough for the longest context."""

    def texts() -> Iterator[str]:
        for prompt in choose(["rag", "summarization"], None):
            yield prompt.turns[0]

    tokens: list[TokenId] = []
    for text in texts():
        tokens += model.prompt_tokens(text)
        if len(tokens) > FULL.contexts[-1] + _N_COMING:
            break
    return tokens
