"""Find the text files under a path and read them. Layer: files.

Left out, and counted: what git ignores, what is not text, what is too large, what is neither a
file nor a folder, links, and what may not be read.
"""

from __future__ import annotations

import codecs
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pathspec
from charset_normalizer import from_bytes

from racer_local.errors import ConfigError

__all__ = ["Found", "TextFile", "decode_text", "find_files"]

# The longer marks first: that of UTF-32 begins with that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Control characters that no text has; more than a few of them make a file binary.
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\r\f\b\x1b"))
_MAX_CONTROL_SHARE = 0.01

IGNORED = "git-ignored"
BINARY = "binary"
HUGE = "too large"
UNREADABLE = "unreadable"
SPECIAL = "links or devices"


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file that may be text.

    Attributes:
        path: where it is.
        name: as it is called in a book: under the path as that was given.
        size_bytes: its size.
        changed_ns: when it was last changed.
    """

    path: Path
    name: str
    size_bytes: int
    changed_ns: int


@dataclass(slots=True)
class Found:
    """What was found.

    Attributes:
        files: sorted by name.
        left_out: counts by reason; a folder counts once.
    """

    files: list[TextFile] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


def find_files(paths: Iterable[Path], max_bytes: int, *, use_gitignore: bool = True) -> Found:
    """Walk paths; a file that is named itself is taken even if git ignores it.

    Args:
        paths: files and folders.
        max_bytes: size from which a file is too large.
        use_gitignore: leave out what git ignores, and git's own folders.

    Raises:
        ConfigError: a path does not exist.
    """
    found = Found()
    seen: set[str] = set()
    for path in paths:
        if not path.exists():
            raise ConfigError(f"there is no file or folder {str(path)!r}")
        entries = _walk(path, found, use_gitignore) if path.is_dir() else iter([path])
        for entry in entries:
            # The same file may be under two of the paths.
            real = os.path.realpath(entry)
            if real in seen:
                continue
            seen.add(real)
            try:
                status = os.stat(entry)
            except OSError:
                found.left_out[UNREADABLE] += 1
                continue
            if not stat.S_ISREG(status.st_mode):
                found.left_out[SPECIAL] += 1
            elif status.st_size > max_bytes:
                found.left_out[HUGE] += 1
            elif status.st_size:
                found.files.append(
                    TextFile(entry, entry.as_posix(), status.st_size, status.st_mtime_ns)
                )
    found.files.sort(key=lambda file: file.name)
    return found


class _Ignored:
    """The ignore rules of a folder and of those above it, up to the top of a git repository."""

    def __init__(self, folder: Path) -> None:
        self._rules: list[tuple[str, pathspec.GitIgnoreSpec]] = []
        above = [folder, *folder.parents]
        top = next((place for place in above if (place / ".git").exists()), None)
        if top is not None:
            self._add(top, top / ".git" / "info" / "exclude")
            for place in reversed(above[1 : above.index(top) + 1]):
                self.enter(place)

    def enter(self, folder: Path) -> None:
        """Add the rules of one more folder."""
        self._add(folder, folder / ".gitignore")

    def leave_all_but(self, folder: str) -> None:
        """Drop the rules of folders that this one is not under."""
        self._rules = [
            (place, spec)
            for place, spec in self._rules
            if folder == place or folder.startswith(place.rstrip(os.sep) + os.sep)
        ]

    def _add(self, folder: Path, file: Path) -> None:
        try:
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return
        self._rules.append((str(folder), pathspec.GitIgnoreSpec.from_lines(lines)))

    def covers(self, folder: str, name: str, is_folder: bool) -> bool:
        """Whether git ignores an entry of a folder; the deepest rule that speaks decides."""
        for place, spec in reversed(self._rules):
            below = os.path.relpath(os.path.join(folder, name), place).replace(os.sep, "/")
            verdict = spec.check_file(below + "/" if is_folder else below).include
            if verdict is not None:
                return verdict
        return False


def _walk(top: Path, found: Found, use_gitignore: bool) -> Iterator[Path]:
    absolute = Path(os.path.abspath(top))
    rules = _Ignored(absolute) if use_gitignore else None

    def unreadable(error: OSError) -> None:
        found.left_out[UNREADABLE] += 1

    def is_wanted(folder: str, here: str, name: str, is_folder: bool) -> bool:
        if os.path.islink(os.path.join(folder, name)):
            found.left_out[SPECIAL] += 1
            return False
        if rules is not None and rules.covers(here, name, is_folder):
            found.left_out[IGNORED] += 1
            return False
        return True

    for folder, folders, names in os.walk(top, onerror=unreadable):
        here = os.path.normpath(os.path.join(absolute, os.path.relpath(folder, top)))
        if rules is not None:
            rules.leave_all_but(here)
            rules.enter(Path(here))
            # Of a linked work tree it is a file.
            folders[:] = [name for name in folders if name != ".git"]
            names = [name for name in names if name != ".git"]
        folders[:] = [name for name in sorted(folders) if is_wanted(folder, here, name, True)]
        for name in sorted(names):
            if is_wanted(folder, here, name, False):
                yield Path(folder, name)


def decode_text(content: bytes) -> str | None:
    """Turn the content of a file into text; None if it is not text.

    UTF-8, UTF-16 and UTF-32 are recognised by their marks or their validity, other encodings are
    guessed. Line ends become newlines.
    """
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            try:
                return _with_newlines(content.decode(encoding))
            except UnicodeDecodeError:
                return None
    if b"\0" in content:
        return None
    n_controls = len(content) - len(content.translate(None, _CONTROLS))
    if n_controls > _MAX_CONTROL_SHARE * len(content):
        return None
    try:
        return _with_newlines(content.decode("utf-8"))
    except UnicodeDecodeError:
        guess = from_bytes(content).best()
        return None if guess is None else _with_newlines(str(guess))


def _with_newlines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")
