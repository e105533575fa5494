"""Find all models on this machine, and check what is in them. Layer: files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from racer_local.errors import RacerError
from racer_local.gguf.header import inspect_gguf
from racer_local.gguf.kinds import require_generative
from racer_local.models.stores.base import FoundModel
from racer_local.models.stores.folders import (
    hub_models,
    jan_models,
    llamacpp_models,
    lmstudio_models,
)
from racer_local.models.stores.ollama import ollama_models
from racer_local.models.stores.places import Places, find_places

__all__ = ["checked", "find_models"]


def find_models(places: Places | None = None) -> list[FoundModel]:
    """List what all stores hold; nothing is opened but small files that describe the rest."""
    places = places or find_places()
    stores: list[tuple[list[Path], Callable[[Path], Iterator[FoundModel]]]] = [
        (places.hub, hub_models),
        (places.ollama, ollama_models),
        (places.lmstudio, lmstudio_models),
        (places.llamacpp, llamacpp_models),
        (places.jan, jan_models),
    ]
    found: list[FoundModel] = []
    for roots, models in stores:
        for root in roots:
            found += _read(root, models)
    return found


def _read(root: Path, models: Callable[[Path], Iterator[FoundModel]]) -> list[FoundModel]:
    try:
        return list(models(root))
    except (OSError, ValueError) as error:
        # Whatever a foreign folder has in store, the others still count.
        reason = getattr(error, "strerror", None) or str(error)
        store = models.__name__.removesuffix("_models")
        return [FoundModel(name=f"{store}:{root}", store=store, path=root, problem=reason)]


def checked(model: FoundModel) -> FoundModel:
    """Look at the file's header; return the model with the problem found, if any."""
    if model.problem:
        return model
    try:
        require_generative(inspect_gguf(model.path))
    except RacerError as error:
        return replace(model, problem=str(error))
    return model
