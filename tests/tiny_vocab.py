"""Small vocabularies for the tiny test models: any text can be tokenized with them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gguf

__all__ = ["CHATML_TEMPLATE", "Vocab", "bpe_vocab", "spm_vocab", "ugm_vocab", "wpm_vocab"]

CHATML_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_NORMAL = int(gguf.TokenType.NORMAL)
_UNKNOWN = int(gguf.TokenType.UNKNOWN)
_CONTROL = int(gguf.TokenType.CONTROL)
_BYTE = int(gguf.TokenType.BYTE)

# All prefixes of these become tokens, so that ordinary English is shorter than its bytes.
_WORDS = ("the", "and", "model", "token", "draft", "say", "hello", "world", "you", "one", "two")
_SPACE = "\u2581"  # how SentencePiece writes a space


@dataclass
class Vocab:
    """A vocabulary and the keys that describe it."""

    model: str
    tokens: list[str]
    types: list[int]
    scores: list[float] | None = None
    merges: list[str] | None = None
    pre: str | None = None
    special: dict[str, int] = field(default_factory=dict)
    add_bos: bool | None = None

    @property
    def special_ids(self) -> list[int]:
        """Tokens that should not come up in ordinary text."""
        return [i for i, kind in enumerate(self.types) if kind in (_CONTROL, _UNKNOWN)]

    def add_to(self, writer: Any) -> None:
        """Write the vocabulary's keys."""
        writer.add_tokenizer_model(self.model)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.types)
        if self.scores is not None:
            writer.add_token_scores(self.scores)
        if self.merges is not None:
            writer.add_token_merges(self.merges)
        if self.pre is not None:
            writer.add_tokenizer_pre(self.pre)
        if self.add_bos is not None:
            writer.add_add_bos_token(self.add_bos)
        for name, token in self.special.items():
            getattr(writer, f"add_{name}_token_id")(token)


def _word_prefixes(space: str) -> list[str]:
    pieces = [space + word[:n] for word in _WORDS for n in range(1, len(word) + 1)]
    return list(dict.fromkeys(pieces))


def _printable() -> list[str]:
    return [chr(code) for code in range(0x21, 0x7F)]


def spm_vocab() -> Vocab:
    """Make a SentencePiece vocabulary with byte fallback and ChatML marks."""
    specials = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    byte_tokens = [f"<0x{value:02X}>" for value in range(256)]
    pieces = [_SPACE, *_printable(), *_word_prefixes(_SPACE)]
    n_special = len(specials)
    return Vocab(
        model="llama",
        tokens=specials + byte_tokens + pieces,
        types=[_UNKNOWN] + [_CONTROL] * (n_special - 1) + [_BYTE] * 256 + [_NORMAL] * len(pieces),
        scores=[0.0] * (n_special + 256) + [float(len(piece)) for piece in pieces],
        special={"unk": 0, "bos": 1, "eos": 2},
        add_bos=True,
    )


def _byte_letters() -> list[str]:
    """Return the letter that stands for each byte in a GPT-2 vocabulary.

    Printable Latin-1 bytes stand for themselves; the others are numbered upwards from U+0100.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def bpe_vocab() -> Vocab:
    """Make a byte-level BPE vocabulary with a few merges and ChatML marks; no BOS is added."""
    letters = _byte_letters()
    words = [piece for piece in _word_prefixes(letters[0x20]) if len(piece) > 1]
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = letters + words + specials
    n_normal = len(letters) + len(words)
    return Vocab(
        model="gpt2",
        tokens=tokens,
        types=[_NORMAL] * n_normal + [_CONTROL] * len(specials),
        merges=[f"{piece[:-1]} {piece[-1]}" for piece in words],
        pre="gpt-2",
        special={"bos": n_normal, "eos": n_normal},
        add_bos=False,
    )


def ugm_vocab() -> Vocab:
    """Make a unigram vocabulary as t5 has it."""
    pieces = [_SPACE, *_printable(), *_word_prefixes(_SPACE)]
    return Vocab(
        model="t5",
        tokens=["<pad>", "</s>", "<unk>", *pieces],
        types=[_CONTROL, _CONTROL, _UNKNOWN] + [_NORMAL] * len(pieces),
        scores=[0.0, 0.0, 0.0] + [-1.0 / len(piece) for piece in pieces],
        special={"pad": 0, "eos": 1, "unk": 2},
    )


def wpm_vocab() -> Vocab:
    """Make a WordPiece vocabulary as bert has it."""
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    inner = _printable()
    first = [_SPACE + letter for letter in inner]
    words = [piece for piece in _word_prefixes(_SPACE) if len(piece) > 2]
    return Vocab(
        model="bert",
        tokens=specials + first + inner + words,
        types=[_CONTROL] * len(specials) + [_NORMAL] * (len(first) + len(inner) + len(words)),
        special={"pad": 0, "unk": 1, "bos": 2, "eos": 3, "sep": 3, "mask": 4},
    )
