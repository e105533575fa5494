"""Tell what a model file is for, and what a file that is no GGUF may be. Layer: pure."""

from __future__ import annotations

from racer_local.errors import UnsupportedModelError
from racer_local.gguf.info import GgufInfo
from racer_local.wording import quoted

__all__ = ["file_type_name", "looks_like", "require_generative"]

# llama.cpp's `general.file_type`.
_FILE_TYPES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4",
    39: "NVFP4",
    40: "Q1_0",
    41: "Q2_0",
}

_EMBEDDING = "turns text into vectors and writes none"
_SPEECH = "makes sound, not text"
_DRAFT = "is a draft head that only works beside its own large model"
_DIFFUSION = "writes by diffusion, not token after token"
_NOT_GENERATIVE = {
    **dict.fromkeys(
        (
            "bert",
            "modern-bert",
            "nomic-bert",
            "nomic-bert-moe",
            "neo-bert",
            "jina-bert-v2",
            "jina-bert-v3",
            "eurobert",
            "gemma-embedding",
            "llama-embed",
            "t5encoder",
        ),
        _EMBEDDING,
    ),
    **dict.fromkeys(("dream", "llada", "llada-moe", "rnd1"), _DIFFUSION),
    **dict.fromkeys(("eagle3", "dflash", "gemma4-assistant"), _DRAFT),
    **dict.fromkeys(("wavtokenizer-dec", "qwen3tts", "pockettts"), _SPEECH),
    "t5": "is an encoder-decoder, which this program does not run",
    "clip": "is the image or sound part (mmproj) of another model",
}

_OTHER_TYPES = {
    "mmproj": "is the image or sound part (mmproj) of another model",
    "adapter": "is a LoRA adapter for another model",
    "imatrix": "is an importance matrix, made for quantizing a model",
}

_FOREIGN = (
    (b"version https://git-lfs", "it is a Git LFS pointer; run 'git lfs pull' to get the file"),
    (b"PK\x03\x04", "it is a zip archive; unpack it"),
    (b"\x1f\x8b", "it is compressed with gzip; unpack it"),
    (b"\xfd7zXZ", "it is compressed with xz; unpack it"),
    (b"\x28\xb5\x2f\xfd", "it is compressed with zstd; unpack it"),
    (b"7z\xbc\xaf", "it is a 7z archive; unpack it"),
    (b"BZh", "it is compressed with bzip2; unpack it"),
    (b"\x80", "it is a PyTorch file; convert it to GGUF, or get the GGUF file of this model"),
    (b"\x89HDF", "it is an HDF5 file; get the GGUF file of this model"),
    (b"tjgg", "it is in the old GGML format; get the GGUF file of this model"),
    (b"fmgg", "it is in the old GGML format; get the GGUF file of this model"),
    (b"lmgg", "it is in the old GGML format; get the GGUF file of this model"),
    (b"\x7fELF", "it is a program"),
    (b"MZ", "it is a Windows program"),
)


def file_type_name(number: int | None) -> str:
    """Name the way the weights are stored."""
    if number is None:
        return "unknown"
    # 1024 is set where llama.cpp itself had to guess.
    return _FILE_TYPES.get(number & ~1024, f"unknown ({number})")


def looks_like(start: bytes) -> str:
    """Say what a file with these first bytes probably is, and what to do."""
    for magic, meaning in _FOREIGN:
        if start.startswith(magic):
            return meaning
    if start[8:10] == b'{"' and int.from_bytes(start[:8], "little") < 1 << 32:
        return "it is a safetensors file; convert it to GGUF, or get the GGUF file of this model"
    if not start.strip(b"\0"):
        return "it begins with zero bytes only, like an unfinished download; download it again"
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text.startswith(b"<"):
        return "it is a web page, saved in place of the model; download it again"
    if text.startswith((b"{", b"[")):
        return "it is JSON text, maybe a server's error message; look into it and download again"
    return f"it begins with {quoted(start[:4].decode('latin-1'))} instead of 'GGUF'"


def require_generative(info: GgufInfo) -> None:
    """Refuse a sound file whose model cannot write text here.

    An architecture unknown to this list passes: whether it can be run is for llama.cpp to say.

    Raises:
        UnsupportedModelError: with what the file is instead.
    """
    reason = _why_not(info)
    if reason is not None:
        raise UnsupportedModelError(
            f"{quoted(info.path.name)} {reason}; give a GGUF file of a text-generation model"
        )


def _why_not(info: GgufInfo) -> str | None:
    kind = info.metadata.get("general.type", "model")
    if isinstance(kind, str) and kind in _OTHER_TYPES:
        return _OTHER_TYPES[kind]
    if not info.arch:
        return "does not name its architecture"
    if info.arch in _NOT_GENERATIVE:
        return f"(architecture {quoted(info.arch)}) {_NOT_GENERATIVE[info.arch]}"
    if info.n_tensors == 0:
        return "holds a vocabulary but no weights"
    if info.tokenizer in ("", "none", "no_vocab"):
        return "holds no vocabulary"
    # Embedding models of generative architectures say how to pool; 0 is "not at all".
    pooling = info.metadata.get(f"{info.arch}.pooling_type", 0)
    if pooling in (1, 2, 3, 4):
        return _EMBEDDING
    if info.metadata.get(f"{info.arch}.attention.causal", True) is False:
        return "reads in both directions and so cannot write on from a text"
    return None
