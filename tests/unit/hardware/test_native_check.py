"""A llama.cpp build that would crash on this processor is recognised without loading it."""

from pathlib import Path

import pytest

from racer_local.hardware import native_check
from racer_local.hardware.native_check import (
    amx_build_flags,
    cpu_has_amx,
    extra_buffers_are_safe,
    gcc_drops_tile_config,
    library_misuses_amx,
)

AMX = b"...ggml_backend_amx_mul_mat..."
GCC_12_2 = b"\0GCC: (Debian 12.2.0-14+deb12u1) 12.2.0\0"
GCC_13_3 = b"\0GCC: (Ubuntu 13.3.0-6ubuntu2~24.04) 13.3.0\0"


@pytest.fixture
def cpuinfo(tmp_path: Path) -> Path:
    path = tmp_path / "cpuinfo"
    path.write_text("flags\t: fpu avx512f amx_bf16 amx_tile amx_int8\n")
    return path


@pytest.mark.parametrize(
    ("version", "is_broken"),
    [
        ((10, 2), False),
        ((11, 4), True),
        ((11, 5), False),
        ((12, 2), True),
        ((12, 4), False),
        ((13, 2), True),
        ((13, 3), False),
        ((14, 1), False),
    ],
)
def test_which_compilers(version: tuple[int, int], is_broken: bool) -> None:
    assert gcc_drops_tile_config(*version) is is_broken


def test_build_flags(cpuinfo: Path, tmp_path: Path) -> None:
    assert "-mno-amx-tile" in amx_build_flags("12.2.0", cpuinfo)
    assert amx_build_flags("13.3.0", cpuinfo) == ""
    assert amx_build_flags("", cpuinfo) == ""
    assert amx_build_flags("12.2.0", tmp_path / "none") == ""


def test_processor(cpuinfo: Path, tmp_path: Path) -> None:
    assert cpu_has_amx(cpuinfo)
    assert not cpu_has_amx(tmp_path / "none")


@pytest.mark.parametrize(
    ("content", "is_broken"),
    [
        (AMX + GCC_12_2, True),
        (AMX + GCC_13_3, False),
        (AMX, False),
        (GCC_12_2, False),
        (AMX + GCC_13_3 + GCC_12_2, True),
        (b"", False),
    ],
)
def test_library(tmp_path: Path, content: bytes, is_broken: bool) -> None:
    path = tmp_path / "libggml-cpu.so"
    path.write_bytes(content)
    assert library_misuses_amx(path) is is_broken
    assert not library_misuses_amx(tmp_path / "none.so")


def test_without_amx_everything_is_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_check, "cpu_has_amx", lambda: False)
    extra_buffers_are_safe.cache_clear()
    try:
        assert extra_buffers_are_safe()
    finally:
        extra_buffers_are_safe.cache_clear()


def test_the_installed_library_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_check, "cpu_has_amx", lambda: True)
    for is_broken in (True, False):
        monkeypatch.setattr(native_check, "library_misuses_amx", lambda _path, b=is_broken: b)
        extra_buffers_are_safe.cache_clear()
        try:
            found = extra_buffers_are_safe()
        finally:
            extra_buffers_are_safe.cache_clear()
        # Windows and macOS builds have no library of this name, and no such fault.
        assert found in (not is_broken, True)
