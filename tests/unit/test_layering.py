"""Imports point down only."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import racer_local

PACKAGE = Path(racer_local.__file__).parent
# Native code, or what stands on it. Everything else must be importable without llama.cpp.
NATIVE = {"racer_local.text_model"}
# Stands on everything, and is loaded only when it is asked for.
EMBED = "racer_local.embed"
SERVER = "racer_local.server"


def imports_of(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


def modules() -> dict[str, set[str]]:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(("racer_local", *path.relative_to(PACKAGE).with_suffix("").parts))
        found[name.removesuffix(".__init__")] = imports_of(path)
    return found


def test_only_the_backend_and_the_drop_in_classes_import_llama_cpp() -> None:
    for name, imports in modules().items():
        if not name.startswith(("racer_local.backend", EMBED)):
            assert not any(target.split(".")[0] == "llama_cpp" for target in imports), name


def test_drafting_knows_no_backend_and_the_backend_no_drafter() -> None:
    for name, imports in modules().items():
        if name.startswith("racer_local.drafting"):
            assert not any("backend" in target or "engine" in target for target in imports), name
        if name.startswith("racer_local.backend"):
            assert not any("drafting" in target or "engine" in target for target in imports), name


def test_pure_modules_stay_free_of_the_native_layer() -> None:
    for name, imports in modules().items():
        if name.startswith(("racer_local.backend", "racer_local.cli", EMBED)) or name in NATIVE:
            continue
        if name == "racer_local":
            continue  # only for type checkers; see below
        native = {t for t in imports if t.startswith("racer_local.backend") or t in NATIVE}
        assert native <= {"racer_local.backend.base"}, name


def test_importing_the_package_loads_no_native_code() -> None:
    code = "import sys, racer_local; sys.exit('llama_cpp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_nothing_below_knows_the_drop_in_classes() -> None:
    for name, imports in modules().items():
        if not name.startswith((EMBED, SERVER, "racer_local.cli")) and name != "racer_local":
            assert not any(target.startswith(EMBED) for target in imports), name
