"""Fetch a model from the Hugging Face hub. Layer: files and network (huggingface_hub).

Into the hub's shared cache, by the hub's own library, so that other programs find the file too.
Added here: an interrupted download goes on where it stopped, also in a later run (the library
starts anew); the space is checked first; contents join the cache only if their SHA-256 is right;
and failures come in words.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from racer_local.errors import ModelLoadError
from racer_local.models.fetch import Progress
from racer_local.models.hub.choose import HubFile, Wanted, choose_files
from racer_local.models.hub.ledger import record
from racer_local.models.stores.places import find_places
from racer_local.storage.files import cache_folder
from racer_local.storage.locks import file_lock
from racer_local.wording import quoted

__all__ = ["Pulled", "is_offline", "pull"]

_T = TypeVar("_T")

_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_SPARE_BYTES = 64 << 20
_POLL_S = 0.2
_HASH_CHUNK = 1 << 20
_N_TRIES = 4
_MAX_WAIT_S = 60.0
_RETRIED = (408, 429, 500, 502, 503, 504)


@dataclass(frozen=True, slots=True)
class Pulled:
    """What was fetched.

    Attributes:
        path: the file; of a split model, its first part.
        size_bytes: of all parts.
        is_new: whether anything had to be downloaded.
        is_verified: whether the contents were compared with a checksum.
    """

    path: Path
    size_bytes: int
    is_new: bool
    is_verified: bool


def is_offline() -> bool:
    """Tell whether the hub's own switch forbids the network."""
    return os.environ.get("HF_HUB_OFFLINE", "").strip().upper() in ("1", "ON", "YES", "TRUE")


def pull(
    wanted: Wanted,
    progress: Progress | None = None,
    notify: Callable[[str], None] = lambda line: None,
) -> Pulled:
    """Fetch a model unless it is there; files that are there are not fetched again.

    Args:
        wanted: repository and quantization.
        progress: called with the bytes there and the bytes in all.
        notify: called when the hub asks to wait.

    Raises:
        ModelLoadError: no network, no such model, not allowed, no room, or wrong contents.
    """
    hub = _Hub(wanted, notify)
    commit, files = hub.list_files()
    chosen = choose_files(files, wanted)
    if wanted.sha256 and len(chosen) == 1:
        chosen = [replace(chosen[0], sha256=wanted.sha256)]
    missing = [file for file in chosen if not hub.snapshot_path(commit, file).exists()]
    _require_space(hub.cache, missing, hub.n_partial(missing), wanted)
    total = sum(file.size_bytes for file in chosen)
    done = total - sum(file.size_bytes for file in missing)
    for file in missing:
        with _watched(hub, file, done, total, progress):
            path = hub.download(file, commit)
        record([path])
        done += file.size_bytes
    return Pulled(
        path=hub.snapshot_path(commit, chosen[0]),
        size_bytes=total,
        is_new=bool(missing),
        is_verified=bool(missing) and all(file.sha256 for file in missing),
    )


class _Hub:
    """One repository on the hub, and its place in the cache."""

    def __init__(self, wanted: Wanted, notify: Callable[[str], None]) -> None:
        # Read when the library is imported.
        os.environ.setdefault("HF_HUB_DISABLE_XET", "1")
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
        self.repo = wanted.repo
        self.cache = find_places().hub[0]
        self._notify = notify
        self._endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")

    def list_files(self) -> tuple[str, list[HubFile]]:
        """Return the newest commit and its files."""
        from huggingface_hub import HfApi
        from huggingface_hub.utils import (  # type: ignore[attr-defined]  # public, by its manual
            disable_progress_bars,
        )

        disable_progress_bars()
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
        api = HfApi(endpoint=self._endpoint)
        info = self._patiently(lambda: api.model_info(self.repo, files_metadata=True))
        files = [HubFile(s.rfilename, int(s.size or 0), _checksum(s)) for s in info.siblings or ()]
        if not info.sha:
            raise ModelLoadError(f"the hub names no revision of {self.repo}; try again later")
        return str(info.sha), files

    def _folder(self) -> Path:
        return self.cache / f"models--{self.repo.replace('/', '--')}"

    def snapshot_path(self, commit: str, file: HubFile) -> Path:
        return self._folder() / "snapshots" / commit / file.name

    def partial_path(self, file: HubFile) -> Path:
        """Return where the beginning of a file is kept until all of it is there."""
        return self._folder() / "blobs" / f"{file.sha256}.racer-local.incomplete"

    def n_partial(self, files: Sequence[HubFile]) -> int:
        """Count the bytes there already of files that are to be fetched."""
        return sum(_size(self.partial_path(file)) for file in files if file.sha256)

    def download(self, file: HubFile, commit: str) -> Path:
        """Fetch one file into the cache and return its path there."""
        from huggingface_hub import hf_hub_download

        if _SHA256.match(file.sha256):
            self._fetch_blob(file)
        # With the contents in place, this only gives them their name. By the branch's name: other
        # programs look the newest revision up by it.
        path = self._patiently(
            lambda: hf_hub_download(
                self.repo,
                file.name,
                revision="main",
                cache_dir=self.cache,
                endpoint=self._endpoint,
            )
        )
        expected = self.snapshot_path(commit, file)
        return expected if expected.exists() else Path(path)

    def _fetch_blob(self, file: HubFile) -> None:
        partial = self.partial_path(file)
        blob = partial.with_name(file.sha256)
        locks = cache_folder() / "locks"
        try:
            partial.parent.mkdir(parents=True, exist_ok=True)
            locks.mkdir(parents=True, exist_ok=True)
            with file_lock(locks / f"{file.sha256}.lock"):
                if not blob.exists():
                    self._patiently(lambda: self._go_on(file, partial))
                    _verify(partial, file, self.repo)
                    os.replace(partial, blob)
        except OSError as error:
            raise _explained(error, self.repo, self.cache) from error

    def _go_on(self, file: HubFile, partial: Path) -> None:
        """Fetch what is missing of a file."""
        from huggingface_hub import get_hf_file_metadata, hf_hub_url
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import (  # type: ignore[attr-defined]  # public, by its manual
            build_hf_headers,
        )

        url = hf_hub_url(self.repo, file.name, revision="main", endpoint=self._endpoint)
        metadata = get_hf_file_metadata(url, endpoint=self._endpoint)
        if metadata.etag != file.sha256:
            raise ModelLoadError(
                f"{self.repo}/{file.name} is another file than expected (its checksum is "
                f"{str(metadata.etag)[:12]}..., not {file.sha256[:12]}...); try again"
            )
        headers = build_hf_headers()
        if urlsplit(metadata.location).netloc != urlsplit(url).netloc:
            # The token is for the hub, not for where it keeps its files.
            headers.pop("authorization", None)
        with partial.open("ab") as out:
            n_there = out.tell()
            if n_there > file.size_bytes:
                out.truncate(0)
                n_there = 0
            http_get(
                metadata.location,
                out,
                resume_size=n_there,
                headers=headers,
                expected_size=file.size_bytes,
            )

    def _patiently(self, request: Callable[[], _T]) -> _T:
        """Make a request; wait and try again where the hub asks for it or cannot be reached."""
        for left in range(_N_TRIES - 1, -1, -1):
            try:
                return request()
            except Exception as error:
                wait = _seconds_to_wait(error, _N_TRIES - left)
                if wait is None or left == 0:
                    raise _explained(error, self.repo, self.cache) from error
                self._notify(f"the hub asks to wait; trying again in {wait:.0f} s")
                time.sleep(wait)
        raise AssertionError


