"""The five stores on three systems, sound and broken; looking changes nothing."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from racer_local.errors import ModelLoadError
from racer_local.models.catalog import load_catalog
from racer_local.models.names import find_installed, find_pulled, match_name, nothing_fits
from racer_local.models.store import resolve_model
from racer_local.models.stores.base import FoundModel, is_side_file, quant_of
from racer_local.models.stores.find import checked, find_models
from racer_local.models.stores.places import Places, find_places

MODEL = "application/vnd.ollama.image.model"
no_symlinks = pytest.mark.skipif(os.name == "nt", reason="links need rights there")


@pytest.fixture
def lock(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Make a folder unreadable, for root as well."""
    listdir = os.listdir
    locked: set[str] = set()

    def guarded(path: str | Path = ".") -> list[str]:
        if str(path) in locked:
            raise PermissionError(13, "Permission denied", str(path))
        return listdir(path)

    monkeypatch.setattr(os, "listdir", guarded)
    return lambda path: locked.add(str(path))


@pytest.fixture
def gguf(tiny_path) -> bytes:
    return tiny_path("llama").read_bytes()


def put(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def put_ollama(root: Path, name: str, content: bytes, **changes: object) -> Path:
    digest = hashlib.sha256(content).hexdigest()
    blob = put(root / "blobs" / f"sha256-{digest}", content)
    layer = {"mediaType": MODEL, "digest": f"sha256:{digest}", "size": len(content), **changes}
    side = {"mediaType": "application/vnd.ollama.image.template", "digest": f"sha256:{'0' * 64}"}
    put(root / "manifests" / name, json.dumps({"schemaVersion": 2, "layers": [side, layer]}))
    return blob


def put_hub(root: Path, repo: str, file: str, content: bytes, commit: str = "c0ffee") -> Path:
    folder = root / f"models--{repo.replace('/', '--')}"
    blob = put(folder / "blobs" / hashlib.sha256(content).hexdigest(), content)
    put(folder / "refs" / "main", commit)
    link = folder / "snapshots" / commit / file
    link.parent.mkdir(parents=True, exist_ok=True)
    if os.name == "nt":
        link.write_bytes(content)
    else:
        link.symlink_to(os.path.relpath(blob, link.parent))
    return link


def snapshot_of(root: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.lstat().st_size, path.lstat().st_mtime_ns) for path in root.rglob("*")}


def by_name(places: Places) -> dict[str, FoundModel]:
    return {model.name: model for model in map(checked, find_models(places))}


# --- places ----------------------------------------------------------------------------------


