"""Models are found, fetched whole or not at all, and fetched once."""

import hashlib
import os
import shutil
import threading
import zipfile
from collections import namedtuple
from pathlib import Path

import pytest

from racer_local.errors import ModelLoadError
from racer_local.models import fetch as model_fetch
from racer_local.models import store as model_store
from racer_local.models.catalog import Catalog, ModelEntry, ModelPart
from racer_local.models.store import default_model_path, ensure_model, models_folder, resolve_model

CONTENT = b"GGUF" + bytes(range(256)) * 64
HALF = len(CONTENT) // 2


def make_wheel(folder: Path, name: str, member: str, content: bytes) -> Path:
    """Write a wheel that pip takes."""
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


@pytest.fixture
def entry() -> ModelEntry:
    parts = tuple(
        ModelPart(requirement=f"racer_test_part{i}==1.0", member=f"p/m.{i}", download_bytes=1000)
        for i in (1, 2)
    )
    return ModelEntry(
        name="test-model",
        title="Test",
        file="Test.gguf",
        size_bytes=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        licence="MIT",
        note="",
        source="",
        parts=parts,
    )


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Serve both parts from a folder; the network is never asked."""
    folder = tmp_path / "wheels"
    make_wheel(folder, "racer_test_part1", "p/m.1", CONTENT[:HALF])
    make_wheel(folder, "racer_test_part2", "p/m.2", CONTENT[HALF:])
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: ModelEntry) -> Path:
    """Make an empty models folder the place where models are kept, and `entry` the catalog."""
    folder = tmp_path / "models folder 模型"
    monkeypatch.setenv("RACER_MODELS_DIR", str(folder))
    catalog = Catalog(default=entry.name, models={entry.name: entry})
    monkeypatch.setattr(model_store, "load_catalog", lambda: catalog)
    return folder


def leftovers(folder: Path) -> set[str]:
    """Return all names below the models folder, lock files aside."""
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return {name.replace("\\", "/") for name in names if not name.endswith(".lock")}


class TestFetch:
    def test_parts_are_joined_and_nothing_else_remains(
        self, folder: Path, wheels: Path, entry: ModelEntry
    ) -> None:
        seen: list[tuple[int, int]] = []
        path = ensure_model(entry, lambda done, total: seen.append((done, total)))
        assert path == folder / "Test.gguf"
        assert path.read_bytes() == CONTENT
        assert leftovers(folder) == {"Test.gguf", ".cache/Test.gguf.verified.json"}
        assert seen == sorted(seen)
        assert seen[-1] == (2000, 2000)

    def test_a_model_that_is_there_is_not_fetched(
        self, folder: Path, entry: ModelEntry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder.mkdir()
        (folder / "Test.gguf").write_bytes(CONTENT)
        monkeypatch.setattr(model_store, "fetch_model", pytest.fail)
        assert ensure_model(entry) == folder / "Test.gguf"

    def test_the_checksum_is_computed_once(
        self, folder: Path, entry: ModelEntry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder.mkdir()
        (folder / "Test.gguf").write_bytes(CONTENT)
        ensure_model(entry)
        monkeypatch.setattr(model_store, "_sha256", pytest.fail)
        ensure_model(entry)

    @pytest.mark.parametrize("wrong", [CONTENT[:HALF], CONTENT[:-1] + b"x", b"", CONTENT + b"x"])
    def test_a_wrong_file_is_replaced_even_after_it_was_right(
        self, folder: Path, wheels: Path, entry: ModelEntry, wrong: bytes
    ) -> None:
        folder.mkdir()
        (folder / "Test.gguf").write_bytes(CONTENT)
        path = ensure_model(entry)
        before = path.stat().st_mtime_ns
        path.write_bytes(wrong)
        os.utime(path, ns=(before + 1, before + 1))
        assert ensure_model(entry).read_bytes() == CONTENT

    def test_a_damaged_note_costs_only_time(self, folder: Path, entry: ModelEntry) -> None:
        folder.mkdir()
        (folder / "Test.gguf").write_bytes(CONTENT)
        ensure_model(entry)
        (folder / ".cache" / "Test.gguf.verified.json").write_bytes(b"\xff{")
        ensure_model(entry)

    def test_unexpected_content_is_dropped(
        self, folder: Path, wheels: Path, entry: ModelEntry
    ) -> None:
        make_wheel(wheels, "racer_test_part2", "p/m.2", b"x" * (len(CONTENT) - HALF))
        with pytest.raises(ModelLoadError, match="not the expected file"):
            ensure_model(entry)
        assert leftovers(folder) == set()

    def test_too_much_content_is_dropped(
        self, folder: Path, wheels: Path, entry: ModelEntry
    ) -> None:
        make_wheel(wheels, "racer_test_part2", "p/m.2", b"\0" * 5_000_000)
        with pytest.raises(ModelLoadError, match="larger than the model"):
            ensure_model(entry)
        assert leftovers(folder) == set()

    def test_a_wheel_without_the_part(self, folder: Path, wheels: Path, entry: ModelEntry) -> None:
        make_wheel(wheels, "racer_test_part2", "p/other", b"x")
        with pytest.raises(ModelLoadError, match="damaged"):
            ensure_model(entry)
        assert leftovers(folder) == set()

    def test_offline_says_how_to_do_it_by_hand(
        self, folder: Path, wheels: Path, entry: ModelEntry
    ) -> None:
        shutil.rmtree(wheels)
        wheels.mkdir()
        with pytest.raises(ModelLoadError) as caught:
            ensure_model(entry)
        line = str(caught.value)
        assert "\n" not in line
        assert "put the file Test.gguf into" in line
        assert str(folder) in line
        assert leftovers(folder) == set()

    def test_no_pip(
        self, folder: Path, entry: ModelEntry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "pip.py").write_text("raise SystemExit('/usr/bin/python: No module named pip')")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        with pytest.raises(ModelLoadError, match="ensurepip"):
            ensure_model(entry)

    def test_a_full_disk_is_noticed_first(
        self, folder: Path, entry: ModelEntry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        usage = namedtuple("usage", "total used free")
        monkeypatch.setattr(model_fetch.shutil, "disk_usage", lambda _path: usage(9, 8, 1))
        monkeypatch.setattr(model_fetch, "_download", pytest.fail)
        with pytest.raises(ModelLoadError, match="free space"):
            ensure_model(entry)

    def test_a_disk_that_fills_up_leaves_nothing(
        self, folder: Path, wheels: Path, entry: ModelEntry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_args: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(model_fetch, "_append_member", full)
        with pytest.raises(ModelLoadError, match="No space left"):
            ensure_model(entry)
        assert leftovers(folder) == set()

    def test_ctrl_c_leaves_nothing_and_no_process(
        self, folder: Path, wheels: Path, entry: ModelEntry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        started = []
        popen = model_fetch.subprocess.Popen

        def remember(*args, **kwargs):
            started.append(popen(*args, **kwargs))
            return started[-1]

        def interrupt(_done: int, _total: int) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(model_fetch.subprocess, "Popen", remember)
        with pytest.raises(KeyboardInterrupt):
            ensure_model(entry, interrupt)
        assert leftovers(folder) == set()
        assert [process.poll() is not None for process in started] == [True]
        monkeypatch.undo()

    def test_what_a_killed_fetch_left_is_swept(
        self, folder: Path, wheels: Path, entry: ModelEntry
    ) -> None:
        stale = folder / ".cache" / "fetch-test-model-abc"
        stale.mkdir(parents=True)
        (stale / "Test.gguf").write_bytes(b"half")
        ensure_model(entry)
        assert not stale.exists()

    def test_many_at_once_fetch_once(
        self, folder: Path, wheels: Path, entry: ModelEntry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fetches = []
        fetch = model_store.fetch_model

        def counting(*args: object) -> None:
            fetches.append(1)
            fetch(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(model_store, "fetch_model", counting)
        threads = [threading.Thread(target=ensure_model, args=(entry,)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert fetches == [1]
        assert (folder / "Test.gguf").read_bytes() == CONTENT

    def test_a_folder_that_cannot_be_made(
        self, entry: ModelEntry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("RACER_MODELS_DIR", str(tmp_path / "file" / "models"))
        with pytest.raises(ModelLoadError, match="RACER_MODELS_DIR"):
            ensure_model(entry)


class TestResolve:
    @pytest.mark.parametrize(
        "name", ["a.gguf", "my model (2).gguf", "模型.gguf", "🤖.gguf", "odd'name.gguf", "noext"]
    )
    def test_an_existing_path_comes_back_as_given(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        (tmp_path / name).write_bytes(b"")
        monkeypatch.chdir(tmp_path)
        assert resolve_model(name) == Path(name)
        assert resolve_model(tmp_path / name) == tmp_path / name
        assert resolve_model(f'"{tmp_path / name}"') == tmp_path / name

    def test_home(self, folder: Path, isolated_home: Path) -> None:
        (isolated_home / "m.gguf").write_bytes(b"")
        assert resolve_model("~/m.gguf") == isolated_home / "m.gguf"

    def test_names(self, folder: Path, wheels: Path, tmp_path: Path, monkeypatch) -> None:
        # A folder of the same name does not hide the model.
        (tmp_path / "test-model").mkdir()
        monkeypatch.chdir(tmp_path)
        folder.mkdir()
        (folder / "Test.gguf").write_bytes(CONTENT)
        for name in ("test-model", "Test-Model", None, "", "  "):
            assert resolve_model(name) == folder / "Test.gguf"
        assert default_model_path() == folder / "Test.gguf"

    def test_files_in_the_models_folder(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "Mine.gguf").write_bytes(b"")
        assert resolve_model("Mine.gguf") == folder / "Mine.gguf"
        assert resolve_model("Mine") == folder / "Mine.gguf"

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("nothing", "known names: test-model"),
            ("test-modle", "did you mean test-model?"),
            ("some/Repo-GGUF", "models pull some/Repo-GGUF"),
            ("./near/Modell.gguf", "did you mean './near/Model.gguf'?"),
            ("./near", "is a folder; give the path of a GGUF file, for example"),
            ("./empty", "it holds none"),
            ("/no/such/file", "no model file at"),
            ("~nobody-of-this-name/m.gguf", "no model file at"),
            ("a\0b.gguf", "no model file at"),
            ("x" * 10_000, "no model named"),
            ("line\nbreak\x1b[31m.gguf", "no model file at"),
        ],
    )
    def test_a_clear_line_otherwise(
        self, folder: Path, tmp_path: Path, monkeypatch, text: str, expected: str
    ) -> None:
        (tmp_path / "near").mkdir()
        (tmp_path / "empty").mkdir()
        (tmp_path / "near" / "Model.gguf").write_bytes(b"")
        monkeypatch.chdir(tmp_path)
        with pytest.raises(ModelLoadError) as caught:
            resolve_model(text)
        line = str(caught.value).replace("near\\Model", "./near/Model")
        assert expected.replace("./", "") in line.replace("./", "")
        assert line.isprintable()
        assert len(line) < 700

    @pytest.mark.skipif(os.name == "nt", reason="such paths are at home there")
    def test_a_windows_path_elsewhere(self, folder: Path) -> None:
        with pytest.raises(ModelLoadError, match=r"/mnt/c/my models/m\.gguf"):
            resolve_model("C:\\my models\\m.gguf")


class TestModelsFolder:
    def test_of_a_checkout(self) -> None:
        assert models_folder().name == "models"
        assert (models_folder() / "catalog.toml").is_file()

    def test_of_an_installed_package(
        self, isolated_home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(model_store, "checkout_folder", lambda: None)
        assert isolated_home in models_folder().parents


class TestCommand:
    def test_prints_the_path(self, folder: Path, wheels: Path, capsys) -> None:
        assert model_store.main(["test-model"]) == 0
        out, err = capsys.readouterr()
        assert out.strip() == str(folder / "Test.gguf")
        # One at the start, one at the end, and more where it takes long.
        assert err.count("fetching test-model: 0 of 0 MB") >= 2

    def test_one_line_on_failure(self, folder: Path, capsys) -> None:
        assert model_store.main(["nope"]) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("error: no model named 'nope'")

    def test_ctrl_c(self, folder: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupt(*_args: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(model_store, "ensure_model", interrupt)
        assert model_store.main([]) == 130
