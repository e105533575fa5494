"""Settings of a chat that change while it goes on. Layer: pure (standard library only)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from racer_local.config import GenerationConfig, SamplingConfig
from racer_local.errors import ConfigError
from racer_local.wording import quoted

__all__ = ["SETTING_NAMES", "ChatSettings"]


@dataclass(frozen=True, slots=True)
class _Setting:
    field: str
    kind: Callable[[str], Any]
    shown: str
    can_be_none: bool = False


_SAMPLING = {
    "temp": _Setting("temperature", float, "a number"),
    "top-k": _Setting("top_k", int, "a whole number"),
    "top-p": _Setting("top_p", float, "a number"),
    "min-p": _Setting("min_p", float, "a number"),
    "repeat-penalty": _Setting("repeat_penalty", float, "a number"),
    "presence-penalty": _Setting("presence_penalty", float, "a number"),
    "frequency-penalty": _Setting("frequency_penalty", float, "a number"),
    "seed": _Setting("seed", int, "a whole number, or none for a fresh one", True),
}
_LIMITS = {"max-tokens": _Setting("max_tokens", int, "a whole number, or none", True)}
_STOP = "stop"

SETTING_NAMES = (*_SAMPLING, *_LIMITS, _STOP)


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """How answers are chosen and when they end."""

    sampling: SamplingConfig
    limits: GenerationConfig

    def describe(self) -> list[tuple[str, str]]:
        """List every setting by its name, with its value."""
        rows = [(name, _shown(getattr(self.sampling, s.field))) for name, s in _SAMPLING.items()]
        rows += [(name, _shown(getattr(self.limits, s.field))) for name, s in _LIMITS.items()]
        stops = ", ".join(quoted(stop) for stop in self.limits.stop)
        return [*rows, (_STOP, stops or "none")]

    def changed(self, name: str, value: str) -> ChatSettings:
        """Return the settings with one changed.

        Raises:
            ConfigError: there is no such setting, or the value is out of its range.
        """
        name = name.lower().replace("_", "-").removeprefix("--")
        name = {"temperature": "temp"}.get(name, name)
        if name == _STOP:
            stop = () if value == "none" else (value,)
            return replace(self, limits=replace(self.limits, stop=stop))
        setting = _SAMPLING.get(name) or _LIMITS.get(name)
        if setting is None:
            raise ConfigError(
                f"there is no setting {quoted(name)}; there are: {', '.join(SETTING_NAMES)}"
            )
        parsed: Any = None
        if not (setting.can_be_none and value.lower() in ("none", "random", "off")):
            try:
                parsed = setting.kind(value)
            except ValueError:
                raise ConfigError(
                    f"{name} is {quoted(value)}; it must be {setting.shown}"
                ) from None
        if name in _SAMPLING:
            return replace(self, sampling=replace(self.sampling, **{setting.field: parsed}))
        return replace(self, limits=replace(self.limits, **{setting.field: parsed}))


def _shown(value: object) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
