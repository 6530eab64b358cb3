"""Scalings whose frequencies depend on the context length: NTK-dynamic and LongRoPE, frozen at one length. Pure.

Models that recompute their frequencies while they read leave keys of several bases in one cache, so that what they
attend to depends on how the text was cut into passes. Here a length is fixed beforehand, one table is computed for it,
and every token of a context of that length is read under it: what one forward pass over the whole context does.
Nothing that was cached for one length is of use for another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ctxeval.errors import UsageError
from ctxeval.rope.frequencies import Frequencies, Scaled, turning
from ctxeval.rope.options import DYNAMIC_FACTOR


def ntk_dynamic(
    native: Frequencies, window: int, factor: float, *, context_length: int, dynamic_factor: float = DYNAMIC_FACTOR
) -> Scaled:
    """NTK-aware with s = f l / L - (f - 1) at context length l, and s = 1 up to L; f = `dynamic_factor`.

    With f = 1, the default, s = l / L: "dynamic scaling" of Peng et al. 2023 (arXiv:2309.00071, section 3.3), so that
    at the target it is NTK-aware with the target's factor. f is what transformers' `dynamic` calls `factor`; f = 4 at
    l = 4 L gives s = 13, not 4. The factor of other scalings has no part in it.
    """
    scale = dynamic_factor * context_length / window - (dynamic_factor - 1)
    pairs = turning(native, "ntk-dynamic")
    result = native.copy()
    if context_length > window:
        result[:pairs] *= scale ** (-np.arange(pairs) / (pairs - 1))
    return Scaled(result, 1.0)


def longrope(
    native: Frequencies,
    window: int,
    factor: float,
    *,
    context_length: int,
    short_factor: Sequence[float],
    long_factor: Sequence[float],
) -> Scaled:
    """LongRoPE: w_i / lambda_i (Ding et al. 2024, arXiv:2402.13753, section 2).

    The long factors serve contexts beyond L, the short ones those up to L.
    cos and sin times sqrt(1 + ln s / ln L) at every length, as Phi-3 and transformers do.
    """
    factors = np.asarray(long_factor if context_length > window else short_factor, dtype=np.float64)
    if factors.shape != native.shape:
        raise UsageError(f"longrope with {factors.size} factors on {native.size} rotary pairs", "one a pair is needed")
    return Scaled(native / factors, math.sqrt(1 + math.log(factor) / math.log(window)))
