"""Which options each scaling takes, and the checks on their values. Pure: no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from ctxeval.errors import UsageError, unknown

#: `none` is the reference that every other scaling is judged against, so nothing can change it.
OPTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "none": (),
        "pi": ("attention_factor",),
        "ntk": ("attention_factor",),
        "ntk-parts": ("attention_factor", "beta_fast", "beta_slow", "truncate"),
        "yarn": ("attention_factor", "beta_fast", "beta_slow", "truncate"),
        "abf": ("attention_factor", "rope_theta"),
    }
)
REQUIRED: Mapping[str, tuple[str, ...]] = MappingProxyType({"abf": ("rope_theta",)})

#: Turns within the native window above which a pair is left alone, and below which it is interpolated in full
#: (jquesnelle/yarn and transformers; the paper calls them beta and alpha).
BETA_FAST = 32.0
BETA_SLOW = 1.0


def validate_options(method: str, options: Mapping[str, Any]) -> None:
    """Check that `method` exists and takes `options` with these values.

    Args:
        method: a canonical method name, a key of `OPTIONS`.
        options: `attention_factor`, `beta_fast`, `beta_slow` (turns), `truncate`, `rope_theta`.

    Raises:
        UsageError: an unknown method or option (with the nearest name), a missing one, or a wrong type or value.
    """
    if method not in OPTIONS:
        raise unknown("scaling", method, OPTIONS)
    for name in options:
        if name not in OPTIONS[method]:
            raise _not_taken(method, name)
    for name in REQUIRED.get(method, ()):
        if name not in options:
            raise UsageError(f"scaling {method} without {name}", f"give {_flag(name)}")
    for name, value in options.items():
        _CHECKS[name](name, value)
    fast, slow = options.get("beta_fast", BETA_FAST), options.get("beta_slow", BETA_SLOW)
    if not fast > slow:
        raise UsageError(
            f"beta_fast {fast:g} is not above beta_slow {slow:g}", "pairs turn beta_fast > beta_slow > 0 times"
        )


def validate_factor(factor: float) -> None:
    """Check a scaling factor (target length / native window): a finite number of at least 1.

    Raises:
        UsageError: it is anything else.
    """
    if not _is_number(factor) or factor < 1:
        raise UsageError(f"factor {factor!r}", "it must be a finite number of at least 1 (target / native window)")


def validate_window(window: int) -> None:
    """Check a context window in tokens: a whole number of at least 1.

    Raises:
        UsageError: it is anything else.
    """
    if isinstance(window, bool) or not isinstance(window, int) or window < 1:
        raise UsageError(f"native window {window!r}", "it must be a whole number of tokens; give --native-window")


def _not_taken(method: str, name: str) -> UsageError:
    takers = sorted(other for other, names in OPTIONS.items() if name in names)
    if takers:
        return UsageError(f"scaling {method} takes no option {name!r}", f"it belongs to {', '.join(takers)}")
    if not OPTIONS[method]:
        return UsageError(f"scaling {method} takes no options, got {name!r}", "drop it")
    return unknown(f"option of scaling {method}", name, OPTIONS[method])


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _above(bound: float) -> Callable[[str, Any], None]:
    def check(name: str, value: Any) -> None:
        if not _is_number(value) or not value > bound:
            raise UsageError(f"{name} {value!r}", f"it must be a finite number above {bound:g}")

    return check


def _boolean(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise UsageError(f"{name} {value!r}", "it must be true or false")


_CHECKS: Mapping[str, Callable[[str, Any], None]] = MappingProxyType(
    {
        "attention_factor": _above(0),
        "beta_fast": _above(0),
        "beta_slow": _above(0),
        "truncate": _boolean,
        "rope_theta": _above(1),
    }
)
