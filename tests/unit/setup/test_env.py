"""Set-up: what it decides, how it fails, and that Make hands everything on unharmed."""

import argparse
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from racer_local.setup import env as setup_env
from racer_local.setup import llama as setup_llama
from racer_local.setup.env import (
    Note,
    ensure_venv,
    install_debian_package,
    is_working,
    known_extras,
    llama_requirement,
    read_note,
    venv_python,
    wanted_note,
    write_note,
)
from racer_local.setup.llama import (
    SetupError,
    default_backend,
    find_compiler,
    plan_build,
    prebuilt_index,
    run_with_progress,
)

ROOT = Path(__file__).resolve().parents[3]
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def options(**changes: str) -> argparse.Namespace:
    return argparse.Namespace(
        **{"backend": "", "prebuilt": "", "extras": "", "models": "", **changes}
    )


def test_set_up_runs_on_a_bare_python() -> None:
    # -S: no site-packages; -I: nothing from the environment.
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import racer_local.setup.env"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)


class TestBackend:
    @pytest.mark.parametrize(
        ("system", "machine", "expected"),
        [
            ("darwin", "arm64", "metal"),
            ("darwin", "x86_64", "cpu"),
            ("linux", "x86_64", "cpu"),
            ("linux", "aarch64", "cpu"),
            ("win32", "AMD64", "cpu"),
        ],
    )
    def test_default(self, system: str, machine: str, expected: str) -> None:
        assert default_backend(system, machine) == expected

    def test_unknown(self) -> None:
        with pytest.raises(
            SetupError, match="'opencl'; it must be one of cpu, metal, cuda, vulkan"
        ):
            plan_build("opencl", is_prebuilt=False)

    def test_unknown_ends_the_program_before_anything_is_made(self, capsys) -> None:
        assert setup_env.main(["--backend", "Quantum"]) == 1
        assert "unknown BACKEND 'quantum'" in capsys.readouterr().err

    def test_metal_needs_a_mac(self) -> None:
        with pytest.raises(SetupError, match="macOS"):
            plan_build("metal", is_prebuilt=False, system="linux")
        plan = plan_build("metal", is_prebuilt=False, system="darwin")
        assert plan.environment["CMAKE_ARGS"] == "-DGGML_METAL=on"

    def test_cuda_needs_nvcc(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(setup_llama.shutil, "which", lambda *_a, **_k: None)
        monkeypatch.setenv("CUDA_HOME", str(tmp_path))
        with pytest.raises(SetupError, match="PREBUILT=1"):
            plan_build("cuda", is_prebuilt=False, system="linux")
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "nvcc").write_text("")
        plan = plan_build("cuda", is_prebuilt=False, cmake_args="-DX=1", system="linux")
        assert plan.environment["CMAKE_ARGS"] == "-DX=1 -DGGML_CUDA=on"
        assert plan.environment["CUDACXX"] == str(tmp_path / "bin" / "nvcc")
        assert not plan.is_usual

    def test_vulkan_needs_glslc(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(setup_llama.shutil, "which", lambda *_a, **_k: None)
        with pytest.raises(SetupError, match="glslc"):
            plan_build("vulkan", is_prebuilt=False)
        monkeypatch.setattr(setup_llama.shutil, "which", lambda *_a, **_k: "/bin/true")
        plan = plan_build("vulkan", is_prebuilt=False)
        assert plan.environment["CMAKE_ARGS"] == "-DGGML_VULKAN=on"

    def test_cpu_needs_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(setup_llama, "default_backend", lambda: "cpu")
        plan = plan_build("cpu", is_prebuilt=False)
        assert "CMAKE_ARGS" not in plan.environment
        assert plan.is_usual

    def test_a_compiler_that_breaks_amx_builds_without_it(self, monkeypatch, capsys) -> None:
        monkeypatch.setattr(setup_llama, "find_compiler", lambda: "c++")
        monkeypatch.setattr(setup_llama, "amx_build_flags", lambda _version: "-mno-amx-tile")
        monkeypatch.setenv("CXXFLAGS", "-O2")
        plan = plan_build("cpu", is_prebuilt=False)
        assert plan.environment["CXXFLAGS"] == "-O2 -mno-amx-tile"
        assert "AMX" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("backend", "driver", "expected"),
        [
            ("cpu", "", "whl/cpu"),
            ("metal", "", "whl/metal"),
            ("vulkan", "", "whl/vulkan"),
            ("cuda", "", "whl/cu124"),
            ("cuda", "| CUDA Version: 12.2  |", "whl/cu122"),
            ("cuda", "| CUDA Version: 12.9  |", "whl/cu125"),
            ("cuda", "| CUDA Version: 13.0  |", "whl/cu130"),
            ("cuda", "| CUDA Version: 14.1  |", "whl/cu132"),
        ],
    )
    def test_wheels(self, backend: str, driver: str, expected: str) -> None:
        assert prebuilt_index(backend, driver).endswith(expected)

    def test_wheels_for_an_old_driver(self) -> None:
        with pytest.raises(SetupError, match="update the driver"):
            prebuilt_index("cuda", "CUDA Version: 10.2")

    def test_compiler(self, tmp_path: Path) -> None:
        assert find_compiler({"PATH": str(tmp_path)}) is None
        if os.name != "nt":
            (tmp_path / "my-c++").write_text("#!/bin/sh\n")
            (tmp_path / "my-c++").chmod(0o755)
            found = find_compiler({"PATH": str(tmp_path), "CXX": "my-c++ -O2"})
            assert found == "my-c++ -O2"


