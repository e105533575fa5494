"""Whatever the bytes, the check answers or refuses; it never fails in another way."""

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import write_llama

from racer_local.errors import ModelLoadError, UnsupportedModelError
from racer_local.gguf.header import inspect_gguf
from racer_local.gguf.kinds import require_generative

INTERESTING = [0, 1, 2, 4, 8, 9, 31, 32, 255, 2**15, 2**31, 2**32 - 1, 2**53, 2**63, 2**64 - 1]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = write_llama(tmp_path_factory.mktemp("gguf") / "m.gguf", n_layers=1)
    return path.read_bytes()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch") / "m.gguf"


def check(path: Path, content: bytes) -> bool:
    """Write and inspect; True if the file passed."""
    path.write_bytes(content)
    try:
        require_generative(inspect_gguf(path))
    except (ModelLoadError, UnsupportedModelError) as error:
        line = str(error)
        assert line.isprintable(), "one line, safe for a terminal"
        assert len(line) < 2000
        return False
    return True


@given(st.binary(max_size=300))
def test_any_bytes(scratch: Path, content: bytes) -> None:
    assert not check(scratch, content)


@given(st.binary(max_size=400))
def test_any_bytes_after_a_sound_start(scratch: Path, content: bytes) -> None:
    assert not check(scratch, b"GGUF" + struct.pack("<I", 3) + content)


@given(
    n_tensors=st.sampled_from([0, 1, 2, 50]),
    n_kv=st.sampled_from([0, 1, 2, 50]),
    body=st.lists(
        st.one_of(
            st.sampled_from(INTERESTING).map(lambda n: struct.pack("<Q", n)),
            st.sampled_from(INTERESTING).map(lambda n: struct.pack("<I", n & 0xFFFFFFFF)),
            st.sampled_from([b"general.alignment", b"a.weight", b"split.count", b"x" * 64]).map(
                lambda s: struct.pack("<Q", len(s)) + s
            ),
            st.binary(max_size=9),
        ),
        max_size=30,
    ),
)
@settings(max_examples=300)
def test_any_fields(scratch: Path, n_tensors: int, n_kv: int, body: list[bytes]) -> None:
    check(scratch, b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_kv) + b"".join(body))


@given(data=st.data())
@settings(max_examples=200)
def test_any_change_of_a_sound_header(sound: bytes, scratch: Path, data: st.DataObject) -> None:
    content = bytearray(sound)
    # The header is the first 12 KB or so; most changes go there.
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, 13_000))
        width = data.draw(st.sampled_from([1, 4, 8]))
        value = data.draw(st.sampled_from(INTERESTING)) & (256**width - 1)
        content[at : at + width] = value.to_bytes(width, "little")
    check(scratch, bytes(content))


@given(n=st.integers(0, 200_000))
def test_any_cut_is_refused(sound: bytes, scratch: Path, n: int) -> None:
    assert not check(scratch, sound[: min(n, len(sound) - 1)])


@given(tail=st.binary(max_size=2000))
def test_bytes_after_the_end_do_no_harm(sound: bytes, scratch: Path, tail: bytes) -> None:
    assert check(scratch, sound + tail)