class TestPlaces:
    def places(self, system: str, home: Path, **env: str) -> Places:
        return find_places(env, home, system, home / "root")

    def test_of_linux(self, tmp_path: Path) -> None:
        places = self.places("linux", tmp_path)
        assert places.ollama == [
            tmp_path / ".ollama/models",
            tmp_path / "root/usr/share/ollama/.ollama/models",
        ]
        assert places.lmstudio == [
            tmp_path / ".lmstudio/models",
            tmp_path / ".cache/lm-studio/models",
        ]
        assert places.hub == [tmp_path / ".cache/huggingface/hub"]
        assert places.llamacpp == [tmp_path / ".cache/llama.cpp"]
        assert places.jan == [tmp_path / ".local/share/Jan/data"]

    def test_of_macos(self, tmp_path: Path) -> None:
        places = self.places("darwin", tmp_path)
        assert places.ollama == [tmp_path / ".ollama/models"]
        assert places.hub == [tmp_path / ".cache/huggingface/hub"]
        assert places.llamacpp == [tmp_path / "Library/Caches/llama.cpp"]
        assert places.jan == [tmp_path / "Library/Application Support/Jan/data"]

    def test_of_windows(self, tmp_path: Path) -> None:
        local, roaming = tmp_path / "L", tmp_path / "R"
        places = self.places("win32", tmp_path, LOCALAPPDATA=str(local), APPDATA=str(roaming))
        assert places.ollama == [tmp_path / ".ollama/models"]
        assert places.hub == [tmp_path / ".cache/huggingface/hub"]
        assert places.llamacpp == [local / "llama.cpp"]
        assert places.jan == [roaming / "Jan/data"]
        bare = self.places("win32", tmp_path)
        assert bare.llamacpp == [tmp_path / "AppData/Local/llama.cpp"]
        assert bare.jan == [tmp_path / "AppData/Roaming/Jan/data"]

    @pytest.mark.parametrize(
        ("env", "expected"),
        [
            ({"HF_HUB_CACHE": "/h", "HF_HOME": "/x"}, "/h"),
            ({"HUGGINGFACE_HUB_CACHE": "/h", "HF_HOME": "/x"}, "/h"),
            ({"HF_HOME": "/x", "XDG_CACHE_HOME": "/y"}, "/x/hub"),
            ({"XDG_CACHE_HOME": "/y"}, "/y/huggingface/hub"),
            ({"HF_HOME": " ", "XDG_CACHE_HOME": "a\0b"}, "HOME/.cache/huggingface/hub"),
            ({"HF_HOME": "~/hf"}, "HOME/hf/hub"),
        ],
    )
    def test_the_hubs_variables_in_their_order(self, tmp_path: Path, env, expected: str) -> None:
        expected = expected.replace("HOME", str(tmp_path))
        assert find_places(env, tmp_path, "linux").hub == [Path(expected)]

    def test_other_variables(self, tmp_path: Path) -> None:
        env = {"OLLAMA_MODELS": "~/o", "LLAMA_CACHE": "/l"}
        places = find_places(env, tmp_path, "darwin")
        assert places.ollama == [tmp_path / "o"]
        assert places.llamacpp == [Path("/l")]
        assert Path("/l") in places.hub

    def test_lm_studios_pointer_and_settings(self, tmp_path: Path) -> None:
        moved, downloads = tmp_path / "moved", tmp_path / "downloads"
        put(tmp_path / ".lmstudio-home-pointer", f"{moved}\n")
        put(moved / "settings.json", json.dumps({"downloadsFolder": str(downloads)}))
        places = find_places({}, tmp_path, "linux")
        assert places.lmstudio[:3] == [downloads, moved / "models", tmp_path / ".lmstudio/models"]

    @pytest.mark.parametrize(
        "content", [b"", b"\xff", b"relative/path", b"[1", b"[" * 50_000, b"{}", b"x" * 3_000_000]
    )
    def test_odd_pointers_and_settings_are_passed_over(self, tmp_path: Path, content) -> None:
        put(tmp_path / ".lmstudio-home-pointer", content)
        put(tmp_path / ".lmstudio" / "settings.json", content)
        assert find_places({}, tmp_path, "linux").lmstudio[0] == tmp_path / ".lmstudio/models"


# --- what is in them -------------------------------------------------------------------------


class TestOllama:
    HOST = "registry.ollama.ai"

    def test_names_are_as_ollama_writes_them(self, tmp_path: Path, gguf: bytes) -> None:
        blob = put_ollama(tmp_path, f"{self.HOST}/library/tiny/latest", gguf)
        put_ollama(tmp_path, f"{self.HOST}/ada/tiny/1b-q4", gguf + b"1")
        put_ollama(tmp_path, "hf.co/org/Repo-GGUF/Q4_K_M", gguf + b"2")
        before = snapshot_of(tmp_path)
        models = by_name(Places(ollama=[tmp_path]))
        assert set(models) == {
            "ollama:tiny:latest",
            "ollama:ada/tiny:1b-q4",
            "ollama:hf.co/org/Repo-GGUF:Q4_K_M",
        }
        assert models["ollama:tiny:latest"].path == blob
        assert models["ollama:tiny:latest"].size_bytes == len(gguf)
        assert not any(model.problem for model in models.values())
        assert snapshot_of(tmp_path) == before

    @pytest.mark.parametrize(
        ("manifest", "problem"),
        [
            (b"", "manifest"),
            (b"{", "manifest"),
            (b"\xff\xfe", "manifest"),
            (b"[]", "no layers"),
            (b'{"layers": 1}', "no layers"),
            (b'{"layers": []}', "names no model"),
            (b'{"layers": [1, null]}', "names no model"),
            (b"[" * 100_000, "manifest"),
            (b" " * 50_000_000, "too large"),
            (json.dumps({"layers": [{"mediaType": MODEL}]}).encode(), "digest"),
            (
                json.dumps(
                    {"layers": [{"mediaType": "application/vnd.ollama.image.tensor"}]}
                ).encode(),
                "safetensors",
            ),
        ],
    )
    def test_a_manifest_that_cannot_be_used_says_why(
        self, tmp_path: Path, manifest: bytes, problem: str
    ) -> None:
        put(tmp_path / "manifests" / self.HOST / "library" / "bad" / "latest", manifest)
        [model] = find_models(Places(ollama=[tmp_path]))
        assert model.name == "ollama:bad:latest"
        assert problem in model.problem

    @pytest.mark.parametrize(
        "digest",
        [
            "sha256:../../../../../etc/passwd",
            "../secret",
            "sha256-" + "a" * 63,
            "sha256:" + "a" * 64 + "/../x",
            "sha256:" + "a" * 64 + "\n",
            "sha512:" + "a" * 64,
            7,
            None,
        ],
    )
    def test_a_digest_never_leads_out_of_the_store(
        self, tmp_path: Path, gguf: bytes, digest: object
    ) -> None:
        put(tmp_path / "secret", gguf)
        put_ollama(tmp_path / "store", f"{self.HOST}/library/evil/latest", gguf, digest=digest)
        [model] = find_models(Places(ollama=[tmp_path / "store"]))
        assert "its digest is not one" in model.problem
        with pytest.raises(ModelLoadError, match="cannot be used"):
            find_installed("ollama:evil", [model])

    def test_half_a_download_and_other_files(self, tmp_path: Path, gguf: bytes) -> None:
        blob = put_ollama(tmp_path, f"{self.HOST}/library/half/latest", gguf)
        blob.rename(blob.with_name(blob.name + "-partial"))
        put_ollama(tmp_path, f"{self.HOST}/library/noise/latest", b"no gguf at all")
        put(tmp_path / "manifests" / "stray", "x")
        models = by_name(Places(ollama=[tmp_path]))
        assert "not downloaded to the end" in models["ollama:half:latest"].problem
        assert "not a GGUF file" in models["ollama:noise:latest"].problem
        assert len(models) == 2

    def test_a_store_of_another_user(self, tmp_path: Path, gguf: bytes, lock) -> None:
        put_ollama(tmp_path, f"{self.HOST}/library/tiny/latest", gguf)
        lock(tmp_path / "manifests")
        [model] = find_models(Places(ollama=[tmp_path]))
        assert model.problem == "permission denied"


