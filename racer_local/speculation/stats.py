"""Counters of one generation.

Terms: a *decode step* is one pass of the target over one draft tree. It gives the accepted draft
tokens and one more, the target's own, which may be the end token. *MAT* (mean accepted tokens) is
what a step gives on average, so plain decoding has 1.0.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from racer_local.speculation.tree import Source

__all__ = ["SourceCount", "Stats"]

DRAFT_SOURCES = (Source.RETRIEVAL, Source.LOGITS, Source.PHRASEBOOK)


@dataclass(slots=True)
class SourceCount:
    """Draft tokens of one source."""

    drafted: int = 0
    accepted: int = 0


@dataclass(slots=True)
class Stats:
    """What a generation did and how long its parts took.

    The first token comes from the prompt's last row and belongs to the prefill; ``decode_s``
    and ``n_steps`` cover the tokens after it, the end token included.

    Attributes:
        draft: draft mode in force.
        notices: why drafting was off or cut, if it was.
        n_prompt: tokens of the prompt.
        n_reused: of these, tokens found in the KV cache.
        n_generated: tokens handed out; an end token is none of them.
        n_steps: decode steps.
        n_drafted: draft nodes decoded.
        n_accepted: of these, accepted ones.
        prefill_s: seconds from the request to the first token.
        decode_s: seconds from the first token to the last.
        draft_s: of these, seconds spent on drafting.
        learn_s: of these, seconds spent on teaching the drafter.
        kv_s: of these, seconds spent on KV bookkeeping.
        target_s: of these, seconds spent in the target's forward passes.
        seed: the sampler's seed.
        by_source: counts per draft source.
    """

    draft: str = "off"
    notices: list[str] = field(default_factory=list)
    n_prompt: int = 0
    n_reused: int = 0
    n_generated: int = 0
    n_steps: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    draft_s: float = 0.0
    learn_s: float = 0.0
    kv_s: float = 0.0
    target_s: float = 0.0
    seed: int | None = None
    by_source: dict[Source, SourceCount] = field(
        default_factory=lambda: {source: SourceCount() for source in DRAFT_SOURCES}
    )

    @property
    def mean_accepted_tokens(self) -> float:
        """Tokens per decode step: n_decoded / n_steps; 1.0 before the first step."""
        return self.n_decoded / self.n_steps if self.n_steps else 1.0

    @property
    def n_decoded(self) -> int:
        """Tokens that decode steps gave, the end token included: n_steps + n_accepted."""
        return self.n_steps + self.n_accepted

    @property
    def tokens_per_s(self) -> float:
        """Speed of decoding: n_decoded / decode_s.

        Time and tokens are those of the same steps: neither the first token, which the prompt
        gives, nor reading the prompt counts. 0.0 where there was no step.
        """
        return self.n_decoded / self.decode_s if self.decode_s > 0 else 0.0

    @property
    def acceptance(self) -> float:
        """Share of draft tokens that were accepted; 0.0 where none was drafted."""
        return self.n_accepted / self.n_drafted if self.n_drafted else 0.0

    def line(self) -> str:
        """Sum up in one line, for people."""
        return (
            f"{self.tokens_per_s:.0f} tok/s · {self.mean_accepted_tokens:.1f} tokens/step · "
            f"drafted {self.n_drafted}, accepted {self.n_accepted} ({self.acceptance:.0%}) · "
            f"prefill {self.prefill_s:.2f} s"
        ).replace("%)", " %)")

    def as_dict(self) -> dict[str, object]:
        """Return the figures under their public JSON keys."""
        return {
            "draft": self.draft,
            "n_prompt": self.n_prompt,
            "n_reused": self.n_reused,
            "n_generated": self.n_generated,
            "n_steps": self.n_steps,
            "mean_accepted_tokens": self.mean_accepted_tokens,
            "n_drafted": self.n_drafted,
            "n_accepted": self.n_accepted,
            "prefill_s": self.prefill_s,
            "decode_s": self.decode_s,
            "tokens_per_s": self.tokens_per_s,
            "draft_s": self.draft_s,
            "learn_s": self.learn_s,
            "kv_s": self.kv_s,
            "target_s": self.target_s,
            "seed": self.seed,
            "notices": list(self.notices),
            "by_source": {
                source.name.lower(): {"drafted": count.drafted, "accepted": count.accepted}
                for source, count in self.by_source.items()
            },
        }
