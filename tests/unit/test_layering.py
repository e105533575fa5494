"""Rooms import downwards only; what must not know of llama.cpp, or of drafters, does not."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import racer_local

PACKAGE = Path(racer_local.__file__).parent
# At the top of the package: what every reader needs.
TOP = {"__init__", "__main__", "config", "errors", "wording"}
# From the bottom to the top: a room imports those before it, never those behind it.
ROOMS = (
    *("concurrency", "storage", "speculation", "gguf", "hardware", "measuring", "books"),
    *("drafting/racer", "drafting/auto", "drafting", "backend", "decoding"),
    *("models/stores", "models", "models/hub", "bench", "verification", "chat", "web"),
    *("drop_in", "server", "setup", "cli", "research", "_pyinstaller"),
)
DRAFTING = {"books", "measuring", "drafting", "drafting/racer", "drafting/auto"}
# What may load llama.cpp, at once or when it works.
NATIVE = {"backend", "decoding", "drop_in", "server", "bench", "verification", "cli", "research"}


def room_of(module: str) -> str:
    """Return the folder of a module, '' at the top of the package."""
    parts = module.split(".")[1:]
    if not (PACKAGE.joinpath(*parts)).is_dir():
        parts = parts[:-1]
    return "/".join(parts)


def imports_of(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


def name_of(path: Path) -> str:
    name = ".".join(("racer_local", *path.relative_to(PACKAGE).with_suffix("").parts))
    return name.removesuffix(".__init__")


MODULES = {name_of(path): imports_of(path) for path in PACKAGE.rglob("*.py")}


def rooms_imported(name: str) -> set[str]:
    ours = {target for target in MODULES[name] if target.startswith("racer_local")}
    return {room_of(target) for target in ours} - {"", room_of(name)}


def test_the_top_has_what_every_reader_needs() -> None:
    assert {path.stem for path in PACKAGE.glob("*.py")} == TOP
    folders = {room_of(name) for name in MODULES} - {""}
    assert folders == set(ROOMS)


@pytest.mark.parametrize("name", sorted(set(MODULES) - {"racer_local", "racer_local.__main__"}))
def test_rooms_import_downwards_only(name: str) -> None:
    room = room_of(name)
    below = ROOMS[: ROOMS.index(room)] if room else ()
    assert rooms_imported(name) <= set(below)


def test_no_two_modules_need_each_other() -> None:
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " > ".join((*path, name))
        if name in done:
            return
        for target in MODULES[name] & set(MODULES):
            if target != "racer_local":
                visit(target, (*path, name))
        done.add(name)

    for name in MODULES:
        visit(name, ())


def test_only_the_backend_and_the_drop_in_classes_import_llama_cpp() -> None:
    for name, imports in MODULES.items():
        if room_of(name) not in ("backend", "drop_in"):
            assert not any(target.split(".")[0] == "llama_cpp" for target in imports), name


def test_drafting_knows_no_backend_and_the_backend_no_drafter() -> None:
    for name in MODULES:
        if room_of(name) in DRAFTING:
            assert not rooms_imported(name) & {"backend", "decoding"}, name
        if room_of(name) == "backend":
            assert not rooms_imported(name) & DRAFTING, name


def test_only_rooms_that_compute_reach_the_native_layer() -> None:
    for name in MODULES:
        if room_of(name) not in NATIVE:
            assert "backend" not in rooms_imported(name), name


def test_importing_the_package_loads_no_native_code() -> None:
    code = "import sys, racer_local; sys.exit('llama_cpp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_set_up_needs_nothing_installed() -> None:
    for name, imports in MODULES.items():
        if room_of(name) in ("setup", "hardware") and name.endswith(
            ("env", "llama", "browser", "native_check")
        ):
            foreign = {target.split(".")[0] for target in imports} - {"racer_local"}
            assert foreign <= sys.stdlib_module_names | {"playwright"}, name
