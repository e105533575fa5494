"""Drafters: what proposes tokens. Pure code; nothing here imports llama_cpp."""

from __future__ import annotations

from racer_local.config import DraftConfig
from racer_local.cost import CostModel
from racer_local.drafting.auto import AutoDrafter
from racer_local.drafting.base import Drafter, Rows, StepOutcome
from racer_local.drafting.estimate import Estimator
from racer_local.drafting.last_logit import LastLogitDrafter
from racer_local.drafting.off import OffDrafter
from racer_local.drafting.phrase_shelf import Shelf
from racer_local.drafting.pld import PromptLookupDrafter
from racer_local.drafting.racer import RacerDrafter
from racer_local.drafting.row_memory import RowMemory

__all__ = ["Drafter", "Rows", "StepOutcome", "make_drafter"]


def make_drafter(
    config: DraftConfig,
    cost: CostModel | None = None,
    row_memory: RowMemory | None = None,
    estimator: Estimator | None = None,
    books: Shelf | None = None,
) -> Drafter:
    """Make the drafter that the settings ask for, with an empty text.

    Args:
        config: which one, and its sizes.
        cost: what a decode step takes; only ``auto`` looks at it.
        row_memory: rows of other texts; only for ``auto``.
        estimator: acceptance estimates to go on with; only for ``auto``.
        books: phrase books; only for ``auto``.
    """
    if config.mode == "auto":
        return AutoDrafter(config, cost, row_memory, estimator, books)
    if config.mode == "off":
        return OffDrafter()
    if config.mode == "pld":
        return PromptLookupDrafter(config)
    if config.mode == "last-logit":
        return LastLogitDrafter(config)
    return RacerDrafter(
        config, retrieval=config.mode != "logits", logits=config.mode != "retrieval"
    )
