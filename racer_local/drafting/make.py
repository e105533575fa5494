"""Makes the drafter that the settings ask for. Layer: pure."""

from __future__ import annotations

from racer_local.books.book_set import BookSet
from racer_local.config import DraftConfig
from racer_local.drafting.auto.drafter import AutoDrafter
from racer_local.drafting.auto.estimate import Estimator
from racer_local.drafting.auto.row_memory import RowMemory
from racer_local.drafting.off import OffDrafter
from racer_local.drafting.pld import PromptLookupDrafter
from racer_local.drafting.racer.drafter import RacerDrafter
from racer_local.drafting.racer.last_logit import LastLogitDrafter
from racer_local.measuring.cost import CostModel
from racer_local.speculation.drafter import Drafter

__all__ = ["make_drafter"]


def make_drafter(
    config: DraftConfig,
    cost: CostModel | None = None,
    row_memory: RowMemory | None = None,
    estimator: Estimator | None = None,
    books: BookSet | None = None,
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
