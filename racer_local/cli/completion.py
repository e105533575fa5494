"""What a shell may offer for ``--model``: names of the catalog and of models on this machine."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

__all__ = ["complete_model"]


def complete_model(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Offer model names that begin like this, and files."""
    from racer_local.errors import RacerError
    from racer_local.models.catalog import load_catalog
    from racer_local.models.stores.find import find_models

    start = incomplete.lower()
    try:
        names = list(load_catalog().models)
    except RacerError:
        names = []
    names += [model.name for model in find_models() if not model.problem]
    items = [CompletionItem(name) for name in names if name.lower().startswith(start)]
    return [*items, CompletionItem(incomplete, type="file")]
