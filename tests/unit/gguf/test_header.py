"""A model file is checked before llama.cpp sees it; each fault has its own clear line."""

import os
import shutil
import struct
import sys
from pathlib import Path

import gguf
import pytest
from tiny_models import write_gemma3, write_llama

from racer_local.errors import ModelLoadError
from racer_local.gguf.header import inspect_gguf
from racer_local.gguf.kinds import require_generative

posix_only = pytest.mark.skipif(os.name == "nt", reason="POSIX file kinds and permissions")


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def key(name: str | bytes, kind: int, payload: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + payload


def tensor(name: str = "a.weight", shape=(32,), kind: int = 0, offset: int = 0) -> bytes:
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dims + struct.pack("<IQ", kind, offset)


def header(
    keys: list[bytes] = (),
    tensors: list[bytes] = (),
    *,
    version: int = 3,
    n_kv=None,
    n_tensors=None,
) -> bytes:
    counts = struct.pack(
        "<IQQ",
        version,
        len(tensors) if n_tensors is None else n_tensors,
        len(keys) if n_kv is None else n_kv,
    )
    return b"GGUF" + counts + b"".join(keys) + b"".join(tensors)


def padded(raw: bytes, weights: bytes = b"", alignment: int = 32) -> bytes:
    return raw + b"\0" * (-len(raw) % alignment) + weights


@pytest.fixture
def write(tmp_path: Path):
    def write(content: bytes, name: str = "model.gguf") -> Path:
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def message(path: Path) -> str:
    with pytest.raises(ModelLoadError) as caught:
        inspect_gguf(path)
    line = str(caught.value)
    assert "\n" not in line
    return line


class TestSoundFile:
    def test_says_what_the_header_says(self, tiny: Path) -> None:
        info = inspect_gguf(tiny)
        assert info.version == 3
        assert (info.arch, info.name, info.file_type) == ("llama", "tiny llama", "F16")
        assert (info.tokenizer, info.n_vocab) == ("llama", 397)
        assert (info.context_length, info.n_parts, info.has_chat_template) == (4096, 1, True)
        assert info.n_tensors == 21
        assert info.size_bytes == tiny.stat().st_size
        assert info.metadata["llama.block_count"] == 2
        assert "tokenizer.ggml.tokens" not in info.metadata
        require_generative(info)

    def test_agrees_with_the_gguf_package(self, tiny: Path) -> None:
        reader = gguf.GGUFReader(tiny)
        info = inspect_gguf(tiny)
        assert info.n_tensors == len(reader.tensors)
        assert info.n_kv == reader.fields["GGUF.kv_count"].parts[0][0]

    def test_without_chat_template(self, tmp_path: Path) -> None:
        assert not inspect_gguf(write_gemma3(tmp_path / "g.gguf")).has_chat_template

    def test_a_long_chat_template_is_seen_though_not_kept(self, tmp_path: Path) -> None:
        info = inspect_gguf(write_llama(tmp_path / "t.gguf", chat_template="x" * 100_000))
        assert info.has_chat_template
        assert "tokenizer.chat_template" not in info.metadata

    @pytest.mark.parametrize(
        "name", ["模型 文件.gguf", "my model (1).gguf", "🤖.gguf", "no-suffix"]
    )
    def test_any_file_name_will_do(self, tiny: Path, tmp_path: Path, name: str) -> None:
        path = tmp_path / name
        shutil.copy(tiny, path)
        assert inspect_gguf(str(path)).arch == "llama"

    def test_all_scalar_types_are_read(self, write) -> None:
        keys = [
            key("u8", 0, b"\xff"),
            key("i8", 1, b"\xff"),
            key("u16", 2, struct.pack("<H", 65535)),
            key("i16", 3, struct.pack("<h", -2)),
            key("u32", 4, struct.pack("<I", 2**32 - 1)),
            key("i32", 5, struct.pack("<i", -3)),
            key("f32", 6, struct.pack("<f", 0.5)),
            key("yes", 7, b"\x01"),
            key("text", 8, text("héllo")),
            key("u64", 10, struct.pack("<Q", 2**64 - 1)),
            key("i64", 11, struct.pack("<q", -4)),
            key("f64", 12, struct.pack("<d", 0.25)),
            key("bad text", 8, text(b"a\xffb")),
        ]
        assert inspect_gguf(write(header(keys))).metadata == {
            "u8": 255,
            "i8": -1,
            "u16": 65535,
            "i16": -2,
            "u32": 2**32 - 1,
            "i32": -3,
            "f32": 0.5,
            "yes": True,
            "text": "héllo",
            "u64": 2**64 - 1,
            "i64": -4,
            "f64": 0.25,
            "bad text": "a\ufffdb",
        }

    def test_version_2_is_read(self, write) -> None:
        assert inspect_gguf(write(header(version=2))).version == 2

    def test_a_tensor_type_newer_than_this_program_is_left_to_llama_cpp(self, write) -> None:
        raw = header([], [tensor("a", (32,), 99), tensor("b", (32,), 0, 4096)])
        assert inspect_gguf(write(padded(raw, b"\0" * 5000))).n_tensors == 2

    def test_another_alignment_is_respected(self, write) -> None:
        keys = [key("general.alignment", 4, struct.pack("<I", 64))]
        raw = header(keys, [tensor("a", (3,)), tensor("b", (3,), 0, 64)])
        assert inspect_gguf(write(padded(raw, b"\0" * 76, 64))).n_tensors == 2
        assert "cut short" in message(write(padded(raw, b"\0" * 75, 64)))

    def test_memory_does_not_follow_the_size_of_the_vocabulary(self, write) -> None:
        import tracemalloc

        tokens = text("token") * 400_000
        keys = [key("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 400_000) + tokens)]
        path = write(header(keys))
        tracemalloc.start()
        try:
            assert inspect_gguf(path).n_vocab == 400_000
            assert tracemalloc.get_traced_memory()[1] < 2_000_000
        finally:
            tracemalloc.stop()


class TestNotAFile:
    def test_missing(self, tmp_path: Path) -> None:
        assert "no model file at" in message(tmp_path / "none.gguf")

    def test_folder(self, tmp_path: Path) -> None:
        assert "is a folder" in message(tmp_path)

    def test_a_path_that_no_system_takes(self) -> None:
        assert "cannot be read" in message(Path("a\0b"))
        assert message(Path("x" * 10_000))

    def test_a_file_used_as_a_folder(self, write) -> None:
        assert message(write(b"GGUF") / "model.gguf")

    @posix_only
    def test_pipe_and_device_are_not_opened(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe.gguf")
        assert "device or pipe" in message(tmp_path / "pipe.gguf")
        assert "device or pipe" in message(Path("/dev/null"))

    @posix_only
    def test_link_to_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "link.gguf").symlink_to(tmp_path / "gone")
        assert "link to a file that is gone" in message(tmp_path / "link.gguf")

    def test_no_permission(self, write, monkeypatch: pytest.MonkeyPatch) -> None:
        # Root may read everything, so the refusal is played.
        def refuse(*_args: object) -> None:
            raise PermissionError(13, "Permission denied")

        path = write(b"GGUF")
        monkeypatch.setattr("racer_local.gguf.header.io.FileIO", refuse)
        assert "may not be read" in message(path)


class TestForeignFile:
    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            (b"", "empty"),
            (b"<!DOCTYPE html><html>", "web page"),
            (b"\n  <html>", "web page"),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
            (b"PK\x03\x04....", "zip archive"),
            (struct.pack("<Q", 60) + b'{"a":{}}', "safetensors"),
            (b'{"error":"not found"}', "JSON"),
            (b"\x80\x02}q\x00", "PyTorch"),
            (b"\x1f\x8b\x08", "gzip"),
            (b"tjgg\x01", "old GGML"),
            (b"\0" * 2000, "zero bytes"),
            (b"GGU", "begins with 'GGU'"),
            (b"gguf", "begins with 'gguf'"),
            (b"\xde\xad\xbe\xef", "instead of 'GGUF'"),
            (b"\x1b[2J", "instead of 'GGUF'"),
        ],
    )
    def test_says_what_it_looks_like(self, write, content: bytes, expected: str) -> None:
        line = message(write(content))
        assert expected in line
        assert line.isprintable()

    def test_big_endian(self, write) -> None:
        assert "big-endian" in message(write(b"GGUF" + struct.pack(">IQQ", 3, 0, 0)))

    @pytest.mark.parametrize(
        ("version", "expected"), [(1, "too old"), (0, "too old"), (4, "newer")]
    )
    def test_unsupported_version(self, write, version: int, expected: str) -> None:
        assert expected in message(write(header(version=version)))


class TestDamagedHeader:
    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            (header(n_kv=2**63), "metadata keys"),
            (header(n_kv=1000), "cut short"),
            (header(n_tensors=2**64 - 1), "tensors"),
            (header(n_tensors=1000), "cut short"),
            (header([text("k" * 2000) + b"\0" * 20]), "name of 2000 bytes"),
            (header([struct.pack("<Q", 2**64 - 1) + b"\0" * 20]), "bytes"),
            (header([key(b"\xff\xfe", 0, b"\1"), key("b", 0, b"\1")]), "not text"),
            (header([key("", 4, b"\0" * 8)]), "empty"),
            (header([key("a", 0, b"\1")] * 2), "duplicate"),
            (header([key("a", 77, b"\0" * 8)]), "unknown type 77"),
            (header([key("a", 8, struct.pack("<Q", 2**63))]), "claims"),
            (header([key("a", 8, struct.pack("<Q", 99))]), "cut short"),
            (header([key("a", 9, struct.pack("<IQ", 9, 1))]), "array of arrays"),
            (header([key("a", 9, struct.pack("<IQ", 55, 1))]), "unknown type 55"),
            (header([key("a", 9, struct.pack("<IQ", 12, 2**61))]), "elements"),
            (header([key("a", 9, struct.pack("<IQ", 0, 2**64 - 1))]), "elements"),
            (header([key("a", 9, struct.pack("<IQ", 4, 9))]), "cut short"),
            (header([key("a", 9, struct.pack("<IQ", 8, 2) + b"\xff" * 16)]), "cut short"),
            (header([key("general.alignment", 4, struct.pack("<I", 0))]), "alignment"),
            (header([key("general.alignment", 4, struct.pack("<I", 48))]), "alignment"),
            (header([key("general.alignment", 10, struct.pack("<Q", 32))]), "alignment"),
        ],
    )
    def test_metadata(self, write, content: bytes, expected: str) -> None:
        assert expected in message(write(content))

    @pytest.mark.parametrize(
        ("tensors", "expected"),
        [
            ([tensor("n" * 64)], "name of 64 bytes"),
            ([tensor("a"), tensor("a", offset=128)], "twice"),
            ([tensor(shape=(1, 1, 1, 1, 1))], "5 dimensions"),
            ([tensor(shape=(2**63,))], "absurd shape"),
            ([tensor(shape=(2**40, 2**40))], "absurd shape"),
            ([tensor(shape=(33,), kind=2)], "whole blocks of Q4_0"),
            ([tensor(kind=4)], "given up"),
            ([tensor(kind=31)], "given up"),
            ([tensor(kind=2**31)], "unknown type"),
            ([tensor(offset=32)], "unexpected offset"),
            ([tensor(offset=7)], "unexpected offset"),
            ([tensor("a"), tensor("b", offset=0)], "unexpected offset"),
            ([tensor("a", kind=99), tensor("b", offset=2**64 - 32)], "absurd offset"),
            ([tensor(shape=(2**40,))], "0 % are there"),
        ],
    )
    def test_tensors(self, write, tensors: list[bytes], expected: str) -> None:
        assert expected in message(write(padded(header([], tensors), b"\0" * 256)))

    def test_every_cut_is_noticed(self, tiny: Path, tmp_path: Path) -> None:
        content = tiny.read_bytes()
        path = tmp_path / "cut.gguf"
        for n in [*range(0, 600, 7), *range(600, len(content), 4001), len(content) - 1]:
            path.write_bytes(content[:n])
            assert message(path)

    def test_cut_weights_tell_how_much_is_there(self, tiny: Path, write) -> None:
        content = tiny.read_bytes()
        line = message(write(content[: len(content) * 9 // 10]))
        assert "cut short" in line
        assert "90 % are there" in line or "89 % are there" in line


class TestSplitModel:
    def split(self, folder: Path, n: int = 3) -> list[Path]:
        paths = []
        for i in range(n):
            path = folder / f"big-{i + 1:05d}-of-{n:05d}.gguf"
            keys = [
                key("split.no", 2, struct.pack("<H", i)),
                key("split.count", 2, struct.pack("<H", n)),
                key("split.tensors.count", 5, struct.pack("<i", n)),
            ]
            if i == 0:
                keys.append(key("general.architecture", 8, text("llama")))
                keys.append(key("tokenizer.ggml.model", 8, text("gpt2")))
            path.write_bytes(padded(header(keys, [tensor(f"t{i}")]), b"\0" * 128))
            paths.append(path)
        return paths

    def test_the_parts_are_counted_together(self, tmp_path: Path) -> None:
        paths = self.split(tmp_path)
        info = inspect_gguf(paths[0])
        assert (info.n_parts, info.n_tensors) == (3, 3)
        assert info.size_bytes == sum(path.stat().st_size for path in paths)
        require_generative(info)

    def test_another_part_points_to_the_first(self, tmp_path: Path) -> None:
        paths = self.split(tmp_path)
        line = message(paths[1])
        assert "part 2 of 3" in line
        assert str(paths[0]) in line

    def test_missing_parts_are_named(self, tmp_path: Path) -> None:
        paths = self.split(tmp_path)
        paths[2].unlink()
        assert paths[2].name in message(paths[0])

    def test_a_damaged_part_is_found(self, tmp_path: Path) -> None:
        paths = self.split(tmp_path)
        paths[1].write_bytes(paths[1].read_bytes()[:-1])
        line = message(paths[0])
        assert "cut short" in line
        assert paths[1].name in line

    def test_a_renamed_part_is_explained(self, tmp_path: Path) -> None:
        paths = self.split(tmp_path)
        renamed = paths[0].rename(tmp_path / "model.gguf")
        assert "-00001-of-00003.gguf" in message(renamed)

    def test_an_absurd_count_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "a-00001-of-00002.gguf"
        path.write_bytes(header([key("split.count", 10, struct.pack("<Q", 2**63))]))
        assert message(path)


def test_real_models_pass(smol_path: Path, gemma_path: Path) -> None:
    smol, gemma = inspect_gguf(smol_path), inspect_gguf(gemma_path)
    for info in (smol, gemma):
        require_generative(info)
    assert (smol.file_type, smol.n_vocab, smol.has_chat_template) == ("Q4_1", 49152, True)
    assert (gemma.file_type, gemma.n_vocab, gemma.has_chat_template) == ("Q4_K_M", 262144, False)


def test_nothing_of_the_gguf_package_is_needed() -> None:
    # The check is part of the product, where that package is not installed.
    import subprocess

    code = (
        "import sys; sys.modules['gguf'] = None; sys.modules['numpy'] = None;"
        "import racer_local.gguf.header"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
