"""Which models the picker offers: the models folder, the catalog, other programs' stores."""

from __future__ import annotations

from racer_local.errors import RacerError
from racer_local.models.catalog import load_catalog
from racer_local.models.store import models_folder
from racer_local.models.stores.base import FoundModel, list_models
from racer_local.models.stores.find import checked, find_models
from racer_local.wording import quoted

__all__ = ["model_choices"]

_MAX_REASON = 80


def model_choices() -> list[tuple[str, str]]:
    """List (what is shown, what is asked for); what cannot be used comes last, with the reason."""
    mine = [
        FoundModel(
            name=listing.path.name,
            store="",
            path=listing.path,
            size_bytes=listing.size_bytes,
            problem=listing.problem,
        )
        for listing in list_models(models_folder(), 0)
    ]
    found = [checked(model) for model in (*mine, *find_models())]
    good = [(_label(model), model.name) for model in found if not model.problem]
    bad = [(_label(model), model.name) for model in found if model.problem]
    return [*good, *_to_fetch({model.path.name for model in mine}), *bad]


def _to_fetch(names: set[str]) -> list[tuple[str, str]]:
    try:
        models = load_catalog().models
    except RacerError:
        return []
    return [
        (f"{name} (fetched first, {entry.size_bytes / 1e6:,.0f} MB)", name)
        for name, entry in models.items()
        if entry.file not in names
    ]


def _label(model: FoundModel) -> str:
    if model.problem:
        # Messages name the file, which the label does already.
        reason = model.problem.replace(quoted(str(model.path)), "it")
        reason = reason if len(reason) <= _MAX_REASON else f"{reason[:_MAX_REASON]}…"
        return f"{model.name} (cannot be used: {reason})"
    return f"{model.name} ({model.size_bytes / 1e6:,.0f} MB)" if model.store else model.name
