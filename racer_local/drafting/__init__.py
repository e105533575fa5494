"""Drafters: what proposes tokens. Pure code; nothing here imports llama_cpp."""

from __future__ import annotations

from racer_local.config import DraftConfig
from racer_local.drafting.base import Drafter, Rows, StepOutcome
from racer_local.drafting.last_logit import LastLogitDrafter
from racer_local.drafting.off import OffDrafter
from racer_local.drafting.pld import PromptLookupDrafter
from racer_local.drafting.racer import RacerDrafter

__all__ = ["Drafter", "Rows", "StepOutcome", "make_drafter"]


def make_drafter(config: DraftConfig) -> Drafter:
    """Make the drafter that the settings ask for, with an empty text."""
    if config.mode == "off":
        return OffDrafter()
    if config.mode == "pld":
        return PromptLookupDrafter(config)
    if config.mode == "last-logit":
        return LastLogitDrafter(config)
    return RacerDrafter(
        config, retrieval=config.mode != "logits", logits=config.mode != "retrieval"
    )
