"""Which files of a repository make up the model that was asked for. Layer: pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from racer_local.errors import ConfigError, ModelLoadError
from racer_local.models.names import best_quant
from racer_local.models.stores.base import is_side_file, quant_of
from racer_local.wording import quoted

__all__ = ["HubFile", "Wanted", "choose_files", "parse_wanted"]

_WANTED = re.compile(
    r"(?:hf:|https://huggingface\.co/)?([A-Za-z0-9._-]{1,96}/[A-Za-z0-9._-]{1,96})"
    r"(?::([A-Za-z0-9_.-]{1,64}))?/?\Z"
)
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)
_N_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to fetch.

    Attributes:
        repo: owner and name.
        quant: quantization in capitals, or ''.
        sha256: what the file must have, or ''.
    """

    repo: str
    quant: str = ""
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository.

    Attributes:
        name: path inside the repository.
        size_bytes: its size.
        sha256: the hub's checksum, or '' where the hub gives none.
    """

    name: str
    size_bytes: int
    sha256: str = ""


def parse_wanted(text: str) -> Wanted:
    """Read ``org/repo[:quant]``.

    Raises:
        ConfigError: it is none.
    """
    match = _WANTED.match(text.strip())
    if match is None or ".." in match[1]:
        raise ConfigError(
            f"{quoted(text)} is no name to fetch; give a name of the catalog, or owner/repository"
            "[:quantization] as on the Hugging Face hub, for example Qwen/Qwen3-0.6B-GGUF:Q8_0"
        )
    return Wanted(match[1], (match[2] or "").upper())


def choose_files(files: Sequence[HubFile], wanted: Wanted) -> list[HubFile]:
    """Choose the file, or all parts of a split one.

    Raises:
        ModelLoadError: the repository has none, not this one, or several that fit.
    """
    models = _grouped(files)
    if not models:
        raise ModelLoadError(
            f"{wanted.repo} holds no GGUF file of a model; look for a repository of the same "
            "model whose name ends in -GGUF"
        )
    quants = {name: quant_of(name.rpartition("/")[2]) for name in models}
    if wanted.quant:
        fitting = [name for name, quant in quants.items() if quant == wanted.quant]
        fitting = fitting or [name for name in models if wanted.quant in name.upper()]
    else:
        best = best_quant(quants.values())
        fitting = [name for name, quant in quants.items() if quant == best] if best else []
        fitting = fitting or list(models)
    if len(fitting) != 1:
        several = "several files fit" if fitting else "there is no such file"
        asked = f":{wanted.quant}" if wanted.quant else ""
        known = list(dict.fromkeys(quant or name for name, quant in quants.items()))
        shown = ", ".join(known[:_N_SHOWN]) + (", ..." if len(known) > _N_SHOWN else "")
        raise ModelLoadError(
            f"{wanted.repo}{asked}: {several}; name one of: {shown}, as in {wanted.repo}:{known[0]}"
        )
    parts = models[fitting[0]]
    match = _PART.search(parts[0].name)
    if match is not None and (len(parts) != int(match[2]) or int(match[1]) != 1):
        raise ModelLoadError(
            f"{wanted.repo} has only {len(parts)} of {int(match[2])} parts of {fitting[0]}"
        )
    return parts


def _grouped(files: Sequence[HubFile]) -> dict[str, list[HubFile]]:
    models: dict[str, list[HubFile]] = {}
    for file in sorted(files, key=lambda file: file.name):
        base = file.name.rpartition("/")[2]
        is_inside = not file.name.startswith("/") and ".." not in file.name.split("/")
        if is_inside and base.lower().endswith(".gguf") and not is_side_file(base):
            models.setdefault(_PART.sub("", file.name), []).append(file)
    return models
