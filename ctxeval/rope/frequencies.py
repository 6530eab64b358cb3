"""Vectors of rotary frequencies: what scalings are made of, and where in them a pair lies. Pure, fp64.

Notation as in `ctxeval.rope.scaling`: n = rotary_dim / 2 pairs, L = window (tokens), w_i = inv_freq (rad/token).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ctxeval.errors import UsageError

Frequencies = NDArray[np.float64]

#: A fitted line through log frequencies counts as exact below this: some fp32 roundings (6e-8 each, relative).
GEOMETRIC_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Scaled:
    """Frequencies `inv_freq` (rotary_dim/2,), fp64, rad/token, and the factor on cos and sin that goes with them."""

    inv_freq: Frequencies
    attention_factor: float


def wavelengths(inv_freq: ArrayLike) -> Frequencies:
    """Return tokens a full turn of each pair takes, 2 pi / w_i, (rotary_dim/2,); inf where a pair does not turn."""
    native = np.asarray(inv_freq, dtype=np.float64)
    return np.divide(2 * np.pi, native, out=np.full_like(native, np.inf), where=native > 0)


def turns(inv_freq: ArrayLike, window: int) -> Frequencies:
    """Return how often each pair turns within `window` tokens, window * w_i / (2 pi), (rotary_dim/2,)."""
    return np.asarray(inv_freq, dtype=np.float64) * window / (2 * np.pi)


def pair_at_turns(inv_freq: ArrayLike, window: int, number: float) -> float:
    """Return the fractional pair index at which a pair turns `number` times within `window` tokens.

    Log-linear in the index: on geometric frequencies a line fitted to all pairs, which equals
    d ln(L / (2 pi r)) / (2 ln theta) and averages out fp32 rounding of the input; otherwise piecewise, with the end
    segments continued. Below 0 or above n - 1 where no pair turns that often or that seldom.

    Raises:
        UsageError: fewer than two pairs turn.
    """
    native = np.asarray(inv_freq, dtype=np.float64)
    native = native[: turning(native, "the ramp")]
    wanted = math.log(2 * math.pi * number / window)
    intercept, slope, error = log_line(native)
    if error <= GEOMETRIC_TOLERANCE:
        return (wanted - intercept) / slope
    # Tables of per-pair factors (LongRoPE) need not fall strictly; the running minimum does not rise.
    logs = np.minimum.accumulate(np.log(native))
    if wanted > logs[0]:
        return float((wanted - logs[0]) / _descent(logs[1] - logs[0], slope))
    if wanted < logs[-1]:
        return float(logs.size - 1 + (wanted - logs[-1]) / _descent(logs[-1] - logs[-2], slope))
    return float(np.interp(-wanted, -logs, np.arange(logs.size)))


def _descent(segment: float, mean: float) -> float:
    return segment if segment < -GEOMETRIC_TOLERANCE else mean


def log_line(native: Frequencies) -> tuple[float, float, float]:
    """Fit ln w_i = intercept + slope * i by least squares; also the largest residual. A plain RoPE intercept is 0."""
    index = np.arange(native.size, dtype=np.float64)
    logs = np.log(native)
    centred = index - index.mean()
    slope = float(centred @ logs / (centred @ centred))
    if abs(logs[0]) <= GEOMETRIC_TOLERANCE:
        through_origin = float(index @ logs / (index @ index))
        if np.max(np.abs(logs - through_origin * index)) <= GEOMETRIC_TOLERANCE:
            return 0.0, through_origin, 0.0
    intercept = float(logs.mean() - slope * index.mean())
    return intercept, slope, float(np.max(np.abs(logs - intercept - slope * index)))


def turning(native: Frequencies, method: str) -> int:
    """Count the pairs that turn: at least two, of different speed, and before any that do not."""
    pairs = int(np.count_nonzero(native))
    if pairs < 2 or np.any(native[:pairs] == 0) or not native[pairs - 1] < native[0]:
        raise UsageError(
            f"{method} on {native.size} rotary pairs of which {pairs} turn",
            "it needs at least two that turn, fastest first; choose pi",
        )
    return pairs
