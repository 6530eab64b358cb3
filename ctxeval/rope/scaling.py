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
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ctxeval.errors import UsageError
from ctxeval.rope.frequencies import (
    GEOMETRIC_TOLERANCE,
    Frequencies,
    Scaled,
    log_line,
    pair_at_turns,
    turning,
    turns,
    wavelengths,
)
from ctxeval.rope.lengthwise import longrope, ntk_dynamic
from ctxeval.rope.options import (
    BETA_FAST,
    BETA_SLOW,
    HIGH_FREQ_FACTOR,
    LENGTH_DEPENDENT,
    LOW_FREQ_FACTOR,
    validate_factor,
    validate_options,
    validate_window,
)

__all__ = ["SCALINGS", "Frequencies", "Scaled", "pair_at_turns", "scale_frequencies", "turns", "wavelengths"]


def scale_frequencies(
    method: str,
    inv_freq: ArrayLike,
    *,
    native_window: int,
    factor: float,
    context_length: int | None = None,
    **options: Any,
) -> Scaled:
    """Scale frequencies by a method.

    Args:
        method: a canonical name, a key of `SCALINGS`.
        inv_freq: the frequencies to start from, (rotary_dim/2,), rad/token, fastest first.
        native_window: L, the window that those frequencies serve, in tokens.
        factor: s, target length / L, at least 1. `none` ignores it, `ntk-dynamic` goes by the context length; under
            `abf` the new base alone decides, under `longrope` the per-pair factors (s gives the temperature).
        context_length: tokens; where the frequencies depend on it, what they are frozen at. By default s * L.
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
    if method in LENGTH_DEPENDENT:
        own["context_length"] = round(factor * native_window) if context_length is None else context_length
        validate_window(own["context_length"])
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
    pairs = turning(native, "ntk")
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
    pairs = turning(native, "ntk-parts")
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


def _llama3(
    native: Frequencies,
    window: int,
    factor: float,
    low_freq_factor: float = LOW_FREQ_FACTOR,
    high_freq_factor: float = HIGH_FREQ_FACTOR,
    original_window: int | None = None,
) -> Scaled:
    """Llama 3.1: no paper states it; `apply_scaling` of meta-llama/llama-models, as in transformers.

    A pair that turns more than `high_freq_factor` times within `original_window` is kept, one that turns less than
    `low_freq_factor` times divided by s; in between the result is linear in the number of turns. `original_window` is
    L by default: 8,192 in Llama 3.1, whose factor of 8 is half of what its window grew by.
    """
    count = turns(native, original_window or window)
    share = np.clip((count - low_freq_factor) / (high_freq_factor - low_freq_factor), 0.0, 1.0)
    return Scaled(native * share + native / factor * (1 - share), 1.0)


def _abf(native: Frequencies, window: int, factor: float, rope_theta: float) -> Scaled:
    """Adjusted base frequency: theta replaced by `rope_theta` (Xiong et al. 2023, arXiv:2309.16039, section 4.1)."""
    pairs = turning(native, "abf")
    intercept, _, error = log_line(native[:pairs])
    if error > GEOMETRIC_TOLERANCE:
        raise UsageError(
            f"abf on frequencies that have no single base (log residual {error:.2g})",
            "the checkpoint is scaled already by another method; choose pi, ntk, ntk-parts or yarn",
        )
    result = np.zeros_like(native)
    result[:pairs] = math.exp(intercept) * rope_theta ** (-np.arange(pairs) / native.size)
    return Scaled(result, 1.0)


SCALINGS: Mapping[str, Callable[..., Scaled]] = MappingProxyType(
    {
        "none": _none,
        "pi": _pi,
        "ntk": _ntk,
        "ntk-dynamic": ntk_dynamic,
        "ntk-parts": _ntk_parts,
        "yarn": _yarn,
        "llama3": _llama3,
        "longrope": longrope,
        "abf": _abf,
    }
)
