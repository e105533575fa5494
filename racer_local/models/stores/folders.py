"""Models in plain folders and in the Hugging Face cache. Layer: files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from racer_local.models.stores.base import FoundModel, Listing, list_models, quant_of, read_small

__all__ = ["hub_models", "jan_models", "llamacpp_models", "lmstudio_models"]

_COMMIT = re.compile(r"[0-9A-Za-z._-]{1,100}\Z")
_MODEL_PATH = re.compile(r"^model_path:[ \t]*(.+?)[ \t]*$", re.MULTILINE)


def _found(listing: Listing, store: str, name: str, *aliases: str) -> FoundModel:
    return FoundModel(
        name=name,
        store=store,
        path=listing.path,
        size_bytes=listing.size_bytes,
        n_parts=listing.n_parts,
        aliases=tuple(dict.fromkeys(alias.lower() for alias in aliases)),
        problem=listing.problem,
    )


def _stem(path: Path) -> str:
    return re.sub(r"(-\d{5}-of-\d{5})?\.gguf$", "", path.name, flags=re.IGNORECASE)


def _repo_aliases(repo: str, path: Path) -> list[str]:
    """Name a file by its repository: with and without the quantization, long and short."""
    quant = quant_of(_stem(path))
    short = repo.rpartition("/")[2]
    names = [repo, short, re.sub(r"-gguf$", "", short, flags=re.IGNORECASE), _stem(path)]
    with_quant = [f"{name}:{quant}" for name in names[:3]] if quant else []
    return [*names, *with_quant, path.name]


def hub_models(root: Path) -> Iterator[FoundModel]:
    """Yield what is in one Hugging Face cache."""
    try:
        repos = sorted(path for path in root.glob("models--*") if path.is_dir())
    except OSError as error:
        yield FoundModel(
            name=f"hub:{root}", store="hub", path=root, problem=error.strerror or str(error)
        )
        return
    for folder in repos:
        repo = folder.name.removeprefix("models--").replace("--", "/", 1)
        for snapshot in _snapshots(folder):
            listings = list_models(snapshot, depth=3)
            quants = [quant_of(_stem(listing.path)) for listing in listings]
            for listing, quant in zip(listings, quants, strict=True):
                is_unique = bool(quant) and quants.count(quant) == 1
                name = f"{repo}:{quant}" if is_unique else f"{repo}/{listing.path.name}"
                yield _found(listing, "hub", name, *_repo_aliases(repo, listing.path))


def _snapshots(folder: Path) -> list[Path]:
    try:
        commit = read_small(folder / "refs" / "main").decode("ascii").strip()
        # It becomes part of a path.
        if _COMMIT.match(commit) and set(commit) != {"."}:
            return [folder / "snapshots" / commit]
    except (OSError, ValueError):
        pass
    try:
        return sorted(path for path in (folder / "snapshots").iterdir() if path.is_dir())
    except OSError:
        return []


def lmstudio_models(root: Path) -> Iterator[FoundModel]:
    """Yield what LM Studio keeps: publisher, repository, file."""
    for listing in list_models(root, depth=4):
        inner = listing.path.relative_to(root).parts
        aliases = [f"lmstudio:{_stem(listing.path)}", _stem(listing.path), listing.path.name]
        if len(inner) >= 3:
            repo = f"{inner[0]}/{inner[1]}"
            names = _repo_aliases(repo, listing.path)
            aliases += [*names, *(f"lmstudio:{name}" for name in names)]
        yield _found(listing, "lmstudio", f"lmstudio:{'/'.join(inner)}", *aliases)


def llamacpp_models(root: Path) -> Iterator[FoundModel]:
    """Yield what llama.cpp downloaded in its old form: flat files."""
    for listing in list_models(root, depth=0):
        stem = _stem(listing.path)
        yield _found(listing, "llamacpp", f"llamacpp:{listing.path.name}", stem, listing.path.name)


def jan_models(root: Path) -> Iterator[FoundModel]:
    """Yield what Jan keeps: a ``model.yml`` beside each model, which says where it is."""
    base = root / "llamacpp" / "models"
    try:
        notes = sorted(path for path in base.glob("**/model.yml") if path.is_file())[:2000]
    except OSError as error:
        yield FoundModel(
            name="jan:models", store="jan", path=base, problem=error.strerror or str(error)
        )
        return
    for note in notes:
        name = note.parent.relative_to(base).as_posix()
        listing = _jan_listing(root, note)
        aliases = [name, name.rpartition("/")[2], _stem(listing.path)]
        yield _found(listing, "jan", f"jan:{name}", *aliases)


def _jan_listing(root: Path, note: Path) -> Listing:
    try:
        match = _MODEL_PATH.search(read_small(note).decode("utf-8"))
    except (OSError, ValueError) as error:
        return Listing(note, problem=f"its model.yml cannot be read: {error}")
    if match is None:
        return Listing(note, problem="its model.yml names no file")
    inner = match[1].strip().strip("'\"").replace("\\", "/")
    if "\0" in inner or ".." in inner.split("/"):
        return Listing(note, problem="its model.yml leads out of the data folder")
    path = root / inner
    # Jan also takes files from elsewhere, by their full path.
    found = [listing for listing in list_models(path.parent, 0) if listing.path == path]
    return found[0] if found else Listing(path, problem="its file is gone")
