"""Fit the shipped weights of the estimates to recorded text. Layer: pure.

    python -m racer_local.research.fit_priors TRACE.npz... > prior_weights.py

Examples are all places of the recorded answers, each seen from up to three tokens ahead: one
that lies d tokens beyond the root of a draft has the rows and the text up to that root only, as
when it is drafted. The fit is the same online rule that goes on learning later, with a step that
falls per cell (AdaGrad) and some weight decay, a few times over all examples in a fixed random
order. The cells of the row memory are fitted last and alone, from places that see a memory with
the rows of other records: fitted together, those examples spoil the weights for drafting without
a memory (1.338 to 1.326 on a steep curve).

How well it carries over, simulated speedup over 54 recorded answers of a 135M model. *Held out*:
two halves, each drafted with weights fitted to the other; *memory*: rows of the other half too;
*none*: all weights start at 0; *shipped*: the weights in the package, which know this text.

| curve | held out | with memory | none | shipped |
| --- | --- | --- | --- | --- |
| smollm2_q4_0 | 1.34 | 1.34 | 1.30 | 1.36 |
| llama_1b_q4_k_m | 1.28 | 1.28 | 1.26 | 1.29 |
| smollm2_q4_1 | 1.21 | 1.21 | 1.21 | 1.23 |
| gpu_flat | 2.58 | 2.71 | 2.54 | 2.64 |

Differences below 0.01 (0.02 on the flat curve) are noise: settings that should not matter move
the figures as much.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from math import exp, sqrt
from typing import NamedTuple

import numpy as np

from racer_local.bench.trace import Record, read_trace
from racer_local.books.book_set import BookSet
from racer_local.config import DraftConfig
from racer_local.drafting.auto.drafter import AutoDrafter
from racer_local.drafting.auto.estimate import MEMORY, N_CELLS, Cells, Estimator
from racer_local.drafting.auto.row_memory import RowMemory
from racer_local.speculation.drafter import Rows, StepOutcome
from racer_local.speculation.tree import ROOT, DraftTree

__all__ = ["Example", "examples", "fit", "fit_records", "main", "memory_of", "write_weights"]

_DEPTHS = 4
_EPOCHS = 4
_RATE = 0.1
# More (3e-2) gains 1 % on a flat curve and leaves estimates around 0.4 too low by 0.06.
_DECAY = 3e-3
_N_MEMORY_PARTS = 4
_NEGLIGIBLE = 1e-4


class Example(NamedTuple):
    """The candidates of one place, and which of them came (-1: none)."""

    cells: list[Cells]
    taken: int


def memory_of(records: Sequence[Record]) -> RowMemory:
    """Fill a row memory from records."""
    memory = RowMemory("recorded")
    for record in records:
        memory.fill(record.tokens, record.topk_ids, record.topk_probs)
    return memory


class _Recorder(AutoDrafter):
    """Looks at places of a known text instead of drafting."""

    __slots__ = ()

    def look(self, coming: Sequence[int]) -> Iterator[Example]:
        """Describe the places ahead, given what really comes."""
        place = self._root_place()
        for depth, token in enumerate(coming):
            if depth:
                place = self._below(place, coming[depth - 1])
            tokens = place.candidates.tokens
            taken = tokens.index(token) if token in tokens else -1
            yield Example(place.candidates.cells, taken)


def examples(
    record: Record,
    memory: RowMemory | None,
    weights: Sequence[float],
    books: BookSet | None = None,
) -> list[Example]:
    """Collect the examples of one record; ``weights`` say which first guesses were right."""
    estimator = Estimator(weights[:N_CELLS], rate=0.0)
    drafter = _Recorder(DraftConfig(mode="auto"), None, memory, estimator, books)
    tokens = record.tokens.tolist()
    start = record.n_prompt
    drafter.feed(tokens[:start])
    index = np.arange(start, dtype=np.int32)
    drafter.learn(Rows(index, record.topk_ids[:start], record.topk_probs[:start]))
    drafter.feed(tokens[start : start + 1])
    found: list[Example] = []
    for position in range(start, len(tokens) - 1):
        coming = tokens[position + 1 : position + 1 + _DEPTHS]
        found.extend(drafter.look(coming))
        here = slice(position, position + 1)
        row = Rows(np.zeros(1, np.int32), record.topk_ids[here], record.topk_probs[here])
        drafter.accept(StepOutcome(DraftTree(tokens[position]), [ROOT], coming[0], row))
    return found


def fit(
    found: list[Example], start: Sequence[float] | None = None, first_cell: int = 0
) -> list[float]:
    """Fit the weights of the cells from ``first_cell`` on to examples, the others being given."""
    weights = [0.0] * N_CELLS if start is None else list(start)
    squares = [1.0] * len(weights)
    order = list(range(len(found)))
    shuffle = random.Random(0).shuffle
    for _ in range(_EPOCHS):
        shuffle(order)
        for number in order:
            cells, taken = found[number]
            scores = [exp(min(50.0, sum([weights[c] for c in each]))) for each in cells]
            total = 1.0 + sum(scores)
            for i, each in enumerate(cells):
                gradient = (1.0 if i == taken else 0.0) - scores[i] / total
                if abs(gradient) < _NEGLIGIBLE:
                    continue
                for cell in each:
                    if cell >= first_cell:
                        step = gradient - _DECAY * weights[cell]
                        squares[cell] += step * step
                        weights[cell] += _RATE * step / sqrt(squares[cell])
    return weights


def fit_records(records: Sequence[Record]) -> list[float]:
    """Fit weights to records: once to find the first guesses, again, then those of the memory."""
    weights = [0.0] * N_CELLS
    for _ in range(2):
        weights = fit([each for r in records for each in examples(r, None, weights)])
    found: list[Example] = []
    for part in range(_N_MEMORY_PARTS):
        others = [r for i, r in enumerate(records) if i % _N_MEMORY_PARTS != part]
        memory = memory_of(others)
        for record in records[part::_N_MEMORY_PARTS]:
            found.extend(examples(record, memory, weights))
    return fit(found, weights, MEMORY)


def main(paths: Sequence[str]) -> None:
    """Write ``prior_weights.py`` to stdout."""
    write_weights(
        fit_records([record for path in paths for record in read_trace(path)]),
        "PRIOR_CENTI_WEIGHTS",
        "Weights that acceptance estimates start from, in hundredths; see ``fit_priors``.",
    )


def write_weights(weights: Sequence[float], name: str, what: str) -> None:
    """Write a module of weights to stdout."""
    out = sys.stdout
    out.write(
        f'"""{what}\n\n'
        "Written by a program: fit anew instead of changing them. They hold no text.\n"
        f'"""\n\nfrom __future__ import annotations\n\n__all__ = ["{name}"]\n\n'
        f"# fmt: off\n{name}: tuple[int, ...] = (\n"
    )
    line = "   "
    for weight in weights:
        word = f" {round(100 * weight)},"
        if len(line) + len(word) > 100:
            out.write(line + "\n")
            line = "   "
        line += word
    out.write(line + "\n)\n# fmt: on\n")


if __name__ == "__main__":
    main(sys.argv[1:])
