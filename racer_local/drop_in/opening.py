"""How upstream's constructor is made to open a context for draft trees.

It has no setting for several sequences. But it keeps the parameters of model and context as
attributes, which are properties here: what upstream puts in is amended on its way. So there is
one model and one context, and everything of upstream's that uses them goes on working: LoRA
adapters, metadata, embeddings, tokenizers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp
from llama_cpp import Llama as UpstreamLlama
from llama_cpp import _internals as internals
from llama_cpp import llama_chat_format

from racer_local.backend.adopted import amend_context_params
from racer_local.backend.kv import KV_TYPES
from racer_local.backend.model import LlamaModel
from racer_local.backend.native import clear_native_errors, last_native_error, physical_cores
from racer_local.books.store import load_shelf
from racer_local.config import DraftConfig, ModelConfig
from racer_local.decoding.session import Session
from racer_local.errors import ConfigError, ModelLoadError, UnsupportedModelError
from racer_local.gguf.fingerprint import tokenizer_fingerprint
from racer_local.gguf.header import inspect_gguf
from racer_local.gguf.kinds import require_generative
from racer_local.hardware.native_check import extra_buffers_are_safe

__all__ = ["OpeningLlama"]

_loading = threading.Lock()
_KV_NAMES = {number: name for name, number in KV_TYPES.items()}
_VISION = tuple(
    handler
    for name in ("Llava15ChatHandler", "MTMDChatHandler")
    if (handler := getattr(llama_chat_format, name, None)) is not None
)


@contextmanager
def _without_redirection() -> Iterator[None]:
    """Keep upstream from sending the whole process' output to nowhere while it loads a model.

    It does so to silence llama.cpp, whose log goes to a logger of ours in any case. Other threads
    would lose what they print, and two loads at once could lose it for good.
    """
    with _loading:
        redirect = internals.suppress_stdout_stderr
        internals.suppress_stdout_stderr = lambda disable=True: nullcontext()
        try:
            yield
        finally:
            internals.suppress_stdout_stderr = redirect


def _require_exact(options: dict[str, Any]) -> None:
    """Ask for the cache whose single rows are computed as several ones are."""
    for name, needed in (
        ("type_k", llama_cpp.GGML_TYPE_Q8_0),
        ("type_v", llama_cpp.GGML_TYPE_Q8_0),
        ("flash_attn", True),
    ):
        if options.get(name) not in (None, needed):
            raise ConfigError(
                f"exact decoding needs a q8_0 KV cache and flash attention; leave {name} out, or "
                "decode without exact"
            )
        options[name] = needed


class OpeningLlama(UpstreamLlama):  # type: ignore[misc]  # upstream has no types
    """``llama_cpp.Llama`` whose context can hold draft trees.

    Attributes:
        notices: what the user should know about this model and these settings.
    """

    _session: Session | None = None

    def __init__(
        self,
        model_path: str,
        draft: DraftConfig,
        *,
        exact: bool = False,
        books: Sequence[str] = (),
        **options: Any,
    ) -> None:
        """Open model and context; ``options`` are upstream's.

        Raises:
            ModelLoadError: llama.cpp refuses the file or the context; also a ``ValueError``.
            UnsupportedModelError: the model cannot generate text from left to right, or images
                were asked for.
            ValueError: the file does not exist.
        """
        self.notices: list[str] = []
        self._draft = draft
        self._exact = exact
        is_generative = not options.get("embedding") and not options.get("vocab_only")
        self._is_generative = is_generative
        path = Path(model_path)
        header = inspect_gguf(path) if path.exists() else None
        if header is not None and is_generative:
            require_generative(header)
        self._books = tuple(books)
        # Before the weights: what is wrong with a book is said at once.
        shelf = load_shelf(books, tokenizer_fingerprint(path) if books else "")
        self._amend(options)
        self._asked_n_batch = int(options.get("n_batch") or 512)
        self._load(model_path, options)
        if is_generative and header is not None:
            self._logits_all = self._keeps_all_rows
            model = LlamaModel.adopt(self._model.model, path, header)
            if draft.budget > self._max_nodes > 0:
                # A batch has to hold the tree.
                draft = replace(draft, budget=self._max_nodes)
            self._session = Session.adopt(
                model,
                self._ctx.ctx,
                self._model_config(path),
                draft,
                shelf,
                keeps_all_rows=self._keeps_all_rows,
            )
            self.notices.extend(self._session.notices)
            if not header.has_chat_template and options.get("chat_format") is None:
                self.notices.append(
                    "this model file has no chat template, so it is probably a base model; chats "
                    f"use the format {self.chat_format!r}; chat_format=... or chat_handler=... "
                    "gives another"
                )

    def _amend(self, options: dict[str, Any]) -> None:
        """Fill in our defaults, and take out what cannot be."""
        if isinstance(options.get("chat_handler"), _VISION):
            raise UnsupportedModelError(
                "images are not supported here; use llama_cpp.Llama with this chat handler"
            )
        if options.get("swa_full") is False:
            self.notices.append("swa_full=False is ignored: drafts need the whole window's cache")
            options["swa_full"] = None
        if options.pop("draft_model", None) is not None:
            self.notices.append("draft_model is ignored: drafting is built in here")
        options["n_threads"] = options.get("n_threads") or physical_cores()
        options["n_threads_batch"] = options.get("n_threads_batch") or options["n_threads"]
        if self._exact:
            _require_exact(options)
        if self._is_generative:
            options.setdefault("flash_attn", True)
        # Upstream would make a table of its own; rows are kept here.
        self._keeps_all_rows = bool(options.pop("logits_all", False))

    def _load(self, model_path: str, options: dict[str, Any]) -> None:
        clear_native_errors()
        # Importing the native layer has initialized llama.cpp.
        UpstreamLlama._Llama__backend_initialized = True
        try:
            with _without_redirection():
                super().__init__(model_path, **options)
        except ValueError as error:
            if not str(error).startswith("Failed"):
                raise
            reason = last_native_error() or str(error)
            raise ModelLoadError(f"llama.cpp could not open {model_path!r}: {reason}") from None

    def _model_config(self, path: Path) -> ModelConfig:
        params = self._context_params
        return ModelConfig(
            path=path,
            n_ctx=params.n_ctx,
            n_threads=params.n_threads,
            n_threads_batch=params.n_threads_batch,
            device="auto" if self._model_params.n_gpu_layers else "cpu",
            n_gpu_layers=min(self._model_params.n_gpu_layers, 2**20),
            n_batch=min(params.n_batch, 2**16),
            max_nodes=self._max_nodes,
            max_leaves=self._max_leaves,
            kv_type=_KV_NAMES.get(params.type_k, "f16"),
            exact=self._exact,
        )

    @property
    def model_params(self) -> Any:
        """Upstream's parameters of the model."""
        return self._model_params

    @model_params.setter
    def model_params(self, params: Any) -> None:
        params.use_extra_bufts = extra_buffers_are_safe()
        self._model_params = params

    @property
    def context_params(self) -> Any:
        """Upstream's parameters of the context."""
        return self._context_params

    @context_params.setter
    def context_params(self, params: Any) -> None:
        self._context_params = params

    @property
    def _model(self) -> Any:
        return self._opened_model

    @_model.setter
    def _model(self, model: Any) -> None:
        # The model is there, the context comes next.
        self._opened_model = model
        if not self._is_generative:
            return
        params = self._context_params
        # A context of the size that the model was trained with is filled in after this.
        n_batch = params.n_batch or min(int(model.n_ctx_train()), self._asked_n_batch)
        can_branch = not (
            llama_cpp.llama_model_is_recurrent(model.model)
            or llama_cpp.llama_model_is_hybrid(model.model)
        )
        n_fit = min(n_batch, params.n_ubatch or n_batch) - 1
        wanted = self._draft.budget if self._draft.mode != "off" else 0
        self._max_nodes = max(0, min(wanted, n_fit))
        self._max_leaves = max(1, min(self._draft.max_leaves, self._max_nodes))
        amend_context_params(
            params,
            n_vocab=model.n_vocab(),
            n_batch=n_batch,
            max_nodes=self._max_nodes if can_branch else 0,
            max_leaves=self._max_leaves if can_branch else 1,
            keeps_all_rows=self._keeps_all_rows,
        )