class TestWanted:
    def test_project_file(self) -> None:
        assert llama_requirement(PROJECT).startswith("llama-cpp-python>=")
        assert "dev" in known_extras(PROJECT)
        assert known_extras("[project]\nname = 'x'\n") == set()
        with pytest.raises(SetupError):
            llama_requirement("")

    def test_a_fresh_start(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("CMAKE_ARGS", raising=False)
        wanted = wanted_note(options(extras="dev,no-such-extra"), Note(), PROJECT, ROOT)
        assert (wanted.backend, wanted.prebuilt) == (default_backend(), False)
        assert wanted.extras == ["dev"]

    def test_what_is_not_said_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("CMAKE_ARGS", raising=False)
        note = Note(backend="cuda", prebuilt=True, cmake_args="-DX=1")
        wanted = wanted_note(options(), note, PROJECT, ROOT)
        assert (wanted.backend, wanted.prebuilt, wanted.cmake_args) == ("cuda", True, "-DX=1")

    def test_another_back_end_is_compiled_unless_said(self) -> None:
        note = Note(backend="cuda", prebuilt=True)
        assert not wanted_note(options(backend="CPU"), note, PROJECT, ROOT).prebuilt
        assert wanted_note(options(backend="cpu", prebuilt="1"), note, PROJECT, ROOT).prebuilt
        assert not wanted_note(options(prebuilt="0"), note, PROJECT, ROOT).prebuilt


class TestLlama:
    @pytest.fixture
    def pip_calls(self, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
        calls: list[list[str]] = []
        monkeypatch.setattr(
            setup_env, "run_with_progress", lambda command, *_a: calls.append(list(command)[6:])
        )
        monkeypatch.setattr(setup_env, "_require_compiler", lambda: None)
        monkeypatch.setattr(setup_env, "_has_broken_amx", lambda _venv: False)
        monkeypatch.setattr(setup_env, "default_backend", lambda: "cpu")
        monkeypatch.setattr(setup_llama, "default_backend", lambda: "cpu")
        return calls

    def ensure(self, monkeypatch, venv: Path, note: Note, wanted: Note, *, is_there: bool) -> None:
        monkeypatch.setattr(setup_env, "_has_package", lambda *_a: is_there)
        setup_env.ensure_llama(venv, note, wanted)

    def test_first_install_may_use_the_cache(self, monkeypatch, tmp_path, pip_calls) -> None:
        note, wanted = Note(root="r"), Note(root="r", backend="cpu", requirement="llama>=1")
        self.ensure(monkeypatch, tmp_path, note, wanted, is_there=False)
        assert pip_calls == [["-v", "llama>=1"]]
        assert read_note(tmp_path).backend == "cpu"

    def test_nothing_to_do(self, monkeypatch, tmp_path, pip_calls) -> None:
        note = Note(backend="cpu", requirement="llama>=1")
        wanted = Note(backend="cpu", requirement="llama>=1")
        self.ensure(monkeypatch, tmp_path, note, wanted, is_there=True)
        assert pip_calls == []

    def test_a_lost_package_is_installed_again(self, monkeypatch, tmp_path, pip_calls) -> None:
        note = Note(backend="cpu", requirement="llama>=1")
        wanted = Note(backend="cpu", requirement="llama>=1")
        self.ensure(monkeypatch, tmp_path, note, wanted, is_there=False)
        assert len(pip_calls) == 1

    def test_another_back_end_rebuilds_only_this_package(
        self, monkeypatch, tmp_path, pip_calls
    ) -> None:
        monkeypatch.setattr(setup_llama, "_check_tools", lambda *_a: {})
        note = Note(backend="cpu", requirement="llama>=1")
        wanted = Note(backend="vulkan", requirement="llama>=1")
        self.ensure(monkeypatch, tmp_path, note, wanted, is_there=True)
        flags = ["--no-cache-dir", "--force-reinstall", "--no-deps"]
        assert pip_calls == [["-v", "llama>=1", *flags]]

    def test_prebuilt(self, monkeypatch, tmp_path, pip_calls) -> None:
        wanted = Note(backend="cpu", prebuilt=True, requirement="llama>=1")
        self.ensure(monkeypatch, tmp_path, Note(), wanted, is_there=False)
        assert pip_calls[0][2] == "--extra-index-url"
        assert pip_calls[0][3].endswith("/whl/cpu")
        assert "--only-binary" in pip_calls[0]

    def test_a_cached_wheel_that_would_crash_is_compiled_afresh(
        self, monkeypatch, tmp_path, pip_calls
    ) -> None:
        monkeypatch.setattr(setup_env, "cpu_has_amx", lambda: True)
        monkeypatch.setattr(setup_env, "_has_broken_amx", lambda _venv: True)
        wanted = Note(backend="cpu", requirement="llama>=1")
        self.ensure(monkeypatch, tmp_path, Note(), wanted, is_there=False)
        assert "--no-cache-dir" not in pip_calls[0]
        assert "--no-cache-dir" in pip_calls[1]


class TestEnvironment:
    def test_made_found_and_mended(self, tmp_path: Path, capsys) -> None:
        root = tmp_path / "a root 模型"
        root.mkdir()
        venv = ensure_venv(root)
        assert is_working(venv)
        assert "making the virtual environment" in capsys.readouterr().out
        assert ensure_venv(root) == venv
        assert capsys.readouterr().out == ""
        venv_python(venv).unlink()
        venv_python(venv).write_text("broken")
        assert not is_working(venv)
        ensure_venv(root)
        assert is_working(venv)
        assert "does not work any more" in capsys.readouterr().out

    def test_one_made_elsewhere_is_not_used(self, tmp_path: Path, monkeypatch) -> None:
        venv = tmp_path / ".venv"
        venv.mkdir()
        write_note(venv, Note(root="/somewhere/else"))
        made = []

        def make(command, **_kwargs):
            made.append(command)
            (tmp_path / ".venv").mkdir(exist_ok=True)
            return subprocess.CompletedProcess(command, 0, "", "")

        monkeypatch.setattr(setup_env, "is_working", lambda _venv: True)
        monkeypatch.setattr(setup_env.subprocess, "run", make)
        ensure_venv(tmp_path)
        assert len(made) == 1

    def test_a_missing_venv_module_is_installed_by_root(self, tmp_path, monkeypatch) -> None:
        installed = []
        monkeypatch.setattr(setup_env, "install_debian_package", lambda *a: installed.append(a))
        working = iter([False, True])
        monkeypatch.setattr(setup_env, "is_working", lambda _venv: next(working))

        def make(command, **_kwargs):
            (tmp_path / ".venv").mkdir(exist_ok=True)
            return subprocess.CompletedProcess(command, 0, "", "")

        monkeypatch.setattr(setup_env.subprocess, "run", make)
        ensure_venv(tmp_path)
        assert installed[0][1].endswith("-venv")

    def test_packages_without_being_root(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(setup_env.shutil, "which", lambda _name: "/usr/bin/apt-get")
        monkeypatch.setattr(setup_env.os, "geteuid", lambda: 1000, raising=False)
        with pytest.raises(SetupError, match=r"sudo apt-get install python3\.11-venv"):
            install_debian_package("venv", "python3.11-venv")

    def test_packages_without_apt(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(setup_env.shutil, "which", lambda _name: None)
        with pytest.raises(SetupError, match="a C\\+\\+ compiler is missing"):
            install_debian_package("a C++ compiler", "build-essential")

    @pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"unknown": 1}', b"\xff"])
    def test_a_damaged_note_means_nothing_is_installed(self, tmp_path, content: bytes) -> None:
        (tmp_path / "racer-setup.json").write_bytes(content)
        assert read_note(tmp_path) == Note()

    def test_windows_layout(self, tmp_path: Path) -> None:
        (tmp_path / "Scripts").mkdir()
        (tmp_path / "Scripts" / "python.exe").write_text("")
        assert venv_python(tmp_path).name == "python.exe"


class TestProgress:
    def test_failure_shows_the_reason_and_the_log(self, tmp_path: Path) -> None:
        log = tmp_path / "setup.log"
        code = "print('[3/9] Building'); print('fatal error: no such file'); raise SystemExit(3)"
        with pytest.raises(SetupError) as caught:
            run_with_progress([sys.executable, "-c", code], {}, log, "compiling")
        assert "compiling failed" in str(caught.value)
        assert "fatal error: no such file" in str(caught.value)
        assert str(log) in str(caught.value)
        assert "[3/9] Building" in log.read_text()

    def test_a_long_run_shows_that_it_lives(self, tmp_path, monkeypatch) -> None:
        monkeypatch.setattr(setup_llama, "_HEARTBEAT_SECONDS", 0.05)
        seen = tmp_path / "seen"

        class Output(io.StringIO):
            def write(self, text: str) -> int:
                if "step 42%" in text:
                    seen.touch()
                return super().write(text)

        output = Output()
        monkeypatch.setattr(sys, "stdout", output)
        # It goes on until that was said, however long that takes.
        code = (
            "import pathlib, time; print('[ 42%] Building CXX', flush=True)\n"
            f"while not pathlib.Path({str(seen)!r}).exists(): time.sleep(0.02)"
        )
        run_with_progress([sys.executable, "-c", code], {}, tmp_path / "log", "compiling")
        assert re.search(r"compiling: \d+:\d\d, step 42%", output.getvalue())

    def test_the_environment_is_added(self, tmp_path: Path) -> None:
        code = "import os; print(os.environ['CMAKE_ARGS'])"
        log = tmp_path / "log"
        run_with_progress([sys.executable, "-c", code], {"CMAKE_ARGS": "-DA=1 -DB=2"}, log, "x")
        assert log.read_text().strip() == "-DA=1 -DB=2"
