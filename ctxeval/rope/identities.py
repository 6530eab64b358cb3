"""What cos and sin must obey whatever the frequencies are: rotations turn by distance alone, and keep their length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ctxeval.rope.emission import ROUNDING, emit, layouts, rounding_floor
from ctxeval.rope.frequencies import Scaled
from ctxeval.rope.sites import Site


@dataclass(frozen=True)
class Identities:
    """The worst violations at one site, each in units of what fp32 rounding explains (at most 1).

    `relative`: the product of the rotations at p and p + d, f² cos(d w), must not depend on p. `norm`: cos² + sin² is
    the square of the factor f at every position.
    """

    relative: float
    norm: float


def identities(site: Site, wanted: Scaled, target_length: int) -> Identities:
    """Read cos and sin over [0, target_length) from the module itself and hold them against the two identities.

    Raises:
        RunError: as `ctxeval.rope.emission.emit`.
    """
    last = target_length - 1
    distances = sorted({1, min(7, last), last // 2})
    starts = sorted({0, last // 3, *(last - distance for distance in distances)})
    positions = sorted({p for start in starts for p in (start, *(start + d for d in distances)) if p <= last})
    cos, sin = emit(site, positions)  # (positions, emitted dims)
    row = {position: index for index, position in enumerate(positions)}
    square = wanted.attention_factor**2
    floor = 4 * rounding_floor(site)
    norm = float(np.abs(cos**2 + sin**2 - square).max() / (square * floor))
    # Which pair a dimension belongs to is not known: the layout that explains most counts, as in `deviation`.
    speeds = [wanted.inv_freq[layout] for layout in layouts(wanted.inv_freq.size) if layout.size == cos.shape[-1]]
    spread = np.zeros(cos.shape[-1])
    for distance in distances:
        pairs = [(row[start], row[start + distance]) for start in starts if start + distance in row]
        products = np.stack([cos[a] * cos[b] + sin[a] * sin[b] for a, b in pairs])  # (starts, emitted dims)
        spread = np.maximum(spread, np.ptp(products, axis=0))
    allowed = [square * (4 * last * speed * ROUNDING + floor) for speed in speeds]
    return Identities(min(float((spread / one).max()) for one in allowed), norm)
