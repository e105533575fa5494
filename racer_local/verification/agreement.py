"""Answers with and without drafts, token by token. Layer: above the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from racer_local.config import DraftConfig, GenerationConfig, SamplingConfig
from racer_local.decoding.engine import Engine
from racer_local.speculation.tree import TokenId
from racer_local.verification.plain import PlainDecoder, penalized

__all__ = ["Agreement", "Difference", "answer", "check_sampler", "compare"]

_OFF = DraftConfig(mode="off")
# Computing in NumPy may round the last digit of a penalized logit differently; batches move
# logits of a small model by up to about 1.
_ROUNDING, _BATCH_ROUNDING = 1e-3, 1.0
_PENALTIES = SamplingConfig(
    temperature=0.0, repeat_penalty=1.1, frequency_penalty=0.3, presence_penalty=0.2
)


@dataclass(frozen=True, slots=True)
class Difference:
    """Where an answer left that of plain decoding.

    Attributes:
        prompt: number of the prompt.
        at: number of the token, from 0.
        gap: by how much plain decoding preferred its own token: the difference of two logits,
            after penalties.
    """

    prompt: int
    at: int
    gap: float


@dataclass(slots=True)
class Agreement:
    """Answers of one draft mode against those of plain decoding.

    Attributes:
        n_answers: how many were compared.
        n_tokens: their tokens.
        differences: one for each answer that is not the same.
    """

    n_answers: int = 0
    n_tokens: int = 0
    differences: list[Difference] = field(default_factory=list)

    @property
    def n_same(self) -> int:
        """Answers that are the same, token by token."""
        return self.n_answers - len(self.differences)


def answer(
    engine: Engine,
    draft: DraftConfig | None,
    prompt: Sequence[TokenId],
    n: int,
    sampling: SamplingConfig,
) -> list[TokenId]:
    """Answer from an empty cache with ``n`` tokens; ``draft`` None goes on with the drafter."""
    engine.forget()
    if draft is not None:
        engine.use(draft)
    limits = GenerationConfig(max_tokens=n, ignore_eos=True)
    return [event.token for event in engine.generate(prompt, sampling, limits)]


def compare(
    engine: Engine,
    prompts: Sequence[Sequence[TokenId]],
    modes: Mapping[str, DraftConfig],
    n: int,
    sampling: SamplingConfig,
    on_answer: Callable[[], None],
) -> dict[str, Agreement]:
    """Answer every prompt plainly and in every mode.

    Args:
        engine: drafts differently afterwards.
        prompts: token ids.
        modes: draft settings by name.
        n: tokens of each answer.
        sampling: with a seed, or greedy.
        on_answer: called after every answer.
    """
    found = {name: Agreement() for name in modes}
    for number, prompt in enumerate(prompts):
        plain = answer(engine, _OFF, prompt, n, sampling)
        on_answer()
        for name, draft in modes.items():
            mine = answer(engine, draft, prompt, n, sampling)
            on_answer()
            found[name].n_answers += 1
            found[name].n_tokens += len(mine)
            at = _first_difference(plain, mine)
            if at is not None:
                gap = _gap(engine, prompt, plain, mine, at, sampling)
                found[name].differences.append(Difference(number, at, gap))
    return found


def _first_difference(a: Sequence[TokenId], b: Sequence[TokenId]) -> int | None:
    pairs: Iterator[tuple[TokenId, TokenId]] = zip(a, b, strict=False)
    for at, (one, other) in enumerate(pairs):
        if one != other:
            return at
    return None if len(a) == len(b) else min(len(a), len(b))


def _gap(
    engine: Engine,
    prompt: Sequence[TokenId],
    plain: Sequence[TokenId],
    mine: Sequence[TokenId],
    at: int,
    sampling: SamplingConfig,
) -> float:
    if at >= min(len(plain), len(mine)):
        return float("inf")
    decoder = PlainDecoder(engine.target, prompt)
    for token in plain[:at]:
        decoder.read(token)
    logits = penalized(decoder.logits, plain[:at], sampling)
    return float(logits[plain[at]] - logits[mine[at]])


def check_sampler(
    engine: Engine, prompt: Sequence[TokenId], draft: DraftConfig, n: int
) -> str | None:
    """Compare penalized answers with penalties computed here; say what is wrong, if anything.

    Returns:
        None if all is well.
    """
    expected = PlainDecoder(engine.target, prompt).answer(n, _PENALTIES)
    for name, config in (("plain decoding", _OFF), ("drafting", draft)):
        mine = answer(engine, config, prompt, n, _PENALTIES)
        at = _first_difference(expected, mine)
        if at is None:
            continue
        gap = _gap(engine, prompt, expected, mine, at, _PENALTIES)
        is_batched = config is draft and not engine.target.is_exact
        if gap < (_BATCH_ROUNDING if is_batched else _ROUNDING):
            continue
        twice = PlainDecoder(engine.target, prompt).answer(n, _PENALTIES, counted=2)
        if mine == twice:
            return f"in {name} the sampler accepts every token twice: penalties count double"
        return (
            f"in {name} penalties do not follow llama.cpp's rules: token {at} is preferred to "
            f"the right one, {gap:.3f} above it"
        )
    return None
