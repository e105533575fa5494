"""What the page says about the model. Layer: pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from racer_local.gguf.info import GgufInfo

__all__ = ["PageFacts", "facts_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFacts:
    """What the page says about the model that is loaded.

    Attributes:
        name: of the file.
        kind: architecture, size and storage, in short.
        n_ctx: tokens the context holds.
        max_nodes: largest budget; 0 where drafting is impossible.
        is_chat: whether it has a chat template.
        is_exact: whether it is token-identical to plain decoding.
        notices: what the user should know.
        remembers: whether conversations are kept on this machine and drafted from later.
    """

    name: str
    kind: str
    n_ctx: int
    max_nodes: int
    is_chat: bool
    is_exact: bool
    notices: tuple[str, ...]
    remembers: bool = False


def facts_of(
    header: GgufInfo,
    *,
    n_ctx: int,
    max_nodes: int,
    is_exact: bool,
    notices: Sequence[str] = (),
    remembers: bool = False,
) -> PageFacts:
    """Say what the page shows of a model."""
    size = header.size_bytes / 1e6
    parts = [header.arch, header.file_type, f"{size:,.0f} MB" if size < 1000 else ""]
    parts.append(f"{size / 1000:,.1f} GB" if size >= 1000 else "")
    return PageFacts(
        name=header.path.name,
        kind=" · ".join(part for part in parts if part),
        n_ctx=n_ctx,
        max_nodes=max_nodes,
        is_chat=header.has_chat_template,
        is_exact=is_exact,
        notices=tuple(notices),
        remembers=remembers,
    )
