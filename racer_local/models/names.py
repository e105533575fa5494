"""One grammar for the names of models that are on this machine. Layer: files.

    org/repo            a repository, in whichever store; :QUANT chooses the file
    ollama:name[:tag]   as Ollama calls it; lmstudio:, llamacpp: and jan: likewise
    short name          file, repository or Ollama name, or the beginning of one, if it is unique

Paths and the catalog come before all of this, in ``model_store``.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from racer_local.errors import ModelLoadError
from racer_local.models.catalog import Catalog, ModelEntry
from racer_local.models.stores.base import FoundModel, quant_of
from racer_local.models.stores.find import find_models
from racer_local.wording import quoted

__all__ = [
    "QUANT_ORDER",
    "best_quant",
    "find_installed",
    "find_pulled",
    "match_name",
    "nothing_fits",
]

# Which file of a repository is taken where none was named.
QUANT_ORDER = ("Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0", "Q5_K_M", "Q5_K_S", "Q6_K", "Q8_0", "Q3_K_M")
_N_SHOWN = 6


def best_quant(quants: Iterable[str]) -> str | None:
    """Choose from several quantizations the one most people want; None where none is known."""
    known = set(quants)
    return next((quant for quant in QUANT_ORDER if quant in known), None)


def find_installed(text: str, models: Sequence[FoundModel]) -> Path | None:
    """Return the file of a model that some program keeps on this machine, or None.

    Raises:
        ModelLoadError: there are several of this name, or it cannot be used.
    """
    matches = match_name(text, models)
    if not matches:
        return None
    if len(matches) > 1:
        names = sorted(model.name for model in matches)
        more = ", ..." if len(names) > _N_SHOWN else ""
        raise ModelLoadError(
            f"{quoted(text)} could be any of {', '.join(map(quoted, names[:_N_SHOWN]))}{more}; "
            "give one of these names, or a path"
        )
    [model] = matches
    if model.problem:
        raise ModelLoadError(f"{quoted(model.name)} cannot be used: {model.problem}")
    return model.path


def find_pulled(entry: ModelEntry) -> Path:
    """Return the file of a catalog entry that lives on the hub.

    Raises:
        ModelLoadError: it was not fetched yet; with the command that does.
    """
    for model in match_name(f"{entry.repo}:{entry.quant}", find_models()):
        if not model.problem:
            return model.path
    raise ModelLoadError(
        f"{entry.name} is not on this machine; fetch it with: racer-local models pull "
        f"{entry.name} (about {entry.size_bytes / 1e9:.1f} GB)"
    )


def match_name(text: str, models: Sequence[FoundModel]) -> list[FoundModel]:
    """Return the models that a name stands for: one, or several where it does not decide.

    Copies of one file in several stores count once, and a usable model before a broken one.
    """
    asked = text.strip().lower()
    exact = [model for model in models if model.name.lower() == asked]
    by_alias = [model for model in models if asked in model.aliases]
    matches = exact or by_alias
    if not matches and len(asked) > 1:
        matches = [
            model
            for model in models
            if any(name.startswith(asked) for name in (model.name.lower(), *model.aliases))
        ]
    return _decide(matches)


def _decide(matches: list[FoundModel]) -> list[FoundModel]:
    usable = [model for model in matches if not model.problem]
    matches = _distinct(usable or matches)
    if len(matches) > 1:
        repos = {_repo_of(model) for model in matches}
        quants = {quant_of(model.path.name) or _tag(model): model for model in matches}
        best = best_quant(quants) if len(repos) == 1 else None
        latest = [model for model in matches if model.name.endswith(":latest")]
        if best is not None:
            return [quants[best]]
        if len(repos) == 1 and len(latest) == 1:
            return latest
    return matches


def _repo_of(model: FoundModel) -> str:
    if model.store == "ollama":
        return model.name.rpartition(":")[0]
    return next((alias for alias in model.aliases if "/" in alias), model.name)


def _tag(model: FoundModel) -> str:
    return model.name.rpartition(":")[2]


def _distinct(models: list[FoundModel]) -> list[FoundModel]:
    seen: dict[object, FoundModel] = {}
    for model in models:
        same_file: object = os.path.realpath(model.path)
        if not model.problem:
            # The same file downloaded by two programs; Ollama's have no names of their own.
            name = model.path.name if model.store != "ollama" else same_file
            same_file = (name, model.size_bytes)
        seen.setdefault(same_file, model)
    return list(seen.values())


def nothing_fits(text: str, models: Sequence[FoundModel], catalog: Catalog) -> str:
    """Say that there is no such model, and which name may have been meant."""
    asked = text.strip().lower()
    names = [name for model in models for name in (model.name, *model.aliases)]
    # Prefixes such as ollama: alone make names look alike.
    cutoff = 0.8 if ":" in asked else 0.6
    near = difflib.get_close_matches(asked[:200], [*catalog.models, *names], n=3, cutoff=cutoff)
    starting = [name for name in catalog.models if len(asked) > 1 and name.startswith(asked)]
    if starting or near:
        advice = f"did you mean {' or '.join(dict.fromkeys([*starting[:3], *near]))}?"
    elif asked.startswith("ollama:"):
        advice = "'racer-local models find' lists what Ollama has here"
    elif asked.count("/") == 1:
        advice = f"fetch it with: racer-local models pull {text.strip()[:120]}"
    else:
        known = ", ".join(list(catalog.models)[:_N_SHOWN])
        advice = f"known names: {known}; 'racer-local models list' shows all"
    return f"no model named {quoted(text)}; {advice}"
