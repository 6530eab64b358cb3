"""What a scaling does to each rotary pair, as rows. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from ctxeval.errors import UsageError
from ctxeval.resolve import Resolved
from ctxeval.rope.scaling import Frequencies, Scaled, scale_frequencies, turns, wavelengths
from ctxeval.spec import ScalingSpec

Part = Literal["kept", "blended", "interpolated", "beyond", "still"]
#: Relative: what counts as unchanged, and as divided by the factor.
EXACT = 1e-9


@dataclass(frozen=True)
class Geometry:
    """Rotary frequencies `inv_freq` (rotary_dim/2,), rad/token, before scaling, and the `window` that they serve.

    `what` names the model or the geometry; `source` says where the window (tokens) was read. `attention_factor` is what
    the checkpoint multiplies cos and sin by already.
    """

    what: str
    inv_freq: Frequencies
    window: int
    source: str
    attention_factor: float = 1.0


@dataclass(frozen=True)
class PairRow:
    """One pair: frequencies in rad/token, wavelengths in tokens a turn, turns within the window before scaling.

    `part` is `kept` (unchanged), `interpolated` (divided by the factor), `blended` (in between), `beyond` (slowed by
    more than the factor) or `still` (it never turned).
    """

    pair: int
    inv_freq: float
    scaled: float
    ratio: float
    wavelength: float
    scaled_wavelength: float
    turns: float
    part: Part


@dataclass(frozen=True)
class ScaledPairs:
    """A scaling of a geometry, pair by pair. `target` in tokens; `attention_factor` is the whole one."""

    scaling: ScalingSpec
    target: int
    attention_factor: float
    rows: tuple[PairRow, ...]

    def parts(self) -> dict[Part, str]:
        """Return the pairs of each part that occurs, as ranges: `{"kept": "0–20", "blended": "21–45"}`."""
        found: dict[Part, list[int]] = {}
        for row in self.rows:
            found.setdefault(row.part, []).append(row.pair)
        return {part: _ranges(pairs) for part, pairs in found.items()}


def plain_geometry(theta: float, dim: int, native_window: int) -> Geometry:
    """Make the geometry of plain RoPE, w_i = theta**(-2i/dim).

    Raises:
        UsageError: a base that is not above 1, or not an even number of at least 4 dimensions.
    """
    if not theta > 1 or not np.isfinite(theta):
        raise UsageError(f"theta {theta:g}", "it must be a finite number above 1")
    if dim < 4 or dim % 2:
        raise UsageError(f"{dim} rotary dimensions", "they come in pairs, at least two: an even number from 4")
    pairs = dim // 2
    inv_freq = theta ** (-np.arange(pairs, dtype=np.float64) / pairs)
    return Geometry(f"theta {theta:,g}", inv_freq, native_window, "--native-window")


def scaled_pairs(
    geometry: Geometry, resolved: Resolved, scale: Callable[[ScalingSpec], Scaled] | None = None
) -> tuple[ScaledPairs, ...]:
    """Scale a geometry by each of the resolved scalings.

    Args:
        geometry: what they start from.
        resolved: the scalings.
        scale: what a model's patch makes of a scaling other than `none`, with the whole factor on cos and sin; some
            models have a rule of their own for it. By default the scaling on the geometry alone.

    Raises:
        UsageError: a scaling that cannot work on these frequencies.
    """
    tables = []
    for scaling in resolved.scalings:
        own = scale if scale is not None and scaling.method != "none" else partial(_scale, geometry)
        scaled = own(scaling)
        rows = _rows(geometry, scaled, scaling.factor)
        tables.append(ScaledPairs(scaling, resolved.target, scaled.attention_factor, rows))
    return tuple(tables)


def _scale(geometry: Geometry, scaling: ScalingSpec) -> Scaled:
    window, factor = geometry.window, scaling.factor
    scaled = scale_frequencies(
        scaling.method, geometry.inv_freq, native_window=window, factor=factor, **scaling.options
    )
    return Scaled(scaled.inv_freq, scaled.attention_factor * geometry.attention_factor)


def _rows(geometry: Geometry, scaled: Scaled, factor: float) -> tuple[PairRow, ...]:
    native = geometry.inv_freq
    ratios = np.divide(scaled.inv_freq, native, out=np.ones_like(native), where=native > 0)
    before, after = wavelengths(native), wavelengths(scaled.inv_freq)
    count = turns(native, geometry.window)
    return tuple(
        PairRow(
            pair=pair,
            inv_freq=float(native[pair]),
            scaled=float(scaled.inv_freq[pair]),
            ratio=float(ratios[pair]),
            wavelength=float(before[pair]),
            scaled_wavelength=float(after[pair]),
            turns=float(count[pair]),
            part=_part(float(native[pair]), float(ratios[pair]), factor),
        )
        for pair in range(native.size)
    )


def _part(native: float, ratio: float, factor: float) -> Part:
    if native == 0:
        return "still"
    if abs(ratio - 1) <= EXACT:
        return "kept"
    if abs(ratio * factor - 1) <= EXACT:
        return "interpolated"
    return "blended" if ratio * factor > 1 else "beyond"


def _ranges(pairs: list[int]) -> str:
    """Write ascending indices as `0–3, 7`."""
    runs: list[list[int]] = []
    for pair in pairs:
        if runs and pair == runs[-1][-1] + 1:
            runs[-1].append(pair)
        else:
            runs.append([pair])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
