"""Fill a row memory from bundled prompts: what `racer-local warm` does. Layer: above the engine.

Only the prompts that are kept for it are read, never a user's text, and never a prompt that the
benchmark measures.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from racer_local.bench.contest import BenchModel
from racer_local.bench.record import record_answer
from racer_local.bench.runner import write_prompt
from racer_local.bench.suites import warm_prompts
from racer_local.drafting.auto.row_memory import RowMemory

__all__ = ["fill_row_memory"]


def fill_row_memory(
    model: BenchModel,
    memory: RowMemory,
    *,
    as_chat: bool,
    n_ctx: int,
    max_tokens: int,
    seconds: float,
    on_progress: Callable[[float, float], None] | None = None,
    clock: Callable[[], float] = monotonic,
) -> int:
    """Answer prompts of every kind in turn until the time is up; at least one is answered.

    An exception, such as KeyboardInterrupt, leaves the rows of all finished answers.

    Args:
        model: open with trees of at least one node and ``batch_for_all_rows``.
        memory: is filled.
        as_chat: ask through the model's chat template.
        n_ctx: tokens the context holds; prompts that do not fit are left out.
        max_tokens: most tokens of an answer.
        seconds: how long to go on.
        on_progress: called with (seconds gone, seconds in all).
        clock: seconds from any start.

    Returns:
        How many prompts were answered.
    """
    started = clock()
    n_answered = 0
    for prompt in warm_prompts():
        gone = clock() - started
        if n_answered and gone >= seconds:
            break
        if on_progress is not None:
            on_progress(gone, seconds)
        tokens = write_prompt(model, prompt.turns[:1], [], as_chat=as_chat)
        if len(tokens) + max_tokens + 1 > n_ctx:
            continue
        record, _ = record_answer(model, prompt.category, tokens, max_tokens)
        memory.fill(record.tokens, record.topk_ids, record.topk_probs)
        n_answered += 1
    return n_answered
