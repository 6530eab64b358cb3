"""What a rotary module really emits, beside what it should: cos and sin at chosen positions."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctxeval.errors import RunError
from ctxeval.rope.frequencies import Frequencies, Scaled
from ctxeval.rope.sites import Site
from ctxeval.rope.tables import TableSite

#: Unit of fp32 rounding: the frequency and its product with the position are each off by half of it, relative.
ROUNDING = 2.0**-23
#: Roundings allowed for, and the absolute error allowed on top (cos, sin and their factor, rounded to fp32).
ROUNDINGS = 2
FLOOR = 1e-6


@dataclass(frozen=True)
class Deviation:
    """The worst deviation of emitted cos and sin from the reference, against what fp32 rounding explains there."""

    error: float
    tolerance: float
    position: int
    pair: int
    expected: float
    emitted: float

    @property
    def excess(self) -> float:
        """Error in units of its tolerance; at most 1 is explained by rounding."""
        return self.error / self.tolerance if np.isfinite(self.error) else float("inf")


def emit(site: Site, positions: Sequence[int]) -> tuple[Frequencies, Frequencies]:
    """Call the module's own forward, in fp32, and return cos and sin, each (positions, emitted dims).

    Raises:
        RunError: the module's forward does not take position ids, or returns neither a pair nor a complex table.
    """
    emitted = _call(site, torch.tensor([list(positions)], device=site.inv_freq.device))
    if not isinstance(emitted, tuple) or len(emitted) != 2:
        raise RunError(
            f"{site.label}: forward of {type(site.module).__name__} returns {type(emitted).__name__}", "not cos, sin"
        )
    cos, sin = (_table(part, len(positions)) for part in emitted)
    return cos, sin


def deviation(site: Site, wanted: Scaled, positions: Sequence[int]) -> Deviation:
    """Compare what `site` emits at `positions` with the fp64 reference `wanted`.

    Pairs may be laid out once (complex), twice (half-split) or doubled (interleaved): the layout that fits best counts.

    Raises:
        RunError: as `emit`, or the module emits another number of dimensions.
    """
    emitted = np.stack(emit(site, positions))  # (2, positions, emitted dims)
    angles = np.outer(np.asarray(positions, dtype=np.float64), wanted.inv_freq)
    reference = np.stack([np.cos(angles), np.sin(angles)]) * wanted.attention_factor  # (2, positions, pairs)
    allowed = wanted.attention_factor * (angles * ROUNDINGS * ROUNDING + rounding_floor(site))
    candidates = [
        _worst(emitted, reference[..., layout], allowed[..., layout], positions, layout)
        for layout in layouts(wanted.inv_freq.size)
        if layout.size == emitted.shape[-1]
    ]
    if not candidates:
        raise RunError(f"{site.label} emits {emitted.shape[-1]} dimensions for {wanted.inv_freq.size} pairs")
    return min(candidates, key=lambda worst: worst.excess)


def rounding_floor(site: Site) -> float:
    """Return the absolute error of cos and sin that rounding them explains: a table in bf16 holds them in bf16."""
    return FLOOR if site.table is None else max(FLOOR, torch.finfo(site.table.dtype).eps)


@torch.no_grad()
def _call(site: Site, ids: torch.Tensor) -> Any:
    """Call the module of `site` with position ids (1, positions), however it wants to be called."""
    if isinstance(site, TableSite):
        return site.emit(ids)
    module = site.module
    parameters = inspect.signature(module.forward).parameters
    if "position_ids" not in parameters:
        raise RunError(
            f"{site.label}: forward of {type(module).__name__} takes {', '.join(parameters)}, not position_ids",
            "what it emits cannot be proved",
        )
    dummy = torch.zeros(1, ids.shape[-1], 1, dtype=torch.float32, device=ids.device)
    if hasattr(module, "mrope_section"):  # time, height and width positions, equal on text
        ids = ids.expand(3, 1, -1)
    emitted = module(dummy, position_ids=ids, **({"layer_type": site.prefix} if site.prefix else {}))
    if isinstance(emitted, Tensor) and emitted.is_complex():
        emitted = (emitted.real, emitted.imag)
    return emitted


def layouts(pairs: int) -> tuple[NDArray[np.intp], ...]:
    """Return the pair that each emitted dimension belongs to, in each of the layouts in use."""
    once = np.arange(pairs)
    return once, np.concatenate([once, once]), np.repeat(once, 2)


def _worst(
    emitted: Frequencies,
    reference: Frequencies,
    allowed: Frequencies,
    positions: Sequence[int],
    layout: NDArray[np.intp],
) -> Deviation:
    error = np.abs(emitted - reference)
    excess = np.where(np.isfinite(error), error / allowed, np.inf)
    part, row, column = np.unravel_index(int(excess.argmax()), excess.shape)
    return Deviation(
        error=float(error[part, row, column]),
        tolerance=float(allowed[row, column]),
        position=positions[int(row)],
        pair=int(layout[column]),
        expected=float(reference[part, row, column]),
        emitted=float(emitted[part, row, column]),
    )


def _table(part: Any, count: int) -> Frequencies:
    table: Frequencies = part.detach().double().cpu().numpy().reshape(-1, count, part.shape[-1])[0]
    return table
