"""What each scaling promises about its frequencies, stated without the formula that computes them.

The proof of a patch compares the model with `scale_frequencies`; these facts guard `scale_frequencies` itself, so that
a slip in a formula (an exponent d for d - 2, a squared temperature) does not prove itself right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxeval.rope.frequencies import Frequencies, Scaled, turns
from ctxeval.rope.options import BETA_FAST, BETA_SLOW, DYNAMIC_FACTOR, HIGH_FREQ_FACTOR, LOW_FREQ_FACTOR

#: Relative: fp64 arithmetic on some ten operations.
EXACT = 1e-9


@dataclass(frozen=True)
class Request:
    """What a method was asked for: L in tokens, s = target / L, its options, and the length it is frozen at."""

    window: int
    factor: float
    options: Mapping[str, Any]
    length: int


def broken_promise(
    method: str,
    native: Frequencies,
    scaled: Scaled,
    *,
    native_window: int,
    factor: float,
    options: Mapping[str, Any],
    context_length: int | None = None,
) -> str:
    """Say which promise of `method` does not hold, with the numbers, or "" where all do.

    Args:
        method: a canonical method name.
        native: what it started from, (rotary_dim/2,), rad/token, of which those that turn come first.
        scaled: what the method made of them; `attention_factor` relative to the native one.
        native_window: L, tokens.
        factor: target / L.
        options: of the method.
        context_length: tokens that the frequencies are frozen for, where they depend on it; by default factor * L.
    """
    length = round(factor * native_window) if context_length is None else context_length
    asked = Request(native_window, factor, options, length)
    promised = options.get("attention_factor", _temperature(method, asked))
    if not math.isclose(scaled.attention_factor, promised, rel_tol=EXACT):
        return f"attention factor {scaled.attention_factor:.6g}, {method} promises {promised:.6g}"
    moving = native > 0
    return _PROMISES[method](native[moving], scaled.inv_freq[moving] / native[moving], asked)


def _temperature(method: str, asked: Request) -> float:
    if method == "yarn":
        return 0.1 * math.log(asked.factor) + 1
    if method == "longrope":  # its square is the logarithm of the target in base L
        return math.sqrt(math.log(asked.factor * asked.window, asked.window))
    return 1.0


def _none(native: Frequencies, ratio: Frequencies, asked: Request) -> str:
    return _all_equal("every frequency", ratio, 1.0)


def _pi(native: Frequencies, ratio: Frequencies, asked: Request) -> str:
    return _all_equal("every frequency", ratio, 1 / asked.factor)


def _ntk(native: Frequencies, ratio: Frequencies, asked: Request) -> str:
    return _steps(ratio, 1 / asked.factor)


def _ntk_dynamic(native: Frequencies, ratio: Frequencies, asked: Request) -> str:
    """Up to L nothing moves; beyond, the slowest pair is as far after l tokens as natively after L, if f is 1."""
    if asked.length <= asked.window:
        return _all_equal("every frequency within the window", ratio, 1.0)
    beyond = (asked.length - asked.window) * asked.options.get("dynamic_factor", DYNAMIC_FACTOR)
    return _steps(ratio, asked.window / (asked.window + beyond))


def _steps(ratio: Frequencies, last: float) -> str:
    """From 1 at the fastest pair to `last` at the slowest, by equal steps."""
    return (
        _all_equal("the fastest pair", ratio[:1], 1.0)
        or _all_equal("the slowest pair", ratio[-1:], last)
        or _all_equal("each step", ratio[1:] / ratio[:-1], float(ratio[1] / ratio[0]))
    )


def _parts(native: Frequencies, ratio: Frequencies, asked: Request) -> str:
    count = turns(native, asked.window)
    fast = count > asked.options.get("beta_fast", BETA_FAST) * (1 + 1e-6)
    slow = count < asked.options.get("beta_slow", BETA_SLOW) * (1 - 1e-6)
    return _between(ratio, fast, slow, asked.factor)


def _llama3(native: Frequencies, ratio: Frequencies, asked: Request) -> str:
    """Fast pairs are kept, slow ones divided, and between them the ratio goes with the number of turns."""
    count = turns(native, asked.options.get("original_window") or asked.window)
    high = asked.options.get("high_freq_factor", HIGH_FREQ_FACTOR)
    low = asked.options.get("low_freq_factor", LOW_FREQ_FACTOR)
    middle = (count < high * (1 - 1e-6)) & (count > low * (1 + 1e-6))
    slopes = (1 - ratio[middle]) / (high - count[middle])
    wanted = (1 - 1 / asked.factor) / (high - low)
    off = float(np.abs(slopes - wanted).max()) if slopes.size else 0.0
    if off > 1e-6:
        return f"between {low:g} and {high:g} turns the ratio does not go with the turns: slopes off by {off:.3g}"
    order = np.argsort(-native, kind="stable")  # a table of per-pair factors need not fall
    fast, slow = count > high * (1 + 1e-6), count < low * (1 - 1e-6)
    return _between(ratio[order], fast[order], slow[order], asked.factor)


def _between(ratio: Frequencies, fast: NDArray[np.bool_], slow: NDArray[np.bool_], factor: float) -> str:
    if np.any(np.diff(ratio) > EXACT) or np.any(ratio > 1 + EXACT) or np.any(ratio < (1 - EXACT) / factor):
        return f"ratios from {ratio.max():.6g} to {ratio.min():.6g} do not fall from 1 to {1 / factor:.6g}"
    return _all_equal("every fast pair", ratio[fast], 1.0) or _all_equal("every slow pair", ratio[slow], 1 / factor)


def _longrope(native: Frequencies, ratio: Frequencies, asked: Request) -> str:
    """Each pair takes as many times longer for a turn as its factor says: a long one beyond L, a short one up to L."""
    name = "long_factor" if asked.length > asked.window else "short_factor"
    stretched = 1 / ratio / np.asarray(asked.options[name], dtype=np.float64)[: ratio.size]
    return _all_equal(f"every wavelength over its {name}", stretched, 1.0)


def _abf(native: Frequencies, ratio: Frequencies, asked: Request) -> str:
    return _all_equal("the fastest pair", ratio[:1], 1.0, tolerance=2e-6)


def _all_equal(what: str, ratio: Frequencies, promised: float, tolerance: float = EXACT) -> str:
    off = np.abs(ratio / promised - 1)
    if ratio.size == 0 or float(off.max()) <= tolerance:
        return ""
    return f"{what} is multiplied by {ratio[off.argmax()]:.6g}, promised was {promised:.6g}"


_PROMISES: Mapping[str, Callable[..., str]] = MappingProxyType(
    {
        "none": _none,
        "pi": _pi,
        "ntk": _ntk,
        "ntk-dynamic": _ntk_dynamic,
        "ntk-parts": _parts,
        "yarn": _parts,
        "llama3": _llama3,
        "longrope": _longrope,
        "abf": _abf,
    }
)
