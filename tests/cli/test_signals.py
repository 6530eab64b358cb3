"""Signals become an orderly end, once: what comes right behind changes nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from ctxeval.cli import signals


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Install the handlers over a clock that the test sets, and put the old ones back."""
    now = [100.0]
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(signals, "_arrivals", [])
    monkeypatch.setattr("ctxeval.cli.signals.time.monotonic", lambda: now[0])
    signals.install()
    yield now
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    ("number", "code", "words"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 75, "pre-empted by SIGTERM")]
)
def test_a_signal_ends_with_its_own_code(number: int, code: int, words: str, clock: list[float]) -> None:
    with pytest.raises(signals.Stopped, match=words) as caught:
        send(number)
    assert caught.value.exit_code == code


def test_a_second_one_counts_only_later(clock: list[float]) -> None:
    with pytest.raises(signals.Stopped):
        send(signal.SIGINT)
    clock[0] += 1.9
    send(signal.SIGINT)
    send(signal.SIGTERM)
    clock[0] += 0.2
    with pytest.raises(signals.Stopped):
        send(signal.SIGINT)


def test_none_counts_once_the_last_words_are_said(clock: list[float]) -> None:
    signals.ignore()
    send(signal.SIGINT)
    send(signal.SIGTERM)


def test_what_the_parent_ignores_stays_ignored(clock: list[float]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signals.install()
    send(signal.SIGINT)
