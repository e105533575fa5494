"""Record plain greedy decoding with the model's rows at every position. Layer: above the engine.

A recorded answer is what ``replay`` runs on and what ``warm`` fills a row memory with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from racer_local.bench.contest import BenchModel
from racer_local.bench.runner import write_prompt
from racer_local.bench.suites import Prompt
from racer_local.bench.trace import Record, Trace
from racer_local.config import GenerationConfig, SamplingConfig
from racer_local.errors import TraceError
from racer_local.speculation.drafter import Rows, StepOutcome
from racer_local.speculation.tree import DraftTree, TokenId

__all__ = [
    "ROW_WIDTH",
    "Recorder",
    "batch_for_all_rows",
    "record_answer",
    "record_prompts",
    "trace_of",
]

ROW_WIDTH = 8
# A prefill call returns at most 64 MiB of rows; a batch must be small enough to return all of its.
_MAX_ROWS_BYTES = 64 * 2**20


def batch_for_all_rows(n_vocab: int, at_most: int = 512) -> int:
    """Return a prompt batch size of which every row can be read."""
    return max(1, min(at_most, _MAX_ROWS_BYTES // (4 * max(n_vocab, 1))))


class Recorder:
    """A drafter that proposes nothing and writes down every row it is shown."""

    def __init__(self) -> None:
        """Start without a text."""
        self.begin()

    @property
    def row_width(self) -> int:
        """Want the eight likeliest tokens of each row."""
        return ROW_WIDTH

    def begin(self) -> None:
        """Forget the text."""
        self._length = 0
        self._last: TokenId = -1
        self._places: list[NDArray[np.int32]] = []
        self._ids: list[NDArray[np.int32]] = []
        self._probs: list[NDArray[np.float32]] = []

    def feed(self, tokens: Sequence[TokenId]) -> None:
        """Remember the last token, the root of the next tree."""
        self._length += len(tokens)
        if len(tokens):
            self._last = int(tokens[-1])

    def wanted_rows(self, tokens: Sequence[TokenId]) -> NDArray[np.int32]:
        """Want all rows."""
        return np.arange(len(tokens), dtype=np.int32)

    def learn(self, rows: Rows) -> None:
        """Write rows of the prompt down."""
        self._keep(rows.index, rows)

    def draft(self, budget: int) -> DraftTree:
        """Return the root alone."""
        return DraftTree(self._last)

    def accept(self, outcome: StepOutcome) -> None:
        """Write down the row of the root, which is the newest token of the text."""
        if outcome.rows is not None:
            self._keep(np.array([self._length - 1], np.int32), outcome.rows)
        self._last = outcome.next_token
        self._length += 1

    def _keep(self, places: NDArray[np.int32], rows: Rows) -> None:
        # The rows may be views of memory that the next decode overwrites.
        self._places.append(np.array(places, np.int32))
        self._ids.append(np.array(rows.ids, np.int32))
        self._probs.append(np.array(rows.probs, np.float32))

    def size_bytes(self) -> int:
        """Estimate the memory held."""
        return sum(part.nbytes for part in (*self._places, *self._ids, *self._probs))

    def rows(self, n: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return ids and probabilities of the first ``n`` positions of the text.

        Raises:
            TraceError: the row of one of them was never shown.
        """
        ids = np.zeros((n, ROW_WIDTH), np.int32)
        probs = np.zeros((n, ROW_WIDTH), np.float32)
        is_known = np.zeros(n, np.bool_)
        for places, some_ids, some_probs in zip(self._places, self._ids, self._probs, strict=True):
            fits = places < n
            width = some_ids.shape[1]
            ids[places[fits], :width] = some_ids[fits]
            probs[places[fits], :width] = some_probs[fits]
            is_known[places[fits]] = True
        if not is_known.all():
            missing = int(np.flatnonzero(~is_known)[0])
            raise TraceError(
                f"the row of position {missing} was not read; open the model with a smaller batch"
            )
        return ids, probs


def record_answer(
    model: BenchModel, category: str, prompt: Sequence[TokenId], max_tokens: int
) -> tuple[Record, str]:
    """Answer a prompt by plain greedy decoding, from an empty cache, and keep every row.

    The model has to be open with trees of at least one node and a batch as small as
    ``batch_for_all_rows`` says.

    Returns:
        What was recorded, and the answer's text.

    Raises:
        TraceError: rows are missing, because the batch was larger.
    """
    recorder = Recorder()
    # A budget of 0 would turn the drafter off, and it would be shown nothing.
    model.engine.use(recorder, budget=1)
    model.engine.forget()
    # One more than is kept: the row of a token is known once the token has been decoded.
    limits = GenerationConfig(max_tokens=max_tokens + 1)
    stream = model.stream(prompt, SamplingConfig(temperature=0.0), limits)
    text = ""
    try:
        while next(stream, None) is not None:
            if len(stream.tokens) <= max_tokens:
                text = stream.text
    finally:
        stream.close()
    answer = stream.tokens[:max_tokens]
    # Without the extra token, characters that were held back have come by the end.
    text = stream.text if len(stream.tokens) <= max_tokens else text
    tokens = np.array([*prompt, *answer], np.int32)
    ids, probs = recorder.rows(len(tokens))
    record = Record(
        category=category,
        n_prompt=len(prompt),
        tokens=tokens,
        topk_ids=ids,
        topk_probs=probs,
    )
    return record, text


def record_prompts(
    model: BenchModel,
    prompts: Sequence[Prompt],
    *,
    as_chat: bool,
    max_tokens: int,
    n_ctx: int,
) -> Iterator[Record]:
    """Record every turn of every prompt; those that do not fit the context are left out."""
    for prompt in prompts:
        heard: list[str] = []
        for turn in range(len(prompt.turns)):
            tokens = write_prompt(model, prompt.turns[: turn + 1], heard, as_chat=as_chat)
            if len(tokens) + max_tokens + 1 > n_ctx:
                break
            record, text = record_answer(model, prompt.category, tokens, max_tokens)
            heard.append(text)
            yield record


def trace_of(records: Sequence[Record]) -> Trace:
    """Put records into one trace.

    Raises:
        TraceError: there are none.
    """
    if not records:
        raise TraceError("nothing was recorded")
    return Trace(
        tokens=np.concatenate([record.tokens for record in records]),
        topk_ids=np.concatenate([record.topk_ids for record in records]),
        topk_probs=np.concatenate([record.topk_probs for record in records]).astype(np.float16),
        offsets=np.cumsum([0, *(len(record.tokens) for record in records)], dtype=np.int64),
        n_prompt=np.array([record.n_prompt for record in records], np.int32),
        category=np.array([record.category for record in records]),
    )
