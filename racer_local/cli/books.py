"""What the commands share that draft from phrase books and remember texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from racer_local.config import DraftConfig
from racer_local.errors import ConfigError
from racer_local.wording import counted, quoted

if TYPE_CHECKING:
    from racer_local.decoding.session import Session
    from racer_local.speculation.stats import Stats

__all__ = ["book_arguments", "check_books", "remember", "source_lines"]

_MAX_ORIGINS = 8


def check_books(options: dict[str, Any], draft: DraftConfig) -> None:
    """Refuse books in a draft mode that does not look into them.

    Raises:
        ConfigError: saying so.
    """
    if options["books"] and draft.mode != "auto":
        raise ConfigError(
            f"phrase books are used by --draft auto only, and --draft {draft.mode} was asked for; "
            "leave out --book or --draft"
        )


def book_arguments(options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``Session`` that the options make."""
    return {"books": options["books"], "use_memory": options.get("remember", False)}


def remember(session: Session, tokens: Sequence[int], say: Callable[[str], None]) -> None:
    """Keep a text and tell where it is.

    Raises:
        ConfigError: it cannot be kept.
    """
    path = session.remember(tokens)
    say(f"remembered in {path}; racer-local forget removes it")


def source_lines(stats: Stats, origins: Sequence[tuple[str, int]]) -> Iterator[str]:
    """Say which sources drafted how much, and which files accepted drafts came from."""
    for source, count in stats.by_source.items():
        if count.drafted:
            share = count.accepted / count.drafted
            yield (
                f"{source.name.lower()}: drafted {count.drafted}, accepted {count.accepted} "
                f"({share:.0%})"
            )
    for name, n_tokens in origins[:_MAX_ORIGINS]:
        yield f"  {counted(n_tokens, 'token')} from {quoted(name)}"
    if len(origins) > _MAX_ORIGINS:
        rest = sum(n_tokens for _, n_tokens in origins[_MAX_ORIGINS:])
        others = counted(len(origins) - _MAX_ORIGINS, "other file")
        yield f"  {counted(rest, 'token')} from {others}"
