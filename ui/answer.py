"""One running or finished answer, as the page looks at it. Layer: pure."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from racer_local.speculation.stats import Stats
from racer_local.speculation.tree import Source

__all__ = ["LiveAnswer", "Piece", "StepView"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that one token completed.

    Attributes:
        text: maybe '' (half a character).
        source: who proposed the token.
        step: the decode step it came from; 0 is the prompt's own.
    """

    text: str
    source: Source
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """The draft tree of one decode step, as text; node 0 is the root.

    Attributes:
        number: of the step, from 1.
        texts: token text per node.
        parents: parent per node, -1 for the root.
        sources: who proposed each node.
        probs: the drafter's estimate for the path down to each node.
        accepted: the accepted path, the root included.
        next_text: what the model said after it.
    """

    number: int
    texts: list[str]
    parents: list[int]
    sources: list[Source]
    probs: list[float]
    accepted: list[int]
    next_text: str


@dataclass(slots=True)
class LiveAnswer:
    """Filled by the thread that computes; others only look.

    Attributes:
        pieces: the text so far.
        steps: draft trees; complete at the end only.
        stats: counters; None before it starts.
        prefill: (tokens read, tokens to read) of the prompt.
        finish_reason: None while it runs.
        error: why it failed, for the user; '' if it did not.
        done: set at the end, whatever it was.
    """

    pieces: list[Piece] = field(default_factory=list)
    steps: list[StepView] = field(default_factory=list)
    stats: Stats | None = None
    prefill: tuple[int, int] = (0, 0)
    finish_reason: str | None = None
    error: str = ""
    done: threading.Event = field(default_factory=threading.Event)

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(piece.text for piece in self.pieces)

    @property
    def n_tokens(self) -> int:
        """Tokens in the context: the prompt's and the answer's."""
        return self.stats.n_prompt + self.stats.n_generated if self.stats is not None else 0

    def tokens_per_step(self) -> list[int]:
        """Count the tokens that each decode step gave, in order."""
        counts: list[int] = []
        for piece in list(self.pieces):
            if piece.step:
                counts.extend([0] * (piece.step - len(counts)))
                counts[piece.step - 1] += 1
        return counts