class TestHub:
    def test_the_newest_revision_is_listed(self, tmp_path: Path, gguf: bytes) -> None:
        put_hub(tmp_path, "org/Repo-GGUF", "old-Q4_K_M.gguf", gguf, "0ld")
        link = put_hub(tmp_path, "org/Repo-GGUF", "new-Q4_K_M.gguf", gguf)
        put_hub(tmp_path, "org/Repo-GGUF", "new-Q8_0.gguf", gguf + b"8")
        put_hub(tmp_path, "org/Repo-GGUF", "mmproj-model-f16.gguf", gguf)
        put(tmp_path / "models--org--Repo-GGUF/blobs/abc.incomplete", gguf[:100])
        put_hub(tmp_path, "org/safetensors-only", "model.safetensors", b"x")
        put(tmp_path / "models--stray", "")
        before = snapshot_of(tmp_path)
        models = by_name(Places(hub=[tmp_path]))
        assert set(models) == {"org/Repo-GGUF:Q4_K_M", "org/Repo-GGUF:Q8_0"}
        assert models["org/Repo-GGUF:Q4_K_M"].path == link
        assert not any(model.problem for model in models.values())
        assert snapshot_of(tmp_path) == before

    def test_split_files_are_one(self, tmp_path: Path, gguf: bytes) -> None:
        for i in (1, 2, 3):
            put_hub(tmp_path, "org/Big", f"Q4/big-Q4_0-0000{i}-of-00003.gguf", gguf + bytes([i]))
        put_hub(tmp_path, "org/Cut", "cut-00001-of-00002.gguf", gguf)
        put_hub(tmp_path, "org/Headless", "cut-00002-of-00003.gguf", gguf)
        put_hub(tmp_path, "org/Headless", "cut-00003-of-00003.gguf", gguf)
        found = {model.name: model for model in find_models(Places(hub=[tmp_path]))}
        big = found["org/Big:Q4_0"]
        assert (big.n_parts, big.size_bytes) == (3, 3 * len(gguf) + 3)
        assert big.path.name == "big-Q4_0-00001-of-00003.gguf"
        assert found["org/Cut/cut-00001-of-00002.gguf"].problem == "1 of 2 parts are missing"
        assert "first part" in found["org/Headless/cut-00002-of-00003.gguf"].problem
        assert len(found) == 3

    @no_symlinks
    def test_broken_and_circular_links(self, tmp_path: Path, gguf: bytes) -> None:
        link = put_hub(tmp_path, "org/Gone", "gone-Q4_0.gguf", gguf)
        link.resolve().unlink()
        (link.parent / "self.gguf").symlink_to("self.gguf")
        (link.parent / "loop").symlink_to(link.parent, target_is_directory=True)
        (link.parent / "pipe.gguf").symlink_to("/dev/null")
        found = {model.path.name: model for model in find_models(Places(hub=[tmp_path]))}
        assert found["gone-Q4_0.gguf"].problem == "a link to a file that is gone"
        assert found["self.gguf"].problem
        assert found["pipe.gguf"].problem == "no regular file"
        assert len(found) == 3

    @pytest.mark.parametrize("ref", ["../../../secret", "..", "/etc", "a/b", "", "\n", "x" * 5000])
    def test_a_revision_never_leads_out_of_the_cache(
        self, tmp_path: Path, gguf: bytes, ref: str
    ) -> None:
        put(tmp_path / "secret" / "secret-Q4_0.gguf", gguf)
        link = put_hub(tmp_path / "hub", "org/Evil", "fine-Q4_0.gguf", gguf)
        put(tmp_path / "hub" / "models--org--Evil" / "refs" / "main", ref)
        [model] = find_models(Places(hub=[tmp_path / "hub"]))
        assert model.path == link

    def test_a_folder_that_cannot_be_read(self, tmp_path: Path, gguf: bytes, lock) -> None:
        link = put_hub(tmp_path, "org/Locked", "sub/locked-Q4_0.gguf", gguf)
        lock(link.parent)
        [model] = find_models(Places(hub=[tmp_path]))
        assert model.problem == "permission denied"


