"""A ``with`` block that ends by closing. Layer: pure (standard library only)."""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

__all__ = ["Closing"]

_T = TypeVar("_T", bound="Closing")


class Closing:
    """Gives whatever has a ``close`` the use as a context manager."""

    def close(self) -> None:
        """End it; a second call does nothing."""
        raise NotImplementedError

    def __enter__(self: _T) -> _T:
        """Return the object itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it, whatever ended the block."""
        self.close()
