"""What each scaling promises about its frequencies, stated without the formula that computes them.

The proof of a patch compares the model with `scale_frequencies`; these facts guard `scale_frequencies` itself, so that
a slip in a formula (an exponent d for d - 2, a squared temperature) does not prove itself right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from ctxeval.rope.options import BETA_FAST, BETA_SLOW
from ctxeval.rope.scaling import Frequencies, Scaled, turns

#: Relative: fp64 arithmetic on some ten operations.
EXACT = 1e-9


def broken_promise(
    method: str, native: Frequencies, scaled: Scaled, *, native_window: int, factor: float, options: Mapping[str, Any]
) -> str:
    """Say which promise of `method` does not hold, with the numbers, or "" where all do.

    Args:
        method: a canonical method name.
        native: (rotary_dim/2,), rad/token, of which those that turn come first.
        scaled: what the method made of them; `attention_factor` relative to the native one.
        native_window: tokens.
        factor: target / native window.
        options: of the method.
    """
    moving = native > 0
    ratio = scaled.inv_freq[moving] / native[moving]
    promised = options.get("attention_factor", 0.1 * math.log(factor) + 1 if method == "yarn" else 1.0)
    if not math.isclose(scaled.attention_factor, promised, rel_tol=EXACT):
        return f"attention factor {scaled.attention_factor:.6g}, {method} promises {promised:.6g}"
    return _PROMISES[method](native[moving], ratio, native_window, factor, options)


def _none(native: Frequencies, ratio: Frequencies, window: int, factor: float, options: Mapping[str, Any]) -> str:
    return _all_equal("every frequency", ratio, 1.0)


def _pi(native: Frequencies, ratio: Frequencies, window: int, factor: float, options: Mapping[str, Any]) -> str:
    return _all_equal("every frequency", ratio, 1 / factor)


def _ntk(native: Frequencies, ratio: Frequencies, window: int, factor: float, options: Mapping[str, Any]) -> str:
    return (
        _all_equal("the fastest pair", ratio[:1], 1.0)
        or _all_equal("the slowest pair", ratio[-1:], 1 / factor)
        or _all_equal("each step", ratio[1:] / ratio[:-1], float(ratio[1] / ratio[0]))
    )


def _parts(native: Frequencies, ratio: Frequencies, window: int, factor: float, options: Mapping[str, Any]) -> str:
    count = turns(native, window)
    fast = count > options.get("beta_fast", BETA_FAST) * (1 + 1e-6)
    slow = count < options.get("beta_slow", BETA_SLOW) * (1 - 1e-6)
    if np.any(np.diff(ratio) > EXACT) or np.any(ratio > 1 + EXACT) or np.any(ratio < (1 - EXACT) / factor):
        return f"ratios from {ratio.max():.6g} to {ratio.min():.6g} do not fall from 1 to {1 / factor:.6g}"
    return _all_equal("every fast pair", ratio[fast], 1.0) or _all_equal("every slow pair", ratio[slow], 1 / factor)


def _abf(native: Frequencies, ratio: Frequencies, window: int, factor: float, options: Mapping[str, Any]) -> str:
    return _all_equal("the fastest pair", ratio[:1], 1.0, tolerance=2e-6)


def _all_equal(what: str, ratio: Frequencies, promised: float, tolerance: float = EXACT) -> str:
    off = np.abs(ratio / promised - 1)
    if ratio.size == 0 or float(off.max()) <= tolerance:
        return ""
    return f"{what} is multiplied by {ratio[off.argmax()]:.6g}, promised was {promised:.6g}"


_PROMISES: Mapping[str, Callable[..., str]] = MappingProxyType(
    {"none": _none, "pi": _pi, "ntk": _ntk, "ntk-parts": _parts, "yarn": _parts, "abf": _abf}
)
