"""A loaded GGUF model: weights, vocabulary and metadata."""

from __future__ import annotations

import ctypes
import functools
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from racer_local.backend.native import clear_native_errors, last_native_error
from racer_local.backend.special_tokens import SpecialToken, SpecialTokens
from racer_local.backend.token_prefixes import TokenPrefixes
from racer_local.config import ModelConfig
from racer_local.errors import ClosedError, ConfigError, ModelLoadError, UnsupportedModelError
from racer_local.gguf.header import inspect_gguf
from racer_local.gguf.info import GgufInfo
from racer_local.gguf.kinds import require_generative
from racer_local.hardware.native_check import extra_buffers_are_safe
from racer_local.speculation.tree import TokenId

__all__ = ["LlamaModel"]

_ALL_LAYERS = 2**20
_NO_TOKEN = -1
_PIECE_BYTES = 64
# Texts from this length on are cut at special tokens before llama.cpp sees them.
_LONG_BYTES = 8192
# llama.cpp makes some tokens both of these and defined by the user.
_CONTROL = llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN | llama_cpp.LLAMA_TOKEN_ATTR_CONTROL
_SPECIAL = _CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED


class LlamaModel:
    """Weights and vocabulary of one model, freed by ``close`` or with the object.

    Attributes:
        handle: the native model, for the other modules of this package.
        prefixes: which tokens begin with which, once it was read.
        path: the file it came from.
        header: what the file's header says.
    """

    def __init__(
        self,
        config: ModelConfig,
        on_progress: Callable[[float], None] | None = None,
        *,
        vocab_only: bool = False,
    ) -> None:
        """Check the file's header in Python, then have llama.cpp load it.

        Args:
            config: path and GPU layers are used.
            on_progress: called with the loaded share, 0 to 1; an exception from it ends the load.
            vocab_only: load no weights; such a model can tokenize and nothing else.

        Raises:
            ModelLoadError: the file is missing, damaged, or refused by llama.cpp.
            UnsupportedModelError: the model cannot generate text.
        """
        self.path = config.path
        self.header = inspect_gguf(config.path)
        require_generative(self.header)
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = _n_gpu_layers(config)
        self.is_on_cpu = params.n_gpu_layers == 0
        params.use_extra_bufts = extra_buffers_are_safe()
        params.vocab_only = vocab_only
        raised: list[BaseException] = []
        if on_progress is not None:
            params.progress_callback = _guarded_progress(on_progress, raised)
        clear_native_errors()
        path = os.fsencode(config.path) if os.name != "nt" else str(config.path).encode("utf-8")
        handle = llama_cpp.llama_model_load_from_file(path, params)
        if raised:
            raise raised[0]
        if not handle:
            reason = last_native_error() or "no reason given"
            raise ModelLoadError(f"llama.cpp could not load {str(config.path)!r}: {reason}")
        contexts: list[weakref.finalize[..., Any]] = []
        self._take(handle, contexts, weakref.finalize(self, _free, handle, contexts))
        if llama_cpp.llama_model_has_encoder(handle) or llama_cpp.llama_model_is_diffusion(handle):
            self.close()
            raise UnsupportedModelError(
                f"{config.path.name} is an encoder-decoder or diffusion model; only models that "
                "write text from left to right are supported"
            )

    @classmethod
    def adopt(cls, handle: object, path: Path, header: GgufInfo) -> LlamaModel:
        """Wrap a model that somebody else loaded, and frees after this object was closed."""
        self = cls.__new__(cls)
        self.path = path
        self.header = header
        # Which layers a GPU holds, if there is one, only their owner knows.
        self.is_on_cpu = not llama_cpp.llama_supports_gpu_offload()
        contexts: list[weakref.finalize[..., Any]] = []
        self._take(handle, contexts, weakref.finalize(self, _leave, contexts))
        return self

    def _take(
        self,
        handle: object,
        contexts: list[weakref.finalize[..., Any]],
        close: weakref.finalize[..., LlamaModel],
    ) -> None:
        self.handle = handle
        self._contexts = contexts
        self._close = close
        self._vocab = llama_cpp.llama_model_get_vocab(handle)
        self.n_vocab: int = llama_cpp.llama_vocab_n_tokens(self._vocab)
        self.n_ctx_train: int = llama_cpp.llama_model_n_ctx_train(handle)
        self.adds_bos: bool = llama_cpp.llama_vocab_get_add_bos(self._vocab)
        bos: int = llama_cpp.llama_vocab_bos(self._vocab)
        eos: int = llama_cpp.llama_vocab_eos(self._vocab)
        self.bos: TokenId | None = None if bos == _NO_TOKEN else bos
        self.eos: TokenId | None = None if eos == _NO_TOKEN else eos
        self._pieces: dict[tuple[TokenId, bool], bytes] = {}
        self.prefixes = TokenPrefixes()

    @property
    def is_closed(self) -> bool:
        """Whether the weights have been freed."""
        return not self._close.alive

    @property
    def weights_bytes(self) -> int:
        """Size of the weights."""
        self._require_open()
        n_bytes: int = llama_cpp.llama_model_size(self.handle)
        return n_bytes

    def _require_open(self) -> None:
        if self.is_closed:
            raise ClosedError("the model was closed; open it again to use it")

    @property
    def cannot_branch_because(self) -> str | None:
        """Why draft trees are impossible with this architecture, or None."""
        if llama_cpp.llama_model_is_recurrent(self.handle):
            return "a recurrent model cannot take back part of what it has read"
        if llama_cpp.llama_model_is_hybrid(self.handle):
            return "a model with recurrent layers cannot take back part of what it has read"
        return None

    @property
    def chat_template(self) -> str | None:
        """The chat template in the file, or None."""
        self._require_open()
        template = llama_cpp.llama_model_chat_template(self.handle, None)
        return template.decode("utf-8", "replace") if template else None

    def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[TokenId]:
        """Turn text into token ids.

        Args:
            text: any text without lone surrogates.
            add_special: put BOS (or EOS) where the model wants it; never twice.
            parse_special: read control tokens such as ``<|im_end|>`` in the text.

        Raises:
            ConfigError: the text has a lone surrogate, which no UTF-8 can carry.
        """
        self._require_open()
        try:
            encoded = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"the text is not valid Unicode: lone surrogate at character {error.start}"
            ) from None
        tokens: list[TokenId] = []
        for i, part in enumerate(self._parts(encoded, add_special, parse_special)):
            is_added = add_special and i == 0
            found = self._tokenized(part, add_special=is_added, parse_special=parse_special)
            tokens.extend(found.tolist())
        if add_special and self.adds_bos and tokens[:2] == [self.bos, self.bos]:
            del tokens[0]
        return tokens

    def _parts(self, text: bytes, add_special: bool, parse_special: bool) -> Iterable[bytes]:
        # What is added at the end would be added to every part.
        if len(text) <= _LONG_BYTES or (
            add_special and llama_cpp.llama_vocab_get_add_eos(self._vocab)
        ):
            return [text]
        return self._special_tokens.parts(text, parse_special=parse_special)

    def _tokenized(
        self, text: bytes, *, add_special: bool, parse_special: bool
    ) -> NDArray[np.int32]:
        tokens: NDArray[np.int32] = np.empty(len(text) + 8, np.int32)
        for _ in range(2):
            buffer = tokens.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
            n: int = llama_cpp.llama_tokenize(
                self._vocab, text, len(text), buffer, len(tokens), add_special, parse_special
            )
            if n >= 0:
                found: NDArray[np.int32] = tokens[:n]
                return found
            tokens = np.empty(-n, np.int32)
        raise ConfigError(f"a text of {len(text)} bytes cannot be tokenized")

    @functools.cached_property
    def _special_tokens(self) -> SpecialTokens:
        """Read when a long text comes: it takes as long as a decode step or two."""
        attributes = llama_cpp.llama_vocab_get_attr
        found = []
        for token in range(self.n_vocab):
            bits = int(attributes(self._vocab, token))
            if bits & _SPECIAL:
                text = llama_cpp.llama_vocab_get_text(self._vocab, token)
                found.append(
                    SpecialToken(
                        text,
                        is_control=bool(bits & _CONTROL),
                        strips_left=bool(bits & llama_cpp.LLAMA_TOKEN_ATTR_LSTRIP),
                        strips_right=bool(bits & llama_cpp.LLAMA_TOKEN_ATTR_RSTRIP),
                    )
                )
        return SpecialTokens(found)

    def tokenize_text(self, text: str) -> NDArray[np.int32]:
        """Turn ordinary text into token ids, int32 [n]: nothing is added, nothing is special.

        Unlike ``tokenize`` it is meant for much text: no list of numbers is made. Lone surrogates
        are replaced.
        """
        self._require_open()
        encoded = text.encode("utf-8", "replace")
        parts = [
            # Not a view of the buffer, which is as long as the text has bytes.
            self._tokenized(part, add_special=False, parse_special=False).copy()
            for part in self._parts(encoded, False, False)
        ]
        return np.concatenate(parts) if parts else np.empty(0, np.int32)

    def piece(self, token: TokenId, *, special: bool = False) -> bytes:
        """Return the bytes of a token; a control token has none unless ``special``."""
        known = self._pieces.get((token, special))
        if known is None:
            known = self._pieces[token, special] = self._read_piece(token, special)
        return known

    def _read_piece(self, token: TokenId, special: bool) -> bytes:
        self._require_open()
        # A buffer for each call: native code runs without Python's lock, on any thread.
        size = _PIECE_BYTES
        for _ in range(2):
            buffer = ctypes.create_string_buffer(size)
            n = llama_cpp.llama_token_to_piece(self._vocab, token, buffer, size, 0, special)
            if n >= 0:
                break
            size = -n
        return buffer.raw[: max(n, 0)]

    def detokenize(self, tokens: Sequence[TokenId]) -> bytes:
        """Return the bytes of a text's tokens; control tokens have none."""
        return b"".join(map(self.piece, tokens))

    def pieces(self) -> Iterator[bytes | None]:
        """Yield the bytes of every token, control tokens included; None for one that ends."""
        for token in range(self.n_vocab):
            yield None if self.is_end(token) else self._read_piece(token, True)

    def token_text(self, token: TokenId | None) -> str:
        """Return a token as templates write it, control tokens included."""
        return "" if token is None else self.piece(token, special=True).decode("utf-8", "replace")

    def fill_in_tokens(self) -> tuple[TokenId, TokenId, TokenId]:
        """Return the tokens before, after and at a gap in the text that is to be filled in.

        Raises:
            ConfigError: the model was not trained for that.
        """
        self._require_open()
        tokens = (
            llama_cpp.llama_vocab_fim_pre(self._vocab),
            llama_cpp.llama_vocab_fim_suf(self._vocab),
            llama_cpp.llama_vocab_fim_mid(self._vocab),
        )
        if _NO_TOKEN in tokens:
            raise ConfigError(
                "this model has no tokens for filling in the middle of a text; leave suffix out"
            )
        return tokens

    def is_end(self, token: TokenId) -> bool:
        """Whether the model's vocabulary marks this token as the end of a generation."""
        return bool(llama_cpp.llama_vocab_is_eog(self._vocab, token))

    def add_context(self, close: weakref.finalize[..., Any]) -> None:
        """Have a context on these weights closed before they are freed, whoever frees them."""
        self._contexts[:] = [*(context for context in self._contexts if context.alive), close]

    def close(self) -> None:
        """Free the weights, and before them what is open on them; a second call does nothing."""
        self._close()


