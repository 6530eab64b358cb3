"""SIGINT and SIGTERM end a command in order, each with its own exit code."""

from __future__ import annotations

import signal
import time
from types import FrameType

from ctxeval.errors import ExitCode

_MEANING = {
    signal.SIGINT: (ExitCode.INTERRUPTED, "interrupted"),
    signal.SIGTERM: (ExitCode.PREEMPTED, "pre-empted by SIGTERM"),
}


#: Seconds after a signal in which another changes nothing: an impatient second Ctrl-C must not cut the ending short.
#: Later ones count again: an exception raised while python runs a destructor is lost.
_GRACE = 2.0
_arrivals: list[float] = []


class Stopped(BaseException):
    """A signal asked the command to end. No KeyboardInterrupt: typer turns that into a silent exit of its own."""

    def __init__(self, number: int) -> None:
        """Take the signal's number."""
        self.exit_code, message = _MEANING[signal.Signals(number)]
        super().__init__(message)


def install() -> None:
    """Raise `Stopped` when a signal arrives. One that the parent ignores (nohup) stays ignored."""
    for number in _MEANING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)


def ignore() -> None:
    """Ignore further signals: the last words are being said."""
    for number in _MEANING:
        signal.signal(number, signal.SIG_IGN)


def _stop(number: int, frame: FrameType | None) -> None:
    now = time.monotonic()
    if _arrivals and now - _arrivals[-1] < _GRACE:
        return
    _arrivals.append(now)
    raise Stopped(number)
