"""Do sampled tokens have the model's own distribution, with drafts? Layer: above the engine.

A tree that a drafter really made is decoded once; then tokens are drawn many times, each time
with a fresh sampler of another seed and through the acceptance rule of the engine. Counted are
the first token, and the second one where the first was the likeliest drafted one. The
distribution that they are measured by is computed from single rows, in NumPy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from racer_local.config import DraftConfig, GenerationConfig, SamplingConfig
from racer_local.decoding.engine import Engine
from racer_local.speculation.acceptance import verify
from racer_local.speculation.drafter import StepOutcome
from racer_local.speculation.tree import ROOT, DraftTree, TokenId
from racer_local.verification.chi_square import Fit, fit_of
from racer_local.verification.plain import PlainDecoder, distribution

__all__ = ["check_draws"]

_SAMPLING = SamplingConfig(temperature=0.8, top_k=40, top_p=0.95, min_p=0.02)
_N_TOKENS = 48
# Fewer second tokens than this say nothing.
_MIN_SECOND = 200


@dataclass(frozen=True, slots=True)
class _Place:
    text: list[TokenId]
    tree: DraftTree


def check_draws(
    engine: Engine,
    prompt: Sequence[TokenId],
    draft: DraftConfig,
    *,
    n_places: int,
    n_draws: int,
) -> list[Fit]:
    """Draw the tokens after several places of an answer, and test them.

    Args:
        engine: drafts differently afterwards.
        prompt: a text whose answer repeats some of it, so that there is something to draft.
        draft: how.
        n_places: places to take, at most.
        n_draws: draws at each.

    Returns:
        One fit, or two, for each place where something was drafted.
    """
    fits = []
    for place in _places(engine, prompt, draft, n_places):
        fits += _fits(engine, place, n_draws)
    return fits


def _places(
    engine: Engine, prompt: Sequence[TokenId], draft: DraftConfig, n_places: int
) -> list[_Place]:
    """Answer greedily, and keep trees on the way."""
    found: list[_Place] = []

    def keep(outcome: StepOutcome) -> None:
        if outcome.tree.n_drafted:
            text = engine.target.tokens
            found.append(_Place(text[: len(text) - len(outcome.path)], outcome.tree))

    engine.forget()
    engine.use(draft)
    limits = GenerationConfig(max_tokens=_N_TOKENS, ignore_eos=True)
    greedy = SamplingConfig(temperature=0.0)
    for _ in engine.generate(prompt, greedy, limits, on_step=keep):
        pass
    n = min(n_places, len(found))
    return [found[(2 * i + 1) * len(found) // (2 * n)] for i in range(n)]


def _fits(engine: Engine, place: _Place, n_draws: int) -> list[Fit]:
    target, tree = engine.target, place.tree
    decoder = PlainDecoder(target, place.text)
    decoder.read(tree.tokens[ROOT])
    first = distribution(decoder.logits, _SAMPLING)
    drafted = max((tree.tokens[node] for node in tree.children(ROOT)), key=lambda t: first[t])
    decoder.read(drafted)
    second = distribution(decoder.logits, _SAMPLING)
    target.rewind(len(place.text))
    row_of = target.decode_tree(tree).row_of
    firsts: Counter[TokenId] = Counter()
    seconds: Counter[TokenId] = Counter()
    for seed in range(n_draws):
        sampler = target.sampler(replace(_SAMPLING, seed=seed))
        try:
            path, token = verify(tree, lambda node: sampler.sample(row_of[node]))  # noqa: B023
        finally:
            sampler.close()
        drawn = [*(tree.tokens[node] for node in path[1:]), token]
        firsts[drawn[0]] += 1
        if len(drawn) > 1 and drawn[0] == drafted:
            seconds[drawn[1]] += 1
    target.rewind(len(place.text))
    fits = [fit_of(firsts, first)]
    if seconds.total() >= _MIN_SECOND:
        fits.append(fit_of(seconds, second))
    return fits
