"""Every Python example of ``docs/embedding.md`` runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).parents[2] / "docs" / "embedding.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.S | re.M)
WRITTEN_PATH = "models/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_runs(example: str, smol_path: Path) -> None:
    assert WRITTEN_PATH in example
    code = example.replace(WRITTEN_PATH, smol_path.resolve().as_posix())
    done = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", code],
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        cwd=DOCUMENT.parents[1],
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()