def test_lm_studio_llama_cpp_and_jan(tmp_path: Path, gguf: bytes) -> None:
    studio, flat, jan = tmp_path / "studio", tmp_path / "flat", tmp_path / "jan"
    put(studio / "pub" / "Repo-GGUF" / "Model-Q4_K_M.gguf", gguf)
    put(studio / "pub" / "Repo-GGUF" / "mmproj-Model-f16.gguf", gguf)
    put(studio / "pub" / "Repo-GGUF" / "Model-Q8_0.gguf.part", gguf)
    put(studio / "loose.gguf", gguf[:-50])
    put(flat / "org_Repo-GGUF_flat-Q5_K_M.gguf", gguf)
    put(flat / "org_x.gguf.downloadInProgress", gguf)
    put(flat / "eagle3-x.gguf", gguf)
    put(jan / "llamacpp/models/org/repo/model.gguf", gguf)
    put(
        jan / "llamacpp/models/org/repo/model.yml",
        "name: x\nmodel_path: llamacpp/models/org/repo/model.gguf\n",
    )
    put(jan / "llamacpp/models/win/model.gguf", gguf)
    put(
        jan / "llamacpp/models/win/model.yml", 'model_path: "llamacpp\\models\\win\\model.gguf"\r\n'
    )
    put(jan / "llamacpp/models/evil/model.yml", "model_path: ../../secret.gguf\n")
    put(jan / "llamacpp/models/gone/model.yml", "model_path: llamacpp/models/gone/model.gguf\n")
    put(jan / "llamacpp/models/odd/model.yml", b"\xff\xfe")
    put(jan / "llamacpp/models/huge/model.yml", b" " * 50_000_000)
    put(tmp_path / "secret.gguf", gguf)
    before = snapshot_of(tmp_path)
    models = by_name(Places(lmstudio=[studio], llamacpp=[flat], jan=[jan]))
    problems = {name: model.problem for name, model in models.items()}
    assert {name for name, problem in problems.items() if not problem} == {
        "lmstudio:pub/Repo-GGUF/Model-Q4_K_M.gguf",
        "llamacpp:org_Repo-GGUF_flat-Q5_K_M.gguf",
        "jan:org/repo",
        "jan:win",
    }
    assert "cut short" in problems["lmstudio:loose.gguf"]
    assert "leads out" in problems["jan:evil"]
    assert "gone" in problems["jan:gone"]
    assert "cannot be read" in problems["jan:odd"]
    assert "too large" in problems["jan:huge"]
    assert len(problems) == 9
    assert snapshot_of(tmp_path) == before


def test_stores_that_are_not_there_or_are_files_hold_nothing(tmp_path: Path) -> None:
    file = put(tmp_path / "file", "x")
    for root in (tmp_path / "none", file):
        places = Places(ollama=[root], lmstudio=[root], hub=[root], llamacpp=[root], jan=[root])
        assert find_models(places) == []


