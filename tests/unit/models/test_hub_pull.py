"""Pulling from the hub: the hub's own library against a server on this machine."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from fake_hub import FakeHub

from racer_local.cli import cli
from racer_local.errors import ConfigError, ModelLoadError
from racer_local.models.hub import pull as pull_module
from racer_local.models.hub.choose import HubFile, Wanted, choose_files, parse_wanted
from racer_local.models.hub.ledger import pulled_files
from racer_local.models.hub.pull import pull
from racer_local.models.stores.find import find_models
from racer_local.models.stores.places import Places, find_places

REPO = "org/Tiny-GGUF"
WANTED = Wanted(REPO, "Q4_0")


@pytest.fixture
def content(tiny_path) -> bytes:
    return tiny_path("llama").read_bytes()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub cache 模型"))
    return tmp_path / "hub cache 模型"


@pytest.fixture
def hub(content: bytes, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    files = {
        "README.md": b"# tiny",
        "tiny-Q4_0.gguf": content,
        "tiny-Q8_0.gguf": content + b"8",
        "mmproj-F16.gguf": b"x",
        "F16/tiny-F16-00001-of-00002.gguf": content + b"a",
        "F16/tiny-F16-00002-of-00002.gguf": content + b"b",
    }
    server = FakeHub(REPO, files)
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    # No proxy between this machine and itself.
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield server
    server.close()


def leftovers(cache: Path) -> list[str]:
    return [path.name for path in cache.rglob("*") if path.name.endswith(".gguf")]


class TestPull:
    def test_into_the_cache_where_it_is_found(self, hub: FakeHub, content: bytes) -> None:
        seen: list[tuple[int, int]] = []
        pulled = pull(WANTED, lambda done, total: seen.append((done, total)))
        assert pulled.path.read_bytes() == content
        assert (pulled.is_new, pulled.is_verified, pulled.size_bytes) == (True, True, len(content))
        assert all(0 <= done <= total == len(content) for done, total in seen)
        [model] = find_models(Places(hub=find_places().hub))
        assert (model.name, model.path) == ("org/Tiny-GGUF:Q4_0", pulled.path)
        assert pulled_files() == {str(pulled.path)}

    def test_what_is_there_is_not_fetched_again(self, hub: FakeHub) -> None:
        pull(WANTED)
        hub.requests.clear()
        assert not pull(WANTED).is_new
        assert hub.ranges() == []

    def test_all_parts_of_a_split_model(self, hub: FakeHub, content: bytes) -> None:
        pulled = pull(Wanted(REPO, "F16"))
        assert pulled.path.name == "tiny-F16-00001-of-00002.gguf"
        assert pulled.size_bytes == 2 * len(content) + 2
        [model] = find_models(Places(hub=find_places().hub))
        assert (model.n_parts, model.problem) == (2, "")

    def test_a_cut_connection_goes_on_where_it_stopped(self, hub: FakeHub, content: bytes) -> None:
        # The library keeps what comes in pieces of 10 MB.
        large = content + b"\0" * (24 << 20)
        hub.files["tiny-Q4_0.gguf"] = large
        hub.cut_after = 15 << 20
        assert pull(WANTED).path.read_bytes() == large
        assert hub.ranges() == [None, f"bytes={10 << 20}-"]

    def test_a_later_run_goes_on_too(self, hub: FakeHub, cache: Path, content: bytes) -> None:
        digest = hashlib.sha256(content).hexdigest()
        partial = cache / "models--org--Tiny-GGUF/blobs" / f"{digest}.racer-local.incomplete"
        partial.parent.mkdir(parents=True)
        partial.write_bytes(content[:5000])
        assert pull(WANTED).path.read_bytes() == content
        assert hub.ranges() == ["bytes=5000-"]
        assert not partial.exists()

    def test_a_wrong_beginning_is_found_out(
        self, hub: FakeHub, cache: Path, content: bytes
    ) -> None:
        digest = hashlib.sha256(content).hexdigest()
        partial = cache / "models--org--Tiny-GGUF/blobs" / f"{digest}.racer-local.incomplete"
        partial.parent.mkdir(parents=True)
        partial.write_bytes(b"x" * 5000)
        with pytest.raises(ModelLoadError, match="not what the hub promised"):
            pull(WANTED)
        assert pull(WANTED).path.read_bytes() == content

    def test_wrong_contents_do_not_stay(self, hub: FakeHub, cache: Path, content: bytes) -> None:
        hub.wrong["tiny-Q4_0.gguf"] = b"x" * len(content)
        with pytest.raises(ModelLoadError, match="not what the hub promised"):
            pull(WANTED)
        assert leftovers(cache) == []
        assert find_models(Places(hub=find_places().hub)) == []
        assert pulled_files() == set()
        hub.wrong.clear()
        assert pull(WANTED).path.read_bytes() == content

    def test_the_catalogs_own_checksum_counts(self, hub: FakeHub, cache: Path) -> None:
        with pytest.raises(ModelLoadError, match="another file than expected"):
            pull(Wanted(REPO, "Q4_0", "0" * 64))
        assert leftovers(cache) == []

    @pytest.mark.parametrize(
        ("status", "headers", "reason"),
        [
            (401, {"X-Error-Code": "GatedRepo"}, "accept its licence"),
            (403, {"X-Error-Code": "GatedRepo"}, "accept its licence"),
            (401, {"X-Error-Code": "RepoNotFound"}, "no repository org/Tiny-GGUF"),
            (403, {}, "does not let you read"),
            (404, {"X-Error-Code": "RepoNotFound"}, "no repository org/Tiny-GGUF"),
            (418, {}, "answered with error 418"),
        ],
    )
    def test_a_refusal_says_what_to_do(
        self, hub: FakeHub, status: int, headers: dict[str, str], reason: str
    ) -> None:
        hub.always = (status, headers)
        with pytest.raises(ModelLoadError, match=reason):
            pull(WANTED)
        assert len(hub.requests) == 1

    @pytest.mark.parametrize("status", [429, 503])
    def test_it_waits_when_asked_to(self, hub: FakeHub, content: bytes, status: int) -> None:
        lines: list[str] = []
        hub.statuses.extend([(status, {"Retry-After": "0"})] * 2)
        assert pull(WANTED, None, lines.append).path.read_bytes() == content
        assert 1 <= len(lines) <= 2
        assert "asks to wait" in lines[0]

    def test_it_does_not_wait_for_ever(self, hub: FakeHub) -> None:
        hub.always = (429, {"Retry-After": "0"})
        with pytest.raises(ModelLoadError, match="too many requests"):
            pull(WANTED)

    def test_nobody_there(self, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        with pytest.raises(ModelLoadError, match="check the network"):
            pull(WANTED)

    def test_a_full_disk_is_noticed_first(
        self, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        usage = pull_module.shutil._ntuple_diskusage(100, 99, 1)
        monkeypatch.setattr(pull_module.shutil, "disk_usage", lambda path: usage)
        with pytest.raises(ModelLoadError, match="free space"):
            pull(WANTED)
        assert hub.ranges() == []

    @pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs a tmpfs")
    def test_a_disk_that_fills_up_on_the_way(
        self, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        small = tmp_path / "small"
        small.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)]
        if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
            pytest.skip("mounting needs rights that this machine does not give")
        try:
            monkeypatch.setenv("HF_HUB_CACHE", str(small))
            with pytest.raises(ModelLoadError, match="free space"):
                pull(WANTED)
            monkeypatch.setattr(pull_module, "_require_space", lambda *_: None)
            with pytest.raises(ModelLoadError, match="cannot be written: No space left"):
                pull(WANTED)
            assert leftovers(small) == []
        finally:
            subprocess.run(["umount", str(small)], check=True)


class TestCommand:
    def run(self, *arguments: str, **more: object):
        return CliRunner().invoke(cli, ["models", *arguments], **more)

    def test_pull_then_rm(self, hub: FakeHub, cache: Path) -> None:
        done = self.run("pull", f"{REPO}:q4_0")
        assert done.exit_code == 0, done.exception
        assert done.stdout.strip().endswith("tiny-Q4_0.gguf")
        assert self.run("rm", f"{REPO}:Q4_0", input="no\n").exit_code == 1
        assert leftovers(cache) == ["tiny-Q4_0.gguf"]
        assert self.run("rm", f"{REPO}:Q4_0", "--yes").exit_code == 0
        assert leftovers(cache) == []
        assert [p for p in cache.rglob("blobs/*") if p.is_file()] == []
        assert pulled_files() == set()

    def test_offline(self, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
        for arguments, variable in ((["--offline"], "0"), ([], "1")):
            monkeypatch.setenv("HF_HUB_OFFLINE", variable)
            done = self.run("pull", REPO, *arguments)
            assert "not on this machine" in str(done.exception)
        assert hub.requests == []
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        pull(WANTED)
        hub.requests.clear()
        done = self.run("pull", REPO, "--offline")
        assert done.stdout.strip().endswith("tiny-Q4_0.gguf")
        assert hub.requests == []


FILES = [HubFile(f"m-{quant}.gguf", 1) for quant in ("Q2_K", "Q4_K_M", "Q8_0")]


class TestChoice:
    @pytest.mark.parametrize(
        ("text", "wanted"),
        [
            ("org/Repo", Wanted("org/Repo")),
            ("org/Repo:q4_k_m", Wanted("org/Repo", "Q4_K_M")),
            ("hf:org/Repo.v2-GGUF:Q8_0", Wanted("org/Repo.v2-GGUF", "Q8_0")),
            ("https://huggingface.co/org/Repo", Wanted("org/Repo")),
        ],
    )
    def test_names(self, text: str, wanted: Wanted) -> None:
        assert parse_wanted(text) == wanted

    @pytest.mark.parametrize(
        "text",
        ["", "repo", "a/b/c", "../x", "org/..", "org/re po", "org/x:a/b", "x" * 1000, "a/b\n:c"],
    )
    def test_what_is_no_name(self, text: str) -> None:
        with pytest.raises(ConfigError, match="no name to fetch"):
            parse_wanted(text)

    def test_the_usual_one_comes_first(self) -> None:
        assert choose_files(FILES, Wanted("o/r"))[0].name == "m-Q4_K_M.gguf"
        assert choose_files(FILES[:1], Wanted("o/r"))[0].name == "m-Q2_K.gguf"

    def test_what_is_not_there_lists_what_is(self) -> None:
        with pytest.raises(ModelLoadError, match="no such file; name one of: Q2_K, Q4_K_M, Q8_0"):
            choose_files(FILES, Wanted("o/r", "Q6_K"))
        with pytest.raises(ModelLoadError, match="holds no GGUF file"):
            choose_files([HubFile("model.safetensors", 1), HubFile("mmproj-x.gguf", 1)], WANTED)
        two = [HubFile("a-Q4_0.gguf", 1), HubFile("b-Q4_0.gguf", 1)]
        with pytest.raises(ModelLoadError, match="several files fit"):
            choose_files(two, WANTED)
        with pytest.raises(ModelLoadError, match="only 1 of 2 parts"):
            choose_files([HubFile("a-Q4_0-00001-of-00002.gguf", 1)], WANTED)

    def test_names_that_lead_out_of_the_repository_are_no_files(self) -> None:
        bad = [HubFile(name, 1) for name in ("../x-Q4_0.gguf", "/x-Q4_0.gguf", "a/../../x.gguf")]
        with pytest.raises(ModelLoadError, match="holds no GGUF file"):
            choose_files(bad, WANTED)
