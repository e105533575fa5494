"""Which ``Host`` and ``Origin`` headers are ours. Layer: pure (standard library only).

A server on the loopback address is reachable from every web page that the user visits: a page can
post to it, and a name that its owner points at 127.0.0.1 (DNS rebinding) makes the browser count
our answers as that page's own. Both show in headers that a page cannot forge.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field

from racer_local.errors import ConfigError

__all__ = ["TrustedNames", "is_loopback", "require_safe_bind"]

_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::(?P<port>[0-9]{1,5}))?")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#@\\]+")
# How a program inside a container calls the machine it runs on.
_CONTAINER_NAMES = frozenset({"host.docker.internal", "host.containers.internal"})


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Tell whether binding to this address or name keeps a server on this machine."""
    address = _address(host)
    return address.is_loopback if address is not None else host.lower() == "localhost"


def require_safe_bind(host: str, *, has_key: bool, is_forced: bool = False) -> None:
    """Refuse to serve other machines without a key.

    Args:
        host: the address to bind.
        has_key: whether requests need a key.
        is_forced: whether the user insists.

    Raises:
        ConfigError: anyone on the network could use the model.
    """
    if not (is_loopback(host) or has_key or is_forced):
        raise ConfigError(
            f"serving on {host} lets every machine that reaches this one use the model; "
            "keep 127.0.0.1, or set an API key"
        )


@dataclass(frozen=True, slots=True)
class TrustedNames:
    """Decides about headers.

    Attributes:
        bind: the address that is served. Bound to the loopback address, only names of this
            machine are answered; else any numeric address too, for only names can be rebound.
        hosts: further names, without a port.
        origins: web origins that may call, such as ``https://app.example``; ``null`` admits
            pages without one (sandboxed frames, files).
    """

    bind: str = "127.0.0.1"
    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()
    _own: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        """Check and normalise the names.

        Raises:
            ConfigError: an origin is not one.
        """
        for origin in self.origins:
            if origin != "null" and not _ORIGIN.fullmatch(origin.lower()):
                raise ConfigError(
                    f"{origin!r} is not a web origin; write scheme, host and port only, as in "
                    "http://localhost:3000"
                )
        own = {"localhost", socket.gethostname().lower(), *_CONTAINER_NAMES, *_lower(self.hosts)}
        object.__setattr__(self, "origins", frozenset(_lower(self.origins)))
        object.__setattr__(self, "_own", frozenset(own))

    def accepts_host(self, header: str) -> bool:
        """Tell whether a ``Host`` header names this server."""
        match = _HOST.fullmatch(header.lower())
        if match is None or int(match["port"] or 0) > 65535:
            return False
        name = match["name"].removesuffix(".")
        address = _address(name)
        if address is not None:
            return address.is_loopback or not is_loopback(self.bind)
        return name in self._own or name.endswith(".localhost")

    def accepts_origin(self, origin: str, host: str) -> bool:
        """Tell whether a page of ``origin`` may call.

        Args:
            origin: the ``Origin`` header.
            host: the ``Host`` header of the same request, accepted before.
        """
        origin, host = origin.lower(), host.lower()
        return origin in (f"http://{host}", f"https://{host}") or origin in self.origins


def _lower(names: Iterable[str]) -> set[str]:
    return {name.lower().removesuffix(".") for name in names}
