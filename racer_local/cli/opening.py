"""Opens a model for a command, with its progress on stderr."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from racer_local.cli.progress import Progress
from racer_local.config import DraftConfig, ModelConfig

if TYPE_CHECKING:
    from racer_local.decoding.session import Session

__all__ = ["open_session"]


def open_session(config: ModelConfig, draft: DraftConfig, **more: Any) -> Session:
    """Open a model; ``more`` are arguments of ``Session``.

    Raises:
        KeyboardInterrupt: Ctrl-C while it was loaded; nothing of it is left.
        RacerError: it cannot be opened.
    """
    from racer_local.decoding.session import Session

    with Progress("loading the model", unit="%", scale=100) as progress:
        return Session(config, draft, lambda share: progress.show(share, 1.0), **more)
