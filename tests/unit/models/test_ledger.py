"""The note of pulled files: several processes write it."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from racer_local.models.hub import ledger


def test_two_pulls_that_end_at_once_are_both_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    has_read, other_waits = threading.Event(), threading.Event()
    lock, read = ledger.file_lock, ledger.pulled_files

    def read_and_wait() -> set[str]:
        found = read()
        if not has_read.is_set():
            has_read.set()
            other_waits.wait()
        return found

    def lock_of_another(path: Path) -> AbstractContextManager[None]:
        if has_read.is_set():
            other_waits.set()
        return lock(path)

    monkeypatch.setattr(ledger, "pulled_files", read_and_wait)
    monkeypatch.setattr(ledger, "file_lock", lock_of_another)
    first = threading.Thread(target=lambda: ledger.record([Path("a.gguf")]))
    first.start()
    has_read.wait()
    ledger.record([Path("b.gguf")])
    first.join()
    assert read() == {"a.gguf", "b.gguf"}
    ledger.forget([Path("a.gguf")])
    assert read() == {"b.gguf"}
