"""Write tiny random GGUF models, one for each kind of memory llama.cpp has.

They are not meant to say anything sensible: they exist so that loading, decoding, roll-back and
refusal can be tested on real llama.cpp in milliseconds and offline. Same seed, same file.

    llama     full attention, one KV cache         (also with a byte-level BPE vocabulary)
    gemma3    sliding-window attention, two KV caches
    mamba     recurrent state only
    jamba     hybrid: one mamba and one attention layer, no roll-back of its state
    cycle     a llama that says the same eight tokens over and over
    lfm2      hybrid: short convolution and attention, roll-back where ``n_rs_seq`` allows it
    qwen2vl   M-RoPE: four position axes, used for text only
    t5        encoder-decoder
    bert      embeddings only
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from tiny_vocab import CHATML_TEMPLATE, Vocab, bpe_vocab, spm_vocab, ugm_vocab, wpm_vocab

__all__ = [
    "GENERATIVE",
    "TINY_WRITERS",
    "write_bert",
    "write_cycle",
    "write_gemma3",
    "write_jamba",
    "write_lfm2",
    "write_llama",
    "write_mamba",
    "write_qwen2vl",
    "write_t5",
]

N_EMBD = 64
# 32 elements per head, so that a q8_0 KV cache (blocks of 32) is possible.
HEAD_DIM = 32
N_HEAD = 2
N_HEAD_KV = 1
N_FF = 128
N_CTX_TRAIN = 4096
D_INNER = 2 * N_EMBD
D_STATE = 16
DT_RANK = 4
D_CONV = 4

_FILE_TYPES = {
    "f32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
    "f16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    "q4_0": (gguf.GGMLQuantizationType.Q4_0, gguf.LlamaFileType.MOSTLY_Q4_0),
}


@dataclass
class _Builder:
    """One GGUF file in the making: its writer, its random numbers and its weight type."""

    path: Path
    arch: str
    weights: str
    seed: int
    rng: np.random.Generator = field(init=False)
    writer: Any = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.writer = gguf.GGUFWriter(self.path, self.arch)
        self.writer.add_name(f"tiny {self.arch}")
        self.writer.add_file_type(_FILE_TYPES[self.weights][1])

    def matrix(self, name: str, n_in: int, n_out: int, gain: float = 1.0) -> None:
        """Add a weight matrix that keeps the variance of its input, times ``gain`` squared."""
        values = self.rng.standard_normal((n_out, n_in)) * (gain / np.sqrt(n_in))
        self._quantized(name, values.astype(np.float32))

    def add(self, name: str, values: npt.NDArray[np.float64]) -> None:
        """Add a weight matrix as it is."""
        self._quantized(name, values.astype(np.float32))

    def output(self, vocab: Vocab) -> None:
        """Add the output matrix; tokens that end a text get a logit of zero.

        The other logits have a deviation of about 4, so greedy decoding never meets an end token
        and near-ties are rare.
        """
        values = self.rng.standard_normal((len(vocab.tokens), N_EMBD)) * (4 / np.sqrt(N_EMBD))
        values[vocab.special_ids] = 0.0
        self._quantized("output.weight", values.astype(np.float32))

    def vector(self, name: str, values: npt.ArrayLike) -> None:
        """Add a tensor that llama.cpp wants in float32: norms, biases, state parameters."""
        self.writer.add_tensor(name, np.asarray(values, dtype=np.float32))

    def norm(self, name: str, n: int = N_EMBD) -> None:
        """Add norm weights near one."""
        self.vector(name, 1.0 + 0.1 * self.rng.standard_normal(n))

    def embedding(self, vocab: Vocab) -> None:
        """Add the token embeddings, one unit-variance row per token."""
        self.matrix("token_embd.weight", N_EMBD, len(vocab.tokens), gain=np.sqrt(N_EMBD))

    def finish(self) -> Path:
        """Write everything and close the file."""
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()
        return self.path

    def _quantized(self, name: str, values: npt.NDArray[np.float32]) -> None:
        kind = _FILE_TYPES[self.weights][0]
        self.writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)


def _common_keys(build: _Builder, n_layers: int, vocab: Vocab, n_ctx_train: int) -> None:
    writer = build.writer
    writer.add_context_length(n_ctx_train)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(n_layers)
    writer.add_vocab_size(len(vocab.tokens))
    vocab.add_to(writer)


def _attention_keys(build: _Builder, n_head_kv: int | Sequence[int] = N_HEAD_KV) -> None:
    writer = build.writer
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(n_head_kv)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_feed_forward_length(N_FF)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(10000.0)


def _attention(build: _Builder, prefix: str, *, gain: float = 1.0) -> None:
    # A gain of 3 on queries makes attention look at a few tokens, so the context matters.
    build.matrix(f"{prefix}.attn_q.weight", N_EMBD, N_HEAD * HEAD_DIM, gain=3.0)
    build.matrix(f"{prefix}.attn_k.weight", N_EMBD, N_HEAD_KV * HEAD_DIM)
    build.matrix(f"{prefix}.attn_v.weight", N_EMBD, N_HEAD_KV * HEAD_DIM)
    build.matrix(f"{prefix}.attn_output.weight", N_HEAD * HEAD_DIM, N_EMBD, gain)


def _feed_forward(build: _Builder, prefix: str, *, gain: float = 1.0) -> None:
    build.matrix(f"{prefix}.ffn_gate.weight", N_EMBD, N_FF)
    build.matrix(f"{prefix}.ffn_up.weight", N_EMBD, N_FF)
    build.matrix(f"{prefix}.ffn_down.weight", N_FF, N_EMBD, gain)


def _state_keys(build: _Builder) -> None:
    writer = build.writer
    writer.add_ssm_conv_kernel(D_CONV)
    writer.add_ssm_inner_size(D_INNER)
    writer.add_ssm_state_size(D_STATE)
    writer.add_ssm_time_step_rank(DT_RANK)


def _mamba_mixer(build: _Builder, prefix: str) -> None:
    build.matrix(f"{prefix}.ssm_in.weight", N_EMBD, 2 * D_INNER)
    build.vector(f"{prefix}.ssm_conv1d.weight", build.rng.standard_normal((D_INNER, D_CONV)) / 2)
    build.vector(f"{prefix}.ssm_conv1d.bias", np.zeros(D_INNER))
    build.matrix(f"{prefix}.ssm_x.weight", D_INNER, DT_RANK + 2 * D_STATE)
    build.vector(f"{prefix}.ssm_dt.weight", build.rng.standard_normal((D_INNER, DT_RANK)) / 2)
    build.vector(f"{prefix}.ssm_dt.bias", np.full(D_INNER, -2.0))
    # The state decays at rates 1..d_state, as a trained model starts out.
    build.vector(f"{prefix}.ssm_a", np.tile(-np.arange(1.0, D_STATE + 1), (D_INNER, 1)))
    build.vector(f"{prefix}.ssm_d", np.ones(D_INNER))
    build.matrix(f"{prefix}.ssm_out.weight", D_INNER, N_EMBD)


def write_llama(
    path: Path,
    *,
    seed: int = 0,
    weights: str = "f16",
    tokenizer: str = "spm",
    n_layers: int = 2,
    n_ctx_train: int = N_CTX_TRAIN,
    chat_template: str | None = CHATML_TEMPLATE,
) -> Path:
    """Write a llama: full attention; ``tokenizer`` is ``spm`` or ``bpe``."""
    vocab = spm_vocab() if tokenizer == "spm" else bpe_vocab()
    build = _Builder(path, "llama", weights, seed)
    _common_keys(build, n_layers, vocab, n_ctx_train)
    _attention_keys(build)
    if chat_template is not None:
        build.writer.add_chat_template(chat_template)
    build.embedding(vocab)
    for layer in range(n_layers):
        prefix = f"blk.{layer}"
        build.norm(f"{prefix}.attn_norm.weight")
        _attention(build, prefix)
        build.norm(f"{prefix}.ffn_norm.weight")
        _feed_forward(build, prefix)
    build.norm("output_norm.weight")
    build.output(vocab)
    return build.finish()


def write_cycle(path: Path, *, seed: int = 0, n_ctx_train: int = N_CTX_TRAIN) -> Path:
    """Write a llama that says "abcdefgh" over and over, whatever was said before.

    Each token but the last of these eight is followed by the next one of them, and so is any other
    by the first. No rounding changes that: no layer adds anything, and the right token is ahead of
    all others by far. So drafts that quote the text are taken, and no answer ends by itself.
    """
    vocab = spm_vocab()
    build = _Builder(path, "llama", "f32", seed)
    _common_keys(build, 1, vocab, n_ctx_train)
    _attention_keys(build)
    build.writer.add_chat_template(CHATML_TEMPLATE)
    n_vocab = len(vocab.tokens)
    letters = [vocab.tokens.index(letter) for letter in "abcdefgh"]
    follower = np.full(n_vocab, letters[0])
    follower[letters] = np.roll(letters, -1)
    # The first half of a state says which token follows, and the other which token it is.
    half = N_EMBD // 2
    marks = np.eye(half)[:8]
    states = np.zeros((n_vocab, N_EMBD))
    states[:, :half] = marks[[letters.index(token) for token in follower]]
    states[:, half:] = build.rng.choice([-1.0, 1.0], (n_vocab, half)) / half
    rows = np.zeros((n_vocab, N_EMBD))
    rows[letters, :half] = 4 * marks
    build.add("token_embd.weight", states)
    build.norm("blk.0.attn_norm.weight")
    _attention(build, "blk.0", gain=0.0)
    build.norm("blk.0.ffn_norm.weight")
    _feed_forward(build, "blk.0", gain=0.0)
    build.vector("output_norm.weight", np.ones(N_EMBD))
    build.add("output.weight", rows)
    return build.finish()


def write_gemma3(
    path: Path, *, seed: int = 0, weights: str = "f16", n_window: int = 32, n_layers: int = 3
) -> Path:
    """Write a gemma3: every second layer sees the last ``n_window`` tokens only."""
    vocab = spm_vocab()
    build = _Builder(path, "gemma3", weights, seed)
    _common_keys(build, n_layers, vocab, N_CTX_TRAIN)
    _attention_keys(build)
    build.writer.add_sliding_window(n_window)
    build.writer.add_sliding_window_pattern([layer % 2 == 0 for layer in range(n_layers)])
    build.embedding(vocab)
    for layer in range(n_layers):
        prefix = f"blk.{layer}"
        for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            build.norm(f"{prefix}.{name}.weight")
        for name in ("attn_q_norm", "attn_k_norm"):
            build.norm(f"{prefix}.{name}.weight", HEAD_DIM)
        _attention(build, prefix)
        _feed_forward(build, prefix)
    build.norm("output_norm.weight")
    build.output(vocab)
    return build.finish()


def write_mamba(path: Path, *, seed: int = 0, weights: str = "f16", n_layers: int = 2) -> Path:
    """Write a mamba: recurrent state, no attention."""
    vocab = spm_vocab()
    build = _Builder(path, "mamba", weights, seed)
    _common_keys(build, n_layers, vocab, N_CTX_TRAIN)
    build.writer.add_feed_forward_length(0)
    build.writer.add_head_count(0)
    build.writer.add_layer_norm_rms_eps(1e-5)
    _state_keys(build)
    build.embedding(vocab)
    for layer in range(n_layers):
        build.norm(f"blk.{layer}.attn_norm.weight")
        _mamba_mixer(build, f"blk.{layer}")
    build.norm("output_norm.weight")
    build.output(vocab)
    return build.finish()


def write_jamba(path: Path, *, seed: int = 0, weights: str = "f16") -> Path:
    """Write a jamba: layer 0 is a mamba mixer, layer 1 is attention."""
    vocab = spm_vocab()
    build = _Builder(path, "jamba", weights, seed)
    _common_keys(build, 2, vocab, N_CTX_TRAIN)
    _attention_keys(build, [0, N_HEAD_KV])
    _state_keys(build)
    build.embedding(vocab)
    for layer in range(2):
        prefix = f"blk.{layer}"
        build.norm(f"{prefix}.attn_norm.weight")
        if layer == 0:
            _mamba_mixer(build, prefix)
            build.norm(f"{prefix}.ssm_dt_norm.weight", DT_RANK)
            build.norm(f"{prefix}.ssm_b_norm.weight", D_STATE)
            build.norm(f"{prefix}.ssm_c_norm.weight", D_STATE)
        else:
            _attention(build, prefix)
        build.norm(f"{prefix}.ffn_norm.weight")
        _feed_forward(build, prefix)
    build.norm("output_norm.weight")
    build.output(vocab)
    return build.finish()


def write_lfm2(path: Path, *, seed: int = 0, weights: str = "f16") -> Path:
    """Write an lfm2: layer 0 is a short convolution, layer 1 is attention."""
    vocab = spm_vocab()
    build = _Builder(path, "lfm2", weights, seed)
    _common_keys(build, 2, vocab, N_CTX_TRAIN)
    _attention_keys(build, [0, N_HEAD_KV])
    build.writer.add_shortconv_l_cache(3)
    build.embedding(vocab)
    for layer in range(2):
        prefix = f"blk.{layer}"
        build.norm(f"{prefix}.attn_norm.weight")
        if layer == 0:
            build.vector(f"{prefix}.shortconv.conv.weight", build.rng.standard_normal((N_EMBD, 3)))
            build.matrix(f"{prefix}.shortconv.in_proj.weight", N_EMBD, 3 * N_EMBD)
            build.matrix(f"{prefix}.shortconv.out_proj.weight", N_EMBD, N_EMBD)
        else:
            build.norm(f"{prefix}.attn_q_norm.weight", HEAD_DIM)
            build.norm(f"{prefix}.attn_k_norm.weight", HEAD_DIM)
            _attention(build, prefix)
        build.norm(f"{prefix}.ffn_norm.weight")
        _feed_forward(build, prefix)
    build.norm("token_embd_norm.weight")
    build.output(vocab)
    return build.finish()


def write_qwen2vl(path: Path, *, seed: int = 0, weights: str = "f16", n_layers: int = 2) -> Path:
    """Write a qwen2vl without its vision part: rotary positions on four axes."""
    vocab = bpe_vocab()
    build = _Builder(path, "qwen2vl", weights, seed)
    _common_keys(build, n_layers, vocab, N_CTX_TRAIN)
    _attention_keys(build)
    build.writer.add_rope_dimension_sections([4, 6, 6, 0])
    build.embedding(vocab)
    for layer in range(n_layers):
        prefix = f"blk.{layer}"
        build.norm(f"{prefix}.attn_norm.weight")
        _attention(build, prefix)
        for name, n in (("q", N_HEAD), ("k", N_HEAD_KV), ("v", N_HEAD_KV)):
            build.vector(f"{prefix}.attn_{name}.bias", np.zeros(n * HEAD_DIM))
        build.norm(f"{prefix}.ffn_norm.weight")
        _feed_forward(build, prefix)
    build.norm("output_norm.weight")
    build.output(vocab)
    return build.finish()


def _t5_attention(build: _Builder, prefix: str) -> None:
    for name in ("q", "k", "v", "o"):
        build.matrix(f"{prefix}_{name}.weight", N_EMBD, N_EMBD)


def write_t5(path: Path, *, seed: int = 0, weights: str = "f16") -> Path:
    """Write a t5: one encoder and one decoder layer."""
    vocab = ugm_vocab()
    build = _Builder(path, "t5", weights, seed)
    _common_keys(build, 1, vocab, 512)
    writer = build.writer
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEAD)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_relative_attn_buckets_count(32)
    writer.add_decoder_start_token_id(0)
    build.embedding(vocab)
    for side in ("enc", "dec"):
        prefix = f"{side}.blk.0"
        build.norm(f"{prefix}.attn_norm.weight")
        build.vector(f"{prefix}.attn_rel_b.weight", np.zeros((32, N_HEAD)))
        _t5_attention(build, f"{prefix}.attn")
        if side == "dec":
            build.norm(f"{prefix}.cross_attn_norm.weight")
            _t5_attention(build, f"{prefix}.cross_attn")
        build.norm(f"{prefix}.ffn_norm.weight")
        _feed_forward(build, prefix)
        build.norm(f"{side}.output_norm.weight")
    build.output(vocab)
    return build.finish()


def write_bert(path: Path, *, seed: int = 0, weights: str = "f16") -> Path:
    """Write a bert: embeddings only, bidirectional."""
    vocab = wpm_vocab()
    build = _Builder(path, "bert", weights, seed)
    _common_keys(build, 1, vocab, 512)
    writer = build.writer
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEAD)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_token_type_count(2)
    build.embedding(vocab)
    build.vector("token_types.weight", np.zeros((2, N_EMBD)))
    build.matrix("position_embd.weight", N_EMBD, 512)
    for name in ("token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm"):
        build.norm(f"{name}.weight")
        build.vector(f"{name}.bias", np.zeros(N_EMBD))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        build.matrix(f"blk.0.{name}.weight", N_EMBD, N_EMBD)
    build.matrix("blk.0.ffn_up.weight", N_EMBD, N_FF)
    build.matrix("blk.0.ffn_down.weight", N_FF, N_EMBD)
    return build.finish()


def _write_llama_bpe(path: Path) -> Path:
    return write_llama(path, tokenizer="bpe", seed=1)


def _write_llama_q8_0(path: Path) -> Path:
    return write_llama(path, weights="q8_0", seed=2)


TINY_WRITERS: dict[str, Callable[[Path], Path]] = {
    "llama": write_llama,
    "cycle": write_cycle,
    "llama-bpe": _write_llama_bpe,
    "llama-q8_0": _write_llama_q8_0,
    "gemma3": write_gemma3,
    "mamba": write_mamba,
    "jamba": write_jamba,
    "lfm2": write_lfm2,
    "qwen2vl": write_qwen2vl,
    "t5": write_t5,
    "bert": write_bert,
}

# Those that generate text token by token.
GENERATIVE = tuple(name for name in TINY_WRITERS if name not in ("t5", "bert", "cycle"))
