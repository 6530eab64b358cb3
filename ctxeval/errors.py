"""What ctxeval says when it cannot go on, and the exit code each kind of trouble ends with."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every command; 1 means a failed gate and nothing else."""

    OK = 0
    GATE_FAILED = 1
    USAGE = 2
    RUN_FAILED = 3
    INCONCLUSIVE = 4
    PREEMPTED = 75
    INTERRUPTED = 130


class CtxevalError(Exception):
    """Something that the user can act on: shown as one line, never as a traceback.

    `message` names the thing and its value; `hint` says what would be right, or how to mend it.
    """

    exit_code = ExitCode.RUN_FAILED

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message}. {hint}" if hint else message)
        self.message = message
        self.hint = hint


class UsageError(CtxevalError):
    """Found before any weights are loaded: options, configuration, unreadable or unlike input."""

    exit_code = ExitCode.USAGE


class RunError(CtxevalError):
    """The run failed after it began: cannot load, cannot write, every cell failed."""

    exit_code = ExitCode.RUN_FAILED


def unknown(kind: str, value: str, known: Iterable[str]) -> UsageError:
    """Build the error for a name that is not in `known`, with the nearest name as the hint."""
    names = sorted(known)
    near = difflib.get_close_matches(value, names, n=1, cutoff=0.5)
    guess = f"Did you mean {near[0]!r}? " if near else ""
    return UsageError(f"unknown {kind} {value!r}", f"{guess}Known: {', '.join(names)}")
