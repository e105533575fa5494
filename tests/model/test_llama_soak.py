"""A short run of the soak test."""

from __future__ import annotations

from pathlib import Path

import pytest
from soak_llama import soak


@pytest.mark.slow
def test_memory_stays_flat(smol_path: Path) -> None:
    report = soak(str(smol_path), 100, 8)
    assert report.grown_mib < 30
