"""Who takes part in a benchmark, and what one answer of theirs came to. Layer: above the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, get_args

from racer_local.config import DraftConfig, DraftMode, GenerationConfig, SamplingConfig
from racer_local.decoding.engine import Engine
from racer_local.errors import ConfigError, RacerError
from racer_local.speculation.stats import Stats
from racer_local.speculation.tree import TokenId

__all__ = [
    "BASE",
    "EXACT",
    "EXACT_BASE",
    "BenchAnswer",
    "BenchModel",
    "Contestant",
    "ModeContestant",
    "PeerError",
    "base_of",
    "parse_modes",
    "tree_size",
]

# Plain decoding: what every speedup is relative to.
BASE = "off"
# Ends the names of modes on a model that was opened with exact.
EXACT = "+exact"
EXACT_BASE = BASE + EXACT

_GREEDY = SamplingConfig(temperature=0.0)


class PeerError(RacerError):
    """Another program that takes part could not be started, or failed; it drops out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchAnswer:
    """One greedy answer and what it took.

    The first token is the prompt's work; decoding is all that comes after it.

    Attributes:
        tokens: generated ids, without an end-of-generation token.
        text: the same as text; '' where only the base's is needed.
        n_decoded: tokens generated after the first, an end-of-generation token included.
        n_steps: decode steps these took.
        n_drafted: draft tokens that were decoded.
        prefill_s: seconds from the request to the first token.
        decode_s: seconds from the first token to the end.
    """

    tokens: list[TokenId]
    text: str = ""
    n_decoded: int
    n_steps: int
    n_drafted: int
    prefill_s: float
    decode_s: float


class Contestant(Protocol):
    """Answers prompts one at a time; while the others do, it must not compute."""

    @property
    def name(self) -> str:
        """What it is called in the report."""

    def answer(self, prompt: Sequence[TokenId], max_tokens: int) -> BenchAnswer:
        """Answer from an empty cache, greedily.

        Raises:
            PeerError: it failed and cannot go on.
        """


class _Stream(Protocol):
    """The running answer of a session: see ``decoding.Answer``."""

    tokens: list[TokenId]
    text: str

    @property
    def stats(self) -> Stats: ...
    @property
    def finish_reason(self) -> str | None: ...
    def __next__(self) -> Any: ...
    def close(self) -> None: ...


class BenchModel(Protocol):
    """What the benchmark needs of a session: see ``Session``."""

    engine: Engine

    def chat_tokens(self, messages: Sequence[Mapping[str, Any]]) -> list[TokenId]:
        """Tokenize a conversation through the model's chat template."""

    def prompt_tokens(self, text: str) -> list[TokenId]:
        """Tokenize a raw prompt."""

    def stream(
        self,
        prompt: Sequence[TokenId],
        sampling: SamplingConfig | None = None,
        limits: GenerationConfig | None = None,
    ) -> _Stream:
        """Answer a tokenized prompt."""


class ModeContestant:
    """Our own engine in one draft mode."""

    def __init__(self, name: str, config: DraftConfig, model: BenchModel) -> None:
        """Take part with a model that other modes use as well."""
        self._name = name
        self._config = config
        self._model = model

    @property
    def name(self) -> str:
        """The mode, with its budget where one was given."""
        return self._name

    def answer(self, prompt: Sequence[TokenId], max_tokens: int) -> BenchAnswer:
        """Answer with nothing in the cache and a drafter that knows nothing of this text.

        What ``auto`` found out about its own guesses goes on from prompt to prompt, as it does in
        any process that answers more than one.
        """
        engine = self._model.engine
        engine.forget()
        engine.use(self._config)
        stream = self._model.stream(prompt, _GREEDY, GenerationConfig(max_tokens=max_tokens))
        try:
            while next(stream, None) is not None:
                pass
        finally:
            stream.close()
        stats = stream.stats
        return BenchAnswer(
            tokens=list(stream.tokens),
            text=stream.text,
            n_decoded=stats.n_decoded,
            n_steps=stats.n_steps,
            n_drafted=stats.n_drafted,
            prefill_s=stats.prefill_s,
            decode_s=stats.decode_s,
        )


def base_of(name: str) -> str:
    """Return the plain decoding whose tokens a contestant's should be: that of its own settings."""
    return EXACT_BASE if name.endswith(EXACT) else BASE


def parse_modes(text: str) -> dict[str, DraftConfig]:
    """Read a list such as ``auto,racer:8,auto+exact``: draft modes, with their budgets.

    Plain decoding is put first where it is missing, and exact plain decoding next where there are
    exact modes.

    Raises:
        ConfigError: a mode is unknown, or a budget is out of range.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    first = [BASE, EXACT_BASE] if any(name.endswith(EXACT) for name in names) else [BASE]
    return {name: _parse_mode(name) for name in dict.fromkeys([*first, *names])}


def _parse_mode(name: str) -> DraftConfig:
    mode, colon, budget = name.removesuffix(EXACT).partition(":")
    if mode not in get_args(DraftMode) or (colon and not budget.isascii()):
        known = ", ".join(get_args(DraftMode))
        raise ConfigError(
            f"no draft mode {name!r}; there are: {known}; racer:16 sets a budget, "
            "auto+exact decodes exactly"
        )
    if not colon:
        return DraftConfig(mode=mode)  # type: ignore[arg-type]  # checked above
    if not budget.isdecimal() or mode == BASE:
        raise ConfigError(f"draft mode {name!r} has no usable budget; write it as in racer:16")
    return DraftConfig(mode=mode, budget=int(budget))  # type: ignore[arg-type]  # checked above


def tree_size(modes: Mapping[str, DraftConfig]) -> DraftConfig:
    """Return settings whose trees have room for those of every mode, and no more branches."""
    drafting = [config for config in modes.values() if config.mode != BASE]
    if not drafting:
        return DraftConfig(mode="off")
    size = DraftConfig(mode="auto", budget=max(config.budget for config in drafting))
    is_enough = size.max_leaves >= max(config.max_leaves for config in drafting)
    return size if is_enough else replace(size, mode="racer")
