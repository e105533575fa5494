"""Which files are read, and how: git's ignore rules, encodings, what is left out."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from racer_local.books.text_files import decode_text, find_files
from racer_local.errors import ConfigError

TEXT = "Viele Grüße aus München, wo es schöner ist als sonst.\nEin zweiter Satz für sie.\n"
TREE = {
    "keep.py": "a",
    "skip.log": "a",
    "important.log": "a",
    "build/out.py": "a",
    "src/build/out.py": "a",
    "src/keep.txt": "a",
    "src/skip.txt": "a",
    "src/deep/skip.txt": "a",
    "src/deep/keep.log": "a",
    "docs/only here.md": "a",
    "docs/sub/not here.md": "a",
    "ü/ñ 👍.txt": "a",
    ".gitignore": "*.log\n!important.log\n/build/\n# comment\n\nü/nothing\n",
    "src/.gitignore": "skip.txt\n",
    "src/deep/.gitignore": "!keep.log\n",
    "docs/.gitignore": "sub/\n",
    ".git/HEAD": "a",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, content in TREE.items():
        path = tmp_path / "repo" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return tmp_path / "repo"


def names(root: Path, *paths: Path, **options: bool) -> list[str]:
    found = find_files(paths or [root], 1000, **options)
    return [os.path.relpath(file.path, root).replace(os.sep, "/") for file in found.files]


def test_what_git_ignores_is_left_out(tree: Path) -> None:
    expected = {
        "keep.py",
        "important.log",
        "src/build/out.py",
        "src/keep.txt",
        "src/deep/keep.log",
        "docs/only here.md",
        "ü/ñ 👍.txt",
        ".gitignore",
        "src/.gitignore",
        "src/deep/.gitignore",
        "docs/.gitignore",
    }
    assert set(names(tree)) == expected
    assert find_files([tree], 1000).left_out == {"git-ignored": 5}
    assert len(names(tree, use_gitignore=False)) == len(TREE)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_git_itself_agrees(tree: Path) -> None:
    shutil.rmtree(tree / ".git")
    (tree / ".gitignore").write_text("*.log\n!important.log\n/build/\nsrc/**/x\n", "utf-8")
    subprocess.run(["git", "init", "-q"], cwd=tree, check=True)
    (tree / ".git" / "info").mkdir(exist_ok=True)
    (tree / ".git" / "info" / "exclude").write_text("keep.py\n", "utf-8")
    listed = subprocess.run(
        ["git", "-c", "core.excludesFile=", "ls-files", "-z", "--others", "--exclude-standard"],
        cwd=tree,
        capture_output=True,
        check=True,
    ).stdout.decode()
    assert sorted(names(tree)) == sorted(filter(None, listed.split("\0")))


def test_rules_of_folders_above_count_and_a_named_file_is_always_taken(tree: Path) -> None:
    src = tree / "src"
    (src / "x.log").write_text("a", "utf-8")
    assert "src/x.log" not in names(tree, src)
    assert names(tree, src / "x.log", src / "skip.txt") == ["src/skip.txt", "src/x.log"]
    assert names(tree, src, tree / "src" / "deep").count("src/deep/keep.log") == 1
    with pytest.raises(ConfigError, match="no file or folder"):
        find_files([tree / "none"], 1000)


def test_empty_huge_linked_and_special_files_are_counted(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "huge").write_bytes(b"a" * 1001)
    (tmp_path / "fits").write_bytes(b"a" * 1000)
    expected = {"too large": 1}
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        os.symlink(tmp_path / "fits", tmp_path / "link")
        os.symlink(tmp_path, tmp_path / "loop")
        expected["links or devices"] = 3
    found = find_files([tmp_path], 1000)
    assert [file.path.name for file in found.files] == ["fits"]
    assert found.left_out == expected


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "cp1252", "latin-1"]
)
def test_text_is_read_in_any_usual_encoding(encoding: str) -> None:
    assert decode_text(TEXT.replace("\n", "\r\n").encode(encoding)) == TEXT


def test_what_is_no_text_is_not_read() -> None:
    assert decode_text(b"\x7fELF\0\0\1\2") is None
    assert decode_text(bytes(range(1, 32)) * 10) is None
    assert decode_text(b"\xff\xfea") is None
    assert decode_text(b"") == ""
    assert decode_text("👍 \x1b[1m".encode()) == "👍 \x1b[1m"
