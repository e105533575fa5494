"""A sound file that cannot write text is refused, with what it is instead."""

from pathlib import Path

import pytest
from tiny_models import write_bert, write_t5

from racer_local.errors import UnsupportedModelError
from racer_local.gguf.header import inspect_gguf
from racer_local.gguf.info import GgufInfo
from racer_local.gguf.kinds import file_type_name, require_generative


def info_with(**changes: object) -> GgufInfo:
    fields: dict[str, object] = {
        "path": Path("m.gguf"),
        "version": 3,
        "arch": "llama",
        "name": "",
        "file_type": "F16",
        "n_tensors": 9,
        "n_kv": 1,
        "size_bytes": 1,
        "context_length": 8,
        "has_chat_template": False,
        "n_parts": 1,
        "tokenizer": "llama",
        "n_vocab": 9,
        "metadata": {},
    }
    return GgufInfo(**{**fields, **changes})  # type: ignore[arg-type]


class TestRequireGenerative:
    @pytest.mark.parametrize("arch", ["llama", "mamba", "pangu-embedded", "an-arch-of-next-year"])
    def test_text_models_pass(self, arch: str) -> None:
        require_generative(info_with(arch=arch))

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({"arch": "nomic-bert"}, "vectors"),
            ({"arch": "t5encoder"}, "vectors"),
            ({"arch": "clip"}, "mmproj"),
            ({"metadata": {"general.type": "mmproj"}}, "mmproj"),
            ({"metadata": {"general.type": "adapter"}}, "LoRA"),
            ({"metadata": {"general.type": "imatrix"}}, "importance matrix"),
            ({"arch": "eagle3"}, "draft head"),
            ({"arch": "llada"}, "diffusion"),
            ({"arch": "wavtokenizer-dec"}, "sound"),
            ({"arch": ""}, "architecture"),
            ({"n_tensors": 0}, "no weights"),
            ({"tokenizer": "none"}, "no vocabulary"),
            ({"tokenizer": ""}, "no vocabulary"),
            ({"metadata": {"llama.pooling_type": 3}}, "vectors"),
            ({"metadata": {"llama.attention.causal": False}}, "both directions"),
        ],
    )
    def test_others_are_refused(self, changes: dict[str, object], expected: str) -> None:
        with pytest.raises(UnsupportedModelError, match=expected):
            require_generative(info_with(**changes))

    def test_real_headers(self, tmp_path: Path) -> None:
        for path in (write_t5(tmp_path / "t5.gguf"), write_bert(tmp_path / "bert.gguf")):
            with pytest.raises(UnsupportedModelError, match="text-generation"):
                require_generative(inspect_gguf(path))


@pytest.mark.parametrize(
    ("number", "expected"),
    [(15, "Q4_K_M"), (1024 + 7, "Q8_0"), (None, "unknown"), (999, "unknown (999)")],
)
def test_how_weights_are_stored(number: int | None, expected: str) -> None:
    assert file_type_name(number) == expected
