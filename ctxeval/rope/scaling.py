"""Rotary frequencies under each context extension, as pure functions of the native ones.

RoPE turns pair i of the d rotary dimensions by m * w_i at position m, where plainly w_i = theta**(-2i/d)
(Su et al. 2021, arXiv:2104.09864, section 3.2.2). Two layouts of the pairs are in use: interleaved, (x_2i, x_2i+1),
as in the paper and GPT-J, and half-split, (x_i, x_i+d/2), as in GPT-NeoX and Llama. Both have the same `inv_freq`, so
nothing here depends on the layout.

Pair 0 turns fastest (w_0 = 1 rad/token, about 6 tokens a turn) and the last pair slowest. Popular teaching material
has this backwards; extensions keep the low indices and interpolate the high ones.

Every method maps the frequencies a checkpoint really has to new ones, and never reads theta from a configuration. It
thus composes on a checkpoint that is scaled already. Where frequencies are geometric (plain RoPE, PI, NTK, ABF), the
result equals the published formula. All arithmetic is fp64.

Notation: n = rotary_dim / 2 pairs, L = native window (tokens), s = factor (target / L), w_i = inv_freq (rad/token).
A pair of frequency 0 does not turn (dimensions without position); it stays so under every method.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ctxeval.errors import UsageError
from ctxeval.rope.options import BETA_FAST, BETA_SLOW, validate_factor, validate_options, validate_window

Frequencies = NDArray[np.float64]

#: A fitted line through log frequencies counts as exact below this: some fp32 roundings (6e-8 each, relative).
GEOMETRIC_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Scaled:
    """Frequencies `inv_freq` (rotary_dim/2,), fp64, rad/token, and the factor on cos and sin that goes with them."""

    inv_freq: Frequencies
    attention_factor: float


def scale_frequencies(method: str, inv_freq: ArrayLike, *, native_window: int, factor: float, **options: Any) -> Scaled:
    """Scale native frequencies by a method.

    Args:
        method: `none`, `pi`, `ntk`, `ntk-parts`, `yarn` or `abf`.
        inv_freq: native frequencies, (rotary_dim/2,), rad/token, fastest first.
        native_window: L, the window that the native frequencies serve, in tokens.
        factor: s, target length / L, at least 1. `none` ignores it; under `abf` the new base alone decides.
        **options: see `ctxeval.rope.options.OPTIONS`. `attention_factor` replaces the method's own.

    Returns:
        The new frequencies, and the factor on cos and sin *relative to the native one*.

    Raises:
        UsageError: an unknown method or option, a bad value, or frequencies the method cannot work on.
    """
    validate_options(method, options)
    validate_factor(factor)
    validate_window(native_window)
    native = np.array(inv_freq, dtype=np.float64)
    if native.ndim != 1 or native.size == 0 or not np.all(np.isfinite(native)) or np.any(native < 0):
        raise UsageError(f"native frequencies of shape {native.shape}", "a finite, non-negative vector is needed")
    own = {name: value for name, value in options.items() if name != "attention_factor"}
    scaled = SCALINGS[method](native, native_window, float(factor), **own)
    return Scaled(scaled.inv_freq, float(options.get("attention_factor", scaled.attention_factor)))


def _none(native: Frequencies, window: int, factor: float) -> Scaled:
    """The checkpoint as configured."""
    return Scaled(native, 1.0)


def _pi(native: Frequencies, window: int, factor: float) -> Scaled:
    """Position interpolation: w_i / s (Chen et al. 2023, arXiv:2306.15595, eq. 4)."""
    return Scaled(native / factor, 1.0)


def _ntk(native: Frequencies, window: int, factor: float) -> Scaled:
    """NTK-aware, static: theta' = theta * s**(d/(d-2)) (bloc97 2023; Peng et al. 2023, arXiv:2309.00071, definition 1).

    Written on the native frequencies this is w_i * s**(-i/(n-1)): the fastest pair is unchanged, the slowest divided
    by exactly s. Not `dynamic` of transformers, which changes with the length read so far.
    """
    pairs = _turning(native, "ntk")
    index = np.arange(pairs)
    result = native.copy()
    result[:pairs] *= factor ** (-index / (pairs - 1))
    return Scaled(result, 1.0)


def _ntk_parts(
    native: Frequencies,
    window: int,
    factor: float,
    beta_fast: float = BETA_FAST,
    beta_slow: float = BETA_SLOW,
    truncate: bool = True,
) -> Scaled:
    """NTK-by-parts: (1 - g) * w_i + g * w_i / s (Peng et al. 2023, arXiv:2309.00071, definition 2).

    g rises from 0, at the pair that turns `beta_fast` times within L, to 1, at the one that turns `beta_slow` times.
    Deliberately not the paper's ramp: the paper's is linear in the number of turns, this one is linear in the pair
    index, with its ends moved outward to whole indices if `truncate`, as in jquesnelle/yarn and in transformers.
    Checkpoints were trained with the latter. The two differ by up to 41 % in w_i (theta 1e4, L 8192, s 4).
    """
    pairs = _turning(native, "ntk-parts")
    low, high = pair_at_turns(native, window, beta_fast), pair_at_turns(native, window, beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    # The upper clamp is d - 1, not n - 1: the published code compares a pair index with a dimension.
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    if high <= low:
        high = low + 0.001  # a step; the published code guards equality alone
    ramp = np.clip((np.arange(native.size) - low) / (high - low), 0.0, 1.0)
    return Scaled(native * (1 - ramp) + native / factor * ramp, 1.0)


def _yarn(native: Frequencies, window: int, factor: float, **options: Any) -> Scaled:
    """YaRN: NTK-by-parts, with cos and sin times 0.1 ln s + 1 (arXiv:2309.00071, definition 3 and eq. 22).

    Both q and k carry the factor, so attention logits grow by its square, 1/t in the paper.
    """
    parts = _ntk_parts(native, window, factor, **options)
    return Scaled(parts.inv_freq, 0.1 * math.log(factor) + 1.0)


def _abf(native: Frequencies, window: int, factor: float, rope_theta: float) -> Scaled:
    """Adjusted base frequency: theta replaced by `rope_theta` (Xiong et al. 2023, arXiv:2309.16039, section 4.1)."""
    pairs = _turning(native, "abf")
    intercept, _, error = _log_line(native[:pairs])
    if error > GEOMETRIC_TOLERANCE:
        raise UsageError(
            f"abf on frequencies that have no single base (log residual {error:.2g})",
            "the checkpoint is scaled already by another method; choose pi, ntk, ntk-parts or yarn",
        )
    result = np.zeros_like(native)
    result[:pairs] = math.exp(intercept) * rope_theta ** (-np.arange(pairs) / native.size)
    return Scaled(result, 1.0)


SCALINGS: Mapping[str, Callable[..., Scaled]] = MappingProxyType(
    {"none": _none, "pi": _pi, "ntk": _ntk, "ntk-parts": _ntk_parts, "yarn": _yarn, "abf": _abf}
)


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
    native = native[: _turning(native, "the ramp")]
    wanted = math.log(2 * math.pi * number / window)
    intercept, slope, error = _log_line(native)
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


def _log_line(native: Frequencies) -> tuple[float, float, float]:
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


def _turning(native: Frequencies, method: str) -> int:
    """Count the pairs that turn: at least two, of different speed, and before any that do not."""
    pairs = int(np.count_nonzero(native))
    if pairs < 2 or np.any(native[:pairs] == 0) or not native[pairs - 1] < native[0]:
        raise UsageError(
            f"{method} on {native.size} rotary pairs of which {pairs} turn",
            "it needs at least two that turn, fastest first; choose pi",
        )
    return pairs