def _checksum(sibling: Any) -> str:
    lfs = sibling.lfs
    value = (lfs.get("sha256") if isinstance(lfs, dict) else getattr(lfs, "sha256", None)) or ""
    return str(value).lower()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _status(error: Exception) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _seconds_to_wait(error: Exception, n_tries: int) -> float | None:
    """Return how long to wait before another try; None where that would be no use."""
    if _status(error) not in _RETRIED:
        return None
    headers = getattr(getattr(error, "response", None), "headers", {})
    try:
        asked = float(headers.get("retry-after", 2**n_tries))
    except ValueError:
        asked = float(2**n_tries)
    return min(max(asked, 0.0), _MAX_WAIT_S)


def _explained(error: Exception, repo: str, cache: Path) -> ModelLoadError:
    from huggingface_hub import errors

    status = _status(error)
    if isinstance(error, ModelLoadError):
        return error
    if isinstance(error, errors.GatedRepoError):
        reason = (
            f"{repo} asks you to accept its licence first: do that on its page on the hub, then "
            "log in with 'hf auth login' or set HF_TOKEN"
        )
    elif isinstance(error, errors.RepositoryNotFoundError | errors.RevisionNotFoundError):
        reason = (
            f"there is no repository {repo} on the hub, or it is private; check the name, or set "
            "HF_TOKEN"
        )
    elif isinstance(error, errors.EntryNotFoundError) and status == 404:
        reason = f"{repo} no longer has this file; try again"
    elif status in (401, 403):
        reason = (
            f"the hub does not let you read {repo}; log in with 'hf auth login' or set HF_TOKEN"
        )
    elif status == 429:
        reason = "the hub gets too many requests from here; try again in some minutes"
    elif status is not None:
        reason = f"the hub answered with error {status}; try again later"
    elif isinstance(error, OSError) and error.errno is not None and error.filename is None:
        reason = f"{quoted(str(cache))} cannot be written: {error.strerror or error}"
    elif isinstance(error, OSError) and error.errno is not None:
        reason = f"{quoted(str(error.filename))} cannot be written: {error.strerror or error}"
    else:
        reason = (
            f"{repo} could not be fetched ({type(error).__name__}: {str(error)[:200]}); check the "
            "network and try again: what has come so far is kept"
        )
    return ModelLoadError(reason)


def _require_space(cache: Path, files: Sequence[HubFile], n_there: int, wanted: Wanted) -> None:
    needed = sum(file.size_bytes for file in files) - n_there
    folder = cache
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if files and free < needed + _SPARE_BYTES:
        raise ModelLoadError(
            f"{wanted.repo} needs {(needed + _SPARE_BYTES) / 1e9:.2f} GB of free space, but "
            f"{quoted(str(folder))} has {free / 1e9:.2f} GB; make room, or set HF_HOME to a folder "
            "on another disk"
        )


@contextlib.contextmanager
def _watched(
    hub: _Hub, file: HubFile, done: int, total: int, progress: Progress | None
) -> Iterator[None]:
    """Report how far the file has come, as seen on the disk, while the block runs."""
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(_POLL_S):
            here = _size(hub.partial_path(file))
            if progress is not None:
                progress(min(done + here, total), total)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _verify(path: Path, file: HubFile, repo: str) -> None:
    """Compare the contents with the checksum; wrong ones do not stay."""
    digest = hashlib.sha256()
    with path.open("rb") as content:
        while chunk := content.read(_HASH_CHUNK):
            digest.update(chunk)
    if digest.hexdigest() == file.sha256:
        return
    path.unlink()
    raise ModelLoadError(
        f"what came of {repo}/{file.name} is not what the hub promised (its checksum is "
        f"{digest.hexdigest()[:12]}..., not {file.sha256[:12]}...); it was dropped, try again"
    )
