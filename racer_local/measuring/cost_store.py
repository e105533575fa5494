"""Keeps measured step costs between runs, so that only the first one has to measure.

The files hold timings of this machine and nothing of any text. They are only a head start: a
missing, stale or damaged one is measured again, and every run goes on learning.
"""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import time
from pathlib import Path
from typing import Any

from racer_local.config import MAX_LEAVES, KvType, ModelConfig
from racer_local.errors import ConfigError
from racer_local.measuring.cost import CostModel
from racer_local.storage.files import cache_folder, write_text

__all__ = ["CostStore"]

logger = logging.getLogger(__name__)

_FRESH_S = 7 * 24 * 3600
_FORMAT = "3"
# Levels, relative to the probe, at which the machine is taken to be itself.
_CALM = (0.7, 1.5)


class CostStore:
    """The saved step costs of one model under given settings."""

    def __init__(self, config: ModelConfig, kv_type: KvType, n_threads: int, runtime: str) -> None:
        """Name the file by all that the costs depend on.

        Args:
            config: model and settings.
            kv_type: element type of the KV cache in use.
            n_threads: threads in use.
            runtime: version of the native library.
        """
        status = config.path.stat()
        facts = (
            _FORMAT,
            runtime,
            platform.node(),
            platform.processor(),
            config.path.name,
            str(status.st_size),
            str(status.st_mtime_ns),
            str(n_threads),
            config.device,
            str(config.n_gpu_layers),
            kv_type,
            str(config.max_nodes),
            str(config.exact),
        )
        name = hashlib.sha256("\0".join(facts).encode()).hexdigest()[:24]
        self._path: Path = cache_folder() / "costs" / f"{name}.json"

    def load(self) -> CostModel | None:
        """Return the saved costs if they are there and fresh."""
        try:
            if time.time() - self._path.stat().st_mtime > _FRESH_S:
                return None
            return CostModel.from_dict(json.loads(self._path.read_text(encoding="utf-8")))
        except (OSError, ValueError, ConfigError) as error:
            logger.debug("no saved costs: %s", error)
            return None

    def load_exact_rows(self) -> int | None:
        """Return how many rows were found to be computed exactly, if that is known and fresh."""
        path = self._path.with_suffix(".exact.json")
        try:
            if time.time() - path.stat().st_mtime > _FRESH_S:
                return None
            n_rows = json.loads(path.read_text(encoding="utf-8"))["exact_rows"]
            is_count = type(n_rows) is int and 1 <= n_rows <= MAX_LEAVES + 1
            return n_rows if is_count else None
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.debug("no saved exact rows: %s", error)
            return None

    def save_exact_rows(self, n_rows: int) -> None:
        """Keep how many rows are computed exactly; a failure is only logged."""
        self._write(self._path.with_suffix(".exact.json"), {"exact_rows": n_rows})

    def save(self, cost: CostModel) -> None:
        """Write the costs; a failure costs the next run a second and is only logged.

        Costs of a disturbed machine are not worth keeping.
        """
        if not _CALM[0] < cost.level < _CALM[1]:
            return
        self._write(self._path, cost.to_dict())

    def _write(self, path: Path, content: dict[str, Any]) -> None:
        try:
            write_text(path, json.dumps(content))
        except OSError as error:
            logger.debug("%s was not saved: %s", path.name, error)