def _leave(contexts: list[weakref.finalize[..., Any]]) -> None:
    """Free nothing of the model: somebody else does."""
    for close in contexts:
        close()


def _free(handle: object, contexts: list[weakref.finalize[..., Any]]) -> None:
    _leave(contexts)
    llama_cpp.llama_model_free(handle)


def _n_gpu_layers(config: ModelConfig) -> int:
    has_gpu = llama_cpp.llama_supports_gpu_offload()
    if config.device not in ("auto", "cpu") and not has_gpu:
        raise ConfigError(
            f"device {config.device} was asked for, but llama.cpp was built without GPU support; "
            f"rebuild it (make setup BACKEND={config.device}) or use --device cpu"
        )
    if config.device == "cpu" or not has_gpu:
        return 0
    asked = config.n_gpu_layers
    return _ALL_LAYERS if asked is None or asked < 0 else asked


def _guarded_progress(on_progress: Callable[[float], None], raised: list[BaseException]) -> object:
    # An exception cannot cross native frames: keep it, end the load, raise it afterwards.
    def report(share: float, _user_data: object) -> bool:
        try:
            on_progress(share)
        except BaseException as error:  # noqa: BLE001 - Ctrl-C included; raised by the caller
            raised.append(error)
            return False
        return True

    return llama_cpp.llama_progress_callback(report)
