"""Files appear as a whole or not at all, whoever writes and whatever goes wrong."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from racer_local.storage.files import cache_folder, data_folder, new_file, write_text


def test_a_file_and_its_folder_are_made_for_the_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "new" / "deep" / "file.json"
    write_text(path, "你好 👋\n")
    assert path.read_bytes() == "你好 👋\n".encode()
    assert list(path.parent.iterdir()) == [path]
    if os.name != "nt":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt(), ValueError("no")])
def test_what_fails_leaves_what_was_there_and_nothing_else(
    tmp_path: Path, error: BaseException
) -> None:
    path = tmp_path / "file"
    write_text(path, "before")

    def write_half() -> None:
        with new_file(path) as file:
            file.write(b"half")
            raise error

    with pytest.raises(type(error)):
        write_half()
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_threads_that_write_at_once_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "file"
    both_write = threading.Barrier(2)

    def write(letter: bytes) -> None:
        with new_file(path) as file:
            file.write(letter * 1000)
            both_write.wait()
            file.write(letter * 1000)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in (b"a", b"b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() in (b"a" * 2000, b"b" * 2000)
    assert list(tmp_path.iterdir()) == [path]


def test_the_folders_are_the_user_s(isolated_home: Path) -> None:
    assert cache_folder().is_relative_to(isolated_home)
    assert data_folder().is_relative_to(isolated_home)
    assert cache_folder() != data_folder()
