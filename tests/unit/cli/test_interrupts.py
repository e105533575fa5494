"""Ctrl-C is counted everywhere and raised only where that was asked for."""

from __future__ import annotations

import signal
import threading

import pytest

from racer_local.cli.interrupts import Interrupts


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def test_it_is_counted_where_nothing_is_going_on() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        press()
        press()
        press()
        press()
        assert interrupts.take() == 4
        assert interrupts.take() == 0
    assert signal.getsignal(signal.SIGINT) is before


def test_the_first_one_stops_what_runs_and_the_third_does_not_wait() -> None:
    stopped = threading.Event()
    with Interrupts() as interrupts:
        with interrupts.stopping(stopped.set):
            press()
            assert stopped.wait(10)
            stopped.clear()
            press()
            assert interrupts.count == 2
            with pytest.raises(KeyboardInterrupt):
                press()
        assert not stopped.is_set()


def test_one_from_just_before_is_not_forgotten() -> None:
    with Interrupts() as interrupts:
        press()
        with interrupts.stopping(lambda: None):
            assert interrupts.count == 1
        with pytest.raises(KeyboardInterrupt), interrupts.raising():
            pytest.fail("the block must not be entered")


def test_it_raises_in_a_block_that_may_be_left_anywhere() -> None:
    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt), interrupts.raising():
            press()
        press()
        assert interrupts.take() == 1
