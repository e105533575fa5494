"""A child process that is always ended, and whose last words can be told. Layer: files.

Children idle while others are measured. Settings that make threads wait actively would let an
idle child burn the very cores that are being measured, so they are not inherited.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import IO

from racer_local.bench.contest import PeerError
from racer_local.concurrency.closing import Closing

__all__ = ["Child"]

_ACTIVE_WAIT = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")
_PATIENCE_S = 10.0


class Child(Closing):
    """A running program; ``close``, or leaving a ``with`` block, ends it."""

    def __init__(self, command: Sequence[str], *, name: str, with_pipes: bool) -> None:
        """Start it.

        Args:
            command: program and arguments.
            name: what error messages call it.
            with_pipes: connect ``requests`` and ``replies``; else both outputs go to its log.

        Raises:
            PeerError: it cannot be started.
        """
        self.name = name
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        environment = {key: v for key, v in os.environ.items() if key not in _ACTIVE_WAIT}
        try:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE if with_pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if with_pipes else self._log,
                stderr=self._log,
                env=environment,
                # Ctrl-C in the terminal is for us; we end the children in our own order.
                start_new_session=os.name != "nt",
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
            )
        except OSError as error:
            self._log.close()
            reason = error.strerror or error
            raise PeerError(f"cannot start {name} ({command[0]}): {reason}") from error

    @property
    def requests(self) -> IO[bytes]:
        """Its standard input."""
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def replies(self) -> IO[bytes]:
        """Its standard output."""
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    def failure(self, what: str) -> PeerError:
        """Make an error of what happened and the last line it logged."""
        code = self._process.poll()
        state = f", it ended with code {code}" if code is not None else ""
        last = self._last_line()
        return PeerError(f"{self.name}: {what}{state}{f'; its last words: {last}' if last else ''}")

    def _last_line(self) -> str:
        if self._log.closed:
            return ""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - 2000))
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:300] if lines else ""

    def close(self) -> None:
        """End it, kindly and then by force; a second call does nothing."""
        process = self._process
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                # A pipe to a program that has died cannot be flushed.
                try:
                    pipe.close()
                except OSError:
                    continue
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
            except KeyboardInterrupt:
                process.kill()
                raise
            finally:
                process.wait()
        self._log.close()


def python_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of ours in another interpreter."""
    return [sys.executable, "-m", module, *arguments]
