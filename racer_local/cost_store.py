"""Keeps measured step costs between runs, so that only the first one has to measure.

The files hold timings of this machine and nothing of any text. They are only a head start: a
missing, stale or damaged one is measured again, and every run goes on learning.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import platform
import time
from pathlib import Path

import platformdirs

from racer_local.config import ModelConfig
from racer_local.cost import CostModel
from racer_local.errors import ConfigError

__all__ = ["CostStore"]

logger = logging.getLogger(__name__)

_FRESH_S = 7 * 24 * 3600
_FORMAT = "2"
# Levels, relative to the probe, at which the machine is taken to be itself.
_CALM = (0.7, 1.5)


class CostStore:
    """The saved step costs of one model under given settings."""

    def __init__(self, config: ModelConfig, n_threads: int, runtime: str) -> None:
        """Name the file by all that the costs depend on.

        Args:
            config: model and settings.
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
            config.kv_type,
            str(config.max_nodes),
        )
        name = hashlib.sha256("\0".join(facts).encode()).hexdigest()[:24]
        folder = platformdirs.user_cache_path("racer-local", appauthor=False) / "costs"
        self._path: Path = folder / f"{name}.json"

    def load(self) -> CostModel | None:
        """Return the saved costs if they are there and fresh."""
        try:
            if time.time() - self._path.stat().st_mtime > _FRESH_S:
                return None
            return CostModel.from_dict(json.loads(self._path.read_text(encoding="utf-8")))
        except (OSError, ValueError, ConfigError) as error:
            logger.debug("no saved costs: %s", error)
            return None

    def save(self, cost: CostModel) -> None:
        """Write the costs; a failure costs the next run a second and is only logged.

        Costs of a disturbed machine are not worth keeping.
        """
        if not _CALM[0] < cost.level < _CALM[1]:
            return
        draft = self._path.with_suffix(f".{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(json.dumps(cost.to_dict()), encoding="utf-8")
            os.replace(draft, self._path)
        except OSError as error:
            logger.debug("costs were not saved: %s", error)
            with contextlib.suppress(OSError):
                draft.unlink()
