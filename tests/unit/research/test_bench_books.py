"""Prompts about a repository are made of its real files, the same ones every time."""

from __future__ import annotations

from pathlib import Path

import click

from racer_local.research.bench_books import repository_prompts

ROOT = Path(click.__file__).parents[1]


def test_prompts_are_made_of_functions_of_different_files() -> None:
    prompts = repository_prompts(ROOT, ["click", "hypothesis"], 30)
    assert prompts == repository_prompts(ROOT, ["click", "hypothesis"], 30)
    assert [p.category for p in prompts[:3]] == ["complete", "quote", "explain"]
    assert len({p.text for p in prompts}) == len(prompts) == 30
    sources = [
        file.read_text("utf-8")
        for name in ("click", "hypothesis")
        for file in (ROOT / name).rglob("*.py")
    ]
    for prompt in prompts:
        assert prompt.is_chat == (prompt.category != "complete")
        code = prompt.text
        if prompt.is_chat:
            assert ".py" in code.splitlines()[0]
            code = code.split("```python\n")[1].split("```")[0]
        assert code
        if "```" not in prompt.text or prompt.text.count("```") == 2:
            assert any(code in source for source in sources)
    assert repository_prompts(ROOT, ["no such package"], 3) == []
