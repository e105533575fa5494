"""Where row memories are kept: one file per model in the user's cache folder. Layer: files.

``racer-local warm`` writes them, from bundled public prompts only; ``auto`` reads them.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from racer_local.drafting.auto.row_memory import RowMemory
from racer_local.gguf.fingerprint import fingerprint
from racer_local.storage.files import cache_folder

__all__ = ["load_row_memory", "row_memory_path", "save_row_memory"]

logger = logging.getLogger(__name__)


def _folder() -> Path:
    return cache_folder() / "row-memory"


def row_memory_path(mark: str) -> Path:
    """Return the file that holds the rows of the model with this fingerprint."""
    return _folder() / f"{mark}.npz"


def save_row_memory(memory: RowMemory) -> Path:
    """Keep the rows of a model, in place of those kept before; returns the file.

    Raises:
        ConfigError: the file or its folder cannot be written.
    """
    path = row_memory_path(memory.fingerprint)
    memory.save(path)
    return path


def load_row_memory(model_path: str | os.PathLike[str]) -> RowMemory | None:
    """Return the rows kept for a model; None where there are none, or none that can be used.

    Never raises: a damaged file costs speed, not the answer.
    """
    try:
        # Most machines have none: then not even the model's header has to be read.
        if not _folder().is_dir():
            return None
        mark = fingerprint(model_path)
        path = row_memory_path(mark)
        if not path.is_file():
            return None
        return RowMemory.load(path, mark)
    except Exception as error:  # noqa: BLE001 - see above
        logger.warning("the row memory of this model is not used: %s", error)
        return None
