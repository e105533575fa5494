"""Every limit of the server, in one place. Layer: pure (standard library only)."""

from __future__ import annotations

from dataclasses import dataclass

from racer_local.errors import ConfigError

__all__ = ["ServeConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """What the server allows.

    Attributes:
        api_key: requests have to bring it; None asks for none.
        max_queue: requests that may wait while one is served; more are refused with 503.
        idle_unload_s: seconds without a request after which the model is unloaded; None keeps it.
        max_body_bytes: of a request.
        max_prompt_chars: of a prompt or conversation, per token of the context. No token is
            longer on average, so what is refused by it would not have fitted.
        min_prompt_chars: shorter ones are always counted in tokens.
        template_s: seconds that the chat template may take.
    """

    api_key: str | None = None
    max_queue: int = 32
    idle_unload_s: float | None = None
    max_body_bytes: int = 16 * 2**20
    max_prompt_chars: int = 32
    min_prompt_chars: int = 65_536
    template_s: float = 5.0

    def __post_init__(self) -> None:
        """Check what a user can set.

        Raises:
            ConfigError: a value is out of range.
        """
        if not 0 <= self.max_queue <= 10_000:
            raise ConfigError(f"the queue is {self.max_queue}; it must be from 0 to 10000")
        if self.idle_unload_s is not None and not 0 < self.idle_unload_s <= 10**7:
            raise ConfigError("the minutes of idle unload must be more than 0, at most 100000")
        if self.api_key is not None and not self.api_key.strip():
            raise ConfigError("the API key is empty; give one or leave the option out")

    def prompt_chars(self, n_ctx: int) -> int:
        """Return the most characters of a prompt for a context of this size."""
        return max(self.min_prompt_chars, self.max_prompt_chars * n_ctx)
