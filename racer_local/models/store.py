"""Find model files, and fetch those of the catalog. Layer: files (no llama_cpp).

A model is looked for in the ``models`` folder of the checkout when the package runs from one, and
in the user's cache folder otherwise; ``RACER_MODELS_DIR`` overrides both. What is missing, cut
short or damaged is fetched again. A finished file only ever appears whole: it is put together
under another name and renamed at the end.

``python -m racer_local.models.store NAME ...`` fetches models and prints where they are.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from racer_local.errors import ModelLoadError, RacerError
from racer_local.models.catalog import ModelEntry, checkout_folder, load_catalog
from racer_local.models.fetch import Progress, fetch_model
from racer_local.storage.files import cache_folder, write_text
from racer_local.storage.locks import file_lock
from racer_local.wording import quoted

__all__ = ["Progress", "default_model_path", "ensure_model", "models_folder", "resolve_model"]

_HASH_CHUNK = 1 << 20
# Git ignores folders of this name anywhere in the checkout.
_STATE_FOLDER = ".cache"


def models_folder() -> Path:
    """Return the folder that catalog models are kept in; it may not exist yet."""
    override = os.environ.get("RACER_MODELS_DIR")
    if override:
        return Path(os.path.expanduser(override))
    checkout = checkout_folder()
    if checkout is not None and os.access(checkout / "models", os.W_OK):
        return checkout / "models"
    return cache_folder() / "models"


def default_model_path(progress: Progress | None = None) -> Path:
    """Return the path of the default model, fetched if it is missing.

    Raises:
        ModelLoadError: it is missing and could not be fetched.
    """
    return ensure_model(load_catalog().default, progress)


def resolve_model(
    name_or_path: str | os.PathLike[str] | None, progress: Progress | None = None
) -> Path:
    """Turn what the user typed into the path of a model file.

    A path of an existing file comes first and is returned as it was given; then the names of the
    catalog (those in wheels are fetched if missing); then file names inside the models folder;
    then what other programs keep on this machine (``model_names``). None or an empty string is
    the default model. What is in the file is not looked at.

    Raises:
        ModelLoadError: nothing fits; the message says what would.
    """
    text = os.fspath(name_or_path) if name_or_path is not None else ""
    # Quotes that a shell would have removed are left over when a path is pasted into a prompt.
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    if not text.strip():
        return default_model_path(progress)
    # os.path's function leaves an unknown user alone, where pathlib's raises.
    for path in (Path(text), Path(os.path.expanduser(text))):
        if _exists(path) and not _is_folder(path):
            return path
    catalog = load_catalog()
    entry = catalog.find(text)
    if entry is not None:
        return ensure_model(entry, progress)
    if _is_path_like(text):
        raise ModelLoadError(_nothing_at_path(text))
    for name in (text, f"{text}.gguf"):
        kept = models_folder() / name
        if Path(name).name == name and _exists(kept) and not _is_folder(kept):
            return kept
    from racer_local.models.names import find_installed, nothing_fits
    from racer_local.models.stores.find import find_models

    models = find_models()
    installed = find_installed(text, models)
    if installed is not None:
        return installed
    is_file_name = text.lower().endswith(".gguf")
    raise ModelLoadError(
        _nothing_at_path(text) if is_file_name else nothing_fits(text, models, catalog)
    )


def ensure_model(entry: ModelEntry | str, progress: Progress | None = None) -> Path:
    """Return the path of a catalog model whose checksum is right, fetching it if need be.

    Args:
        entry: the entry or its name.
        progress: called with the bytes done and the bytes in all while something is fetched.

    Raises:
        ModelLoadError: the name is unknown, or the model could not be fetched.
    """
    if isinstance(entry, str):
        found = load_catalog().find(entry)
        if found is None:
            known = ", ".join(load_catalog().models)
            raise ModelLoadError(f"no model named {quoted(entry)}; known names: {known}")
        entry = found
    if entry.repo:
        from racer_local.models.names import find_pulled

        return find_pulled(entry)
    folder = models_folder()
    path = folder / entry.file
    if _is_verified(path, entry):
        return path
    state = folder / _STATE_FOLDER
    try:
        state.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelLoadError(
            f"the models folder {quoted(str(folder))} cannot be made ({error.strerror}); "
            "set RACER_MODELS_DIR to a folder you may write to"
        ) from error
    # Whoever waited here finds the file finished by the one who went first.
    with file_lock(state / f"{entry.file}.lock"):
        if not _is_verified(path, entry):
            fetch_model(entry, path, state, progress)
            _remember(path, entry)
    return path


# --- checksums -------------------------------------------------------------------------------


def _note_path(path: Path) -> Path:
    return path.parent / _STATE_FOLDER / f"{path.name}.verified.json"


def _stamp(path: Path, entry: ModelEntry) -> dict[str, object]:
    status = path.stat()
    return {"sha256": entry.sha256, "size": status.st_size, "mtime_ns": status.st_mtime_ns}


def _is_verified(path: Path, entry: ModelEntry) -> bool:
    """Tell whether the file is there and right; its checksum is computed once per change."""
    try:
        if not path.is_file() or path.stat().st_size != entry.size_bytes:
            return False
        with contextlib.suppress(OSError, ValueError):
            if json.loads(_note_path(path).read_text(encoding="utf-8")) == _stamp(path, entry):
                return True
        if _sha256(path) != entry.sha256:
            return False
    except OSError:
        return False
    _remember(path, entry)
    return True


def _remember(path: Path, entry: ModelEntry) -> None:
    # Only saves time: without the note the checksum is computed again.
    with contextlib.suppress(OSError):
        write_text(_note_path(path), json.dumps(_stamp(path, entry)))


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_HASH_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


# --- telling the user what would fit ---------------------------------------------------------


def _exists(path: Path) -> bool:
    try:
        os.stat(path)
    except (OSError, ValueError):
        return False
    return True


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _gguf_names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir() if path.suffix.lower() == ".gguf")
    except (OSError, ValueError):
        return []


def _is_path_like(text: str) -> bool:
    return (
        _is_folder(Path(text))
        or "\\" in text
        or "\0" in text
        or text.startswith(("/", "./", "../", "~"))
        or re.match(r"[A-Za-z]:[\\/]", text) is not None
    )


def _nothing_at_path(text: str) -> str:
    path = Path(text)
    if _is_folder(path):
        names = _gguf_names(path)
        inside = f", for example {quoted(str(path / names[0]))}" if names else " (it holds none)"
        return f"{quoted(text)} is a folder; give the path of a GGUF file{inside}"
    if re.match(r"[A-Za-z]:[\\/]", text) and os.name != "nt":
        mapped = f"/mnt/{text[0].lower()}/" + text[3:].replace("\\", "/")
        return (
            f"no model file at {quoted(text)}: that is a Windows path, and this is not Windows; "
            f"inside WSL it would be {quoted(mapped)}"
        )
    near = difflib.get_close_matches(path.name, _gguf_names(path.parent), n=1)
    advice = f"did you mean {quoted(str(path.parent / near[0]))}?" if near else "check the path"
    return f"no model file at {quoted(text)}; {advice}"


# --- command line ----------------------------------------------------------------------------


class _ProgressLine:
    """Writes progress to stderr: one line redrawn on a terminal, a line every 5 s elsewhere."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_terminal = sys.stderr.isatty()
        self._last = time.monotonic() - 5.0
        self._is_finished = False

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        now = time.monotonic()
        finished = done_bytes >= total_bytes
        is_early = now - self._last < (0.2 if self._is_terminal else 5.0)
        # All is downloaded some moments before all is unpacked: the last line comes once.
        if self._is_finished or (is_early and not finished):
            return
        self._is_finished = finished
        self._last = now
        megabytes = f"{done_bytes / 1e6:.0f} of {total_bytes / 1e6:.0f} MB"
        start, end = ("\r", "\n" if finished else "") if self._is_terminal else ("", "\n")
        sys.stderr.write(f"{start}fetching {self._name}: {megabytes}{end}")
        sys.stderr.flush()


def main(arguments: Sequence[str]) -> int:
    """Fetch the named models, the default one if none is named, and print their paths."""
    try:
        for name in arguments or [load_catalog().default]:
            sys.stdout.write(f"{ensure_model(name, _ProgressLine(name))}\n")
    except RacerError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("\nstopped; nothing was left behind\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
