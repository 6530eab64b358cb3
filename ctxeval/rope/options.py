"""Which options each scaling takes, and the checks on their values. Pure: no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from ctxeval.errors import UsageError, unknown

#: `none` is the reference that every other scaling is judged against, so nothing can change it.
OPTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "none": (),
        "pi": ("attention_factor",),
        "ntk": ("attention_factor",),
        "ntk-dynamic": ("attention_factor", "dynamic_factor"),
        "ntk-parts": ("attention_factor", "beta_fast", "beta_slow", "truncate"),
        "yarn": ("attention_factor", "beta_fast", "beta_slow", "truncate"),
        "llama3": ("attention_factor", "low_freq_factor", "high_freq_factor", "original_window"),
        "longrope": ("attention_factor", "short_factor", "long_factor"),
        "abf": ("attention_factor", "rope_theta"),
    }
)
#: Option → how it is given.
REQUIRED: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "abf": {"rope_theta": "--rope-theta"},
        "longrope": {"short_factor": "--rope-factors", "long_factor": "--rope-factors"},
    }
)
#: Methods whose frequencies depend on the context length: nothing cached for one length serves another.
LENGTH_DEPENDENT = frozenset({"ntk-dynamic", "longrope"})

#: Turns within the native window above which a pair is left alone, and below which it is interpolated in full
#: (jquesnelle/yarn and transformers; the paper calls them beta and alpha).
BETA_FAST = 32.0
BETA_SLOW = 1.0
#: Turns within the original window below which a pair is interpolated in full, and above which it is left alone, in
#: Llama 3.1.
LOW_FREQ_FACTOR = 1.0
HIGH_FREQ_FACTOR = 4.0
#: transformers' `factor` of dynamic NTK; with 1 the factor at a length is that length / L.
DYNAMIC_FACTOR = 1.0


def validate_options(method: str, options: Mapping[str, Any]) -> None:
    """Check that `method` exists and takes `options` with these values.

    Args:
        method: a canonical method name, a key of `OPTIONS`.
        options: `attention_factor`, `beta_fast`, `beta_slow`, `low_freq_factor`, `high_freq_factor` (turns),
            `original_window` (tokens), `truncate`, `rope_theta`, `dynamic_factor`, `short_factor`, `long_factor` (one
            number a rotary pair).

    Raises:
        UsageError: an unknown method or option (with the nearest name), a missing one, or a wrong type or value.
    """
    if method not in OPTIONS:
        raise unknown("scaling", method, OPTIONS)
    for name in options:
        if name not in OPTIONS[method]:
            raise _not_taken(method, name)
    for name, flag in REQUIRED.get(method, {}).items():
        if name not in options:
            raise UsageError(f"scaling {method} without {name}", f"give {flag}")
    for name, value in options.items():
        _CHECKS[name](name, value)
    _check_order(options, ("beta_fast", BETA_FAST), ("beta_slow", BETA_SLOW))
    _check_order(options, ("high_freq_factor", HIGH_FREQ_FACTOR), ("low_freq_factor", LOW_FREQ_FACTOR))


def parse_options(texts: Iterable[str]) -> dict[str, Any]:
    """Read options as the command line gives them: `beta_fast=16`, or several with commas between them.

    Raises:
        UsageError: an unknown name (with the nearest one), a value that is no number or boolean, or two values.
    """
    known = {name for names in OPTIONS.values() for name in names}
    options: dict[str, Any] = {}
    for pair in (part.strip() for text in texts for part in text.split(",")):
        if not pair:
            continue
        name, equals, value = (part.strip() for part in pair.partition("="))
        name = name.replace("-", "_")
        if not equals:
            raise UsageError(f"RoPE option {pair!r} has no value", "write it as beta_fast=16")
        if name not in known:
            raise unknown("RoPE option", name, known)
        read = _read_value(name, value)
        if options.get(name, read) != read:
            raise UsageError(f"RoPE option {name} is both {options[name]:g} and {read:g}", "give it once")
        options[name] = read
    return options


def _read_value(name: str, value: str) -> Any:
    if _CHECKS[name] is _factors:
        raise UsageError(f"RoPE option {name} is a list", "give a file with --rope-factors")
    if _CHECKS[name] is _boolean:
        if value.lower() not in ("true", "false"):
            raise UsageError(f"RoPE option {name}={value}", "it must be true or false")
        return value.lower() == "true"
    try:
        number = float(value)
    except ValueError:
        raise UsageError(f"RoPE option {name}={value}", "it must be a number") from None
    return int(number) if _CHECKS[name] is _window and number.is_integer() else number


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


def _check_order(options: Mapping[str, Any], upper: tuple[str, float], lower: tuple[str, float]) -> None:
    high, low = options.get(*upper), options.get(*lower)
    if not high > low:
        raise UsageError(
            f"{upper[0]} {high:g} is not above {lower[0]} {low:g}", f"pairs turn {upper[0]} > {lower[0]} > 0 times"
        )


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


def _window(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"{name} {value!r}", "it must be a whole number of tokens")


def _at_least_one(name: str, value: Any) -> None:
    if not _is_number(value) or value < 1:
        raise UsageError(f"{name} {value!r}", "it must be a finite number of at least 1")


def _factors(name: str, value: Any) -> None:
    if not isinstance(value, tuple | list) or not value or not all(_is_number(one) and one > 0 for one in value):
        shown = f"{len(value)} values" if isinstance(value, tuple | list) else repr(value)
        raise UsageError(f"{name} with {shown}", "it must be a list of finite numbers above 0, one a rotary pair")


_CHECKS: Mapping[str, Callable[[str, Any], None]] = MappingProxyType(
    {
        "attention_factor": _above(0),
        "beta_fast": _above(0),
        "beta_slow": _above(0),
        "truncate": _boolean,
        "low_freq_factor": _above(0),
        "high_freq_factor": _above(0),
        "original_window": _window,
        "dynamic_factor": _at_least_one,
        "short_factor": _factors,
        "long_factor": _factors,
        "rope_theta": _above(1),
    }
)
