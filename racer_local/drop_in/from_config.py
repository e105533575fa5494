"""Opens ``RacerLlama`` with the settings that the commands share."""

from __future__ import annotations

from collections.abc import Sequence

import llama_cpp

from racer_local.backend.chat import MAX_TEMPLATE_CHARS
from racer_local.config import DraftConfig, KvType, ModelConfig
from racer_local.drop_in.llama import RacerLlama
from racer_local.errors import ModelLoadError

__all__ = ["open_llama"]


def open_llama(
    config: ModelConfig, draft: DraftConfig, n_ctx: int, books: Sequence[str] = ()
) -> RacerLlama:
    """Open a model.

    Args:
        config: model and settings.
        draft: how to draft.
        n_ctx: size of the context, in tokens.
        books: phrase books to draft from.

    Raises:
        ConfigError: a book is missing, damaged, or of another tokenizer.
        ModelLoadError: the file or the context cannot be opened, or the template is no template.
        UnsupportedModelError: the model cannot generate text.
    """
    n_gpu_layers = 0 if config.device == "cpu" else config.n_gpu_layers
    is_on_cpu = n_gpu_layers == 0 or not llama_cpp.llama_supports_gpu_offload()
    if config.kv_type is None and is_on_cpu and not config.exact:
        # Not for all shapes: rows of a head have to be a multiple of 32.
        try:
            return _open(config, draft, n_ctx, books, n_gpu_layers, "q8_0")
        except ModelLoadError:
            return _open(config, draft, n_ctx, books, n_gpu_layers, "f16")
    return _open(config, draft, n_ctx, books, n_gpu_layers, config.kv_type)


def _open(
    config: ModelConfig,
    draft: DraftConfig,
    n_ctx: int,
    books: Sequence[str],
    n_gpu_layers: int | None,
    kv_type: KvType | None,
) -> RacerLlama:
    llama = RacerLlama(
        str(config.path),
        draft=draft,
        exact=config.exact,
        books=books,
        n_ctx=n_ctx,
        n_threads=config.n_threads,
        n_batch=config.n_batch,
        n_gpu_layers=-1 if n_gpu_layers is None else n_gpu_layers,
        kv_type=kv_type,
    )
    template = llama.metadata.get("tokenizer.chat_template", "")
    if len(template) > MAX_TEMPLATE_CHARS:
        llama.close()
        raise ModelLoadError(
            f"the model's chat template has {len(template)} characters; that cannot be right"
        )
    return llama