@pytest.mark.parametrize(
    ("name", "quant"),
    [
        ("Qwen3-4B-Q4_K_M.gguf", "Q4_K_M"),
        ("model.q8_0.gguf", "Q8_0"),
        ("x-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("x-IQ3_XXS.gguf", "IQ3_XXS"),
        ("x-bf16.gguf", "BF16"),
        ("x-mxfp4.gguf", "MXFP4"),
        ("Phi-3-mini-4k-instruct-q4.gguf", "Q4"),
        ("plain.gguf", ""),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
    ],
)
def test_the_quantization_is_read_off_the_name(name: str, quant: str) -> None:
    assert quant_of(name) == quant


def test_companions_are_no_models() -> None:
    for name in ("mmproj-F16.gguf", "model-mmproj-f16.gguf", "mtp-x.gguf", "x.imatrix.gguf"):
        assert is_side_file(name)
    for name in ("gemma-3-4b-it-Q4_K_M.gguf", "Florence.gguf", "imagine-7b.gguf"):
        assert not is_side_file(name)


# --- names -----------------------------------------------------------------------------------


class TestNames:
    @pytest.fixture
    def models(self, tmp_path: Path, gguf: bytes) -> list[FoundModel]:
        hub, ollama, studio = tmp_path / "hub", tmp_path / "ollama", tmp_path / "studio"
        put_hub(hub, "Qwen/Qwen3-4B-GGUF", "Qwen3-4B-Q4_K_M.gguf", gguf)
        put_hub(hub, "Qwen/Qwen3-4B-GGUF", "Qwen3-4B-Q8_0.gguf", gguf + b"1")
        put_hub(hub, "other/Tiny-GGUF", "tiny-chat-Q4_0.gguf", gguf + b"2")
        put_ollama(ollama, "registry.ollama.ai/library/llama3.2/latest", gguf + b"3")
        put_ollama(ollama, "registry.ollama.ai/library/llama3.2/1b", gguf + b"4")
        put_ollama(ollama, "registry.ollama.ai/library/broken/latest", gguf, digest="../x")
        put(studio / "pub" / "Tiny-GGUF" / "tiny-base-Q4_0.gguf", gguf + b"5")
        put(studio / "Qwen" / "Qwen3-4B-GGUF" / "Qwen3-4B-Q8_0.gguf", gguf + b"1")
        return find_models(Places(hub=[hub], ollama=[ollama], lmstudio=[studio]))

    @pytest.mark.parametrize(
        ("text", "name"),
        [
            ("Qwen/Qwen3-4B-GGUF", "Qwen/Qwen3-4B-GGUF:Q4_K_M"),
            ("qwen/qwen3-4b-gguf:q8_0", "Qwen/Qwen3-4B-GGUF:Q8_0"),
            ("qwen3-4b", "Qwen/Qwen3-4B-GGUF:Q4_K_M"),
            ("Qwen3-4B:Q8_0", "Qwen/Qwen3-4B-GGUF:Q8_0"),
            ("Qwen3-4B-Q8_0.gguf", "Qwen/Qwen3-4B-GGUF:Q8_0"),
            ("ollama:llama3.2", "ollama:llama3.2:latest"),
            ("ollama:llama3.2:1b", "ollama:llama3.2:1b"),
            ("llama3.2:1b", "ollama:llama3.2:1b"),
            ("llama3.2", "ollama:llama3.2:latest"),
            ("lmstudio:pub/Tiny-GGUF", "lmstudio:pub/Tiny-GGUF/tiny-base-Q4_0.gguf"),
            ("lmstudio:tiny-base-q4_0", "lmstudio:pub/Tiny-GGUF/tiny-base-Q4_0.gguf"),
            (
                "lmstudio:qwen/qwen3-4b-gguf:q8_0",
                "lmstudio:Qwen/Qwen3-4B-GGUF/Qwen3-4B-Q8_0.gguf",
            ),
            ("tiny-chat", "other/Tiny-GGUF:Q4_0"),
            ("llama", "ollama:llama3.2:latest"),
        ],
    )
    def test_a_name_finds_its_model(self, models, text: str, name: str) -> None:
        assert [model.name for model in match_name(text, models)] == [name]

    def test_an_ambiguous_name_lists_what_it_could_be(self, models) -> None:
        with pytest.raises(ModelLoadError, match=r"any of 'lmstudio:pub/Tiny.*'other/Tiny-GGUF"):
            find_installed("tiny", models)

    def test_a_broken_one_says_why(self, models) -> None:
        with pytest.raises(
            ModelLoadError, match=r"'ollama:broken:latest' cannot be used: .*digest"
        ):
            find_installed("broken", models)

    @pytest.mark.parametrize(
        ("text", "advice"),
        [
            ("qwen3-4", "did you mean qwen3-4b"),
            ("ollama:lama3.2", "did you mean ollama:llama3.2"),
            ("ollama:zzz", "'racer-local models find'"),
            ("new/Repo:Q4_0", "racer-local models pull new/Repo:Q4_0"),
            ("zzzzzz", "known names"),
            ("\x1b[2J" * 500, "known names"),
        ],
    )
    def test_an_unknown_name_gets_advice(self, models, text: str, advice: str) -> None:
        line = nothing_fits(text, models, load_catalog())
        assert advice in line
        assert line.isprintable()

    def test_the_whole_way_from_the_environment(
        self, tmp_path: Path, gguf: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        blob = put_ollama(tmp_path, "registry.ollama.ai/library/mine/latest", gguf)
        monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
        assert resolve_model("ollama:mine") == blob

    def test_a_catalog_entry_of_the_hub(
        self, tmp_path: Path, gguf: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
        entry = load_catalog().models["qwen3-0.6b"]
        with pytest.raises(ModelLoadError, match=r"models pull qwen3-0\.6b \(about 0\.6 GB\)"):
            find_pulled(entry)
        link = put_hub(tmp_path, "Qwen/Qwen3-0.6B-GGUF", "Qwen3-0.6B-Q8_0.gguf", gguf)
        assert resolve_model("Qwen3-0.6B") == link


@pytest.fixture
def cli() -> Callable[..., object]:
    from click.testing import CliRunner

    from racer_local.cli import cli as group

    return lambda *arguments, **more: CliRunner().invoke(group, ["models", *arguments], **more)


class TestCommands:
    @pytest.fixture
    def store(self, tmp_path: Path, gguf: bytes, monkeypatch: pytest.MonkeyPatch) -> Path:
        put_ollama(tmp_path, "registry.ollama.ai/library/mine/latest", gguf)
        put(tmp_path / "manifests/registry.ollama.ai/library/bad/latest", "{")
        monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
        monkeypatch.setenv("RACER_MODELS_DIR", str(tmp_path / "own"))
        return tmp_path

    def test_list(self, store: Path, cli) -> None:
        done = cli("list")
        assert done.exit_code == 0
        for name in load_catalog().models:
            assert name in done.output
        assert "ollama:mine:latest" in done.output
        assert "1 more cannot be used" in done.output

    def test_find(self, store: Path, cli) -> None:
        done = cli("find")
        assert "ollama:mine:latest" in done.output
        assert "cannot be used: its manifest" in done.output
        rows = json.loads(cli("find", "--json").output)
        mine = [row for row in rows if row["path"].startswith(str(store))]
        assert {row["name"]: bool(row["problem"]) for row in mine} == {
            "ollama:mine:latest": False,
            "ollama:bad:latest": True,
        }

    def test_show(self, store: Path, cli) -> None:
        done = cli("show", "ollama:mine", "--ctx", "2048")
        assert done.exit_code == 0, done.output
        for word in ("llama", "F16", "context of 2,048 tokens", "tree drafting", "yes", "q8_0"):
            assert word in done.output
        assert "unquantized weights" in done.output
        assert "im_start" in cli("show", "ollama:mine", "--template").output

    def test_show_says_what_cannot_draft_or_be_used(self, tiny_path, cli) -> None:
        assert "cannot take back" in cli("show", str(tiny_path("mamba"))).output
        exact = cli("show", str(tiny_path("llama-q8_0"))).output
        assert "trees of 16 rows" in exact
        assert "turns text into vectors" in cli("show", str(tiny_path("bert"))).output

    def test_rm_leaves_alone_what_is_not_ours(self, store: Path, cli) -> None:
        before = snapshot_of(store)
        done = cli("rm", "ollama:mine", "--yes")
        assert done.exit_code != 0
        assert "was not fetched with racer-local" in str(done.exception)
        assert snapshot_of(store) == before

    def test_rm_asks_first(self, store: Path, cli) -> None:
        entry = load_catalog().models["smollm2-135m-instruct"]
        path = put(store / "own" / entry.file, b"x")
        assert cli("rm", entry.name, input="n\n").exit_code == 1
        assert path.exists()
        assert cli("rm", entry.name, input="y\n").exit_code == 0
        assert not path.exists()
