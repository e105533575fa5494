"""Models that Ollama keeps: manifests that name blobs by their digest. Layer: files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from racer_local.models.stores.base import FoundModel, read_small

__all__ = ["ollama_models"]

_HOST, _NAMESPACE, _TAG = "registry.ollama.ai", "library", "latest"
_DIGEST = re.compile(r"sha256[:-]([0-9a-fA-F]{64})\Z")
_MODEL = "application/vnd.ollama.image.model"
_TENSOR = "application/vnd.ollama.image.tensor"
_MAX_MANIFESTS = 2000


def ollama_models(root: Path) -> Iterator[FoundModel]:
    """Yield what is in one Ollama store; entries that cannot be used say why."""
    manifests = root / "manifests"
    n_seen = 0
    for folder, problem in _model_folders(manifests):
        if problem:
            yield FoundModel(
                name=f"ollama:{folder.name}", store="ollama", path=folder, problem=problem
            )
            continue
        names, problem = _names(folder)
        if problem:
            yield FoundModel(
                name=f"ollama:{folder.name}", store="ollama", path=folder, problem=problem
            )
        for tag in names:
            n_seen += 1
            if n_seen > _MAX_MANIFESTS:
                return
            if (folder / tag).is_file():
                yield _model(root, folder.relative_to(manifests).parts, tag)


def _names(folder: Path) -> tuple[list[str], str]:
    try:
        return sorted(os.listdir(folder)), ""
    except (FileNotFoundError, NotADirectoryError):
        return [], ""
    except OSError as error:
        denied = isinstance(error, PermissionError)
        return [], "permission denied" if denied else error.strerror or str(error)


def _model_folders(manifests: Path) -> Iterator[tuple[Path, str]]:
    """Yield the folders three levels down: host, namespace, model."""
    level = [manifests]
    for _ in range(3):
        below: list[Path] = []
        for folder in level:
            names, problem = _names(folder)
            if problem:
                yield folder, problem
            below += [folder / name for name in names if (folder / name).is_dir()]
        level = below[:_MAX_MANIFESTS]
    for folder in level:
        yield folder, ""


def _model(root: Path, parts: tuple[str, ...], tag: str) -> FoundModel:
    host, namespace, model = parts
    shown = model if namespace == _NAMESPACE else f"{namespace}/{model}"
    shown = shown if host == _HOST else f"{host}/{namespace}/{model}"
    name = f"ollama:{shown}:{tag}"
    aliases = [f"{shown}:{tag}", shown, model]
    if tag == _TAG:
        aliases.append(f"ollama:{shown}")
    manifest = root / "manifests" / host / namespace / model / tag
    path, problem = manifest, ""
    size = 0
    try:
        path = _blob(root, json.loads(read_small(manifest)))
        size = path.stat().st_size
        if not os.access(path, os.R_OK):
            problem = "permission denied"
    except FileNotFoundError:
        problem = "its file is gone, or was not downloaded to the end"
    except PermissionError:
        problem = "permission denied"
    except RecursionError:
        problem = "its manifest cannot be read"
    except (OSError, ValueError) as error:
        problem = f"its manifest cannot be used: {getattr(error, 'strerror', None) or error}"
    return FoundModel(
        name=name,
        store="ollama",
        path=path,
        size_bytes=size,
        aliases=tuple(alias.lower() for alias in aliases),
        problem=problem,
    )


def _blob(root: Path, manifest: Any) -> Path:
    """Return the file that a manifest names.

    Raises:
        ValueError: it names none that could be loaded.
    """
    layers = manifest.get("layers") if isinstance(manifest, dict) else None
    if not isinstance(layers, list):
        raise ValueError("it lists no layers")
    kinds = [layer.get("mediaType") if isinstance(layer, dict) else None for layer in layers]
    if _MODEL not in kinds:
        raise ValueError(
            "its weights are safetensors, which llama.cpp does not load"
            if _TENSOR in kinds
            else "it names no model"
        )
    digest = layers[kinds.index(_MODEL)].get("digest")
    match = _DIGEST.match(digest) if isinstance(digest, str) else None
    if match is None:
        raise ValueError("its digest is not one")
    return root / "blobs" / f"sha256-{match[1].lower()}"
