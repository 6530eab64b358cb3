"""Recall over depth and length as panels, one a scaling, on one scale of 0 to 100 %."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ctxeval.analysis.onset import length_label
from ctxeval.report.canvas import HATCH, INK, MUTED_ALPHA, PAPER, SMALL, SOFT, WINDOW_DASH, Panel, Picture, thinned
from ctxeval.report.heatmap import FEW_TRIALS, Grid, span
from ctxeval.report.palette import DEFAULT, colour, ink_on
from ctxeval.report.text import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CELL = (0.48, 0.34)


def heatmaps(grids: Sequence[Grid], native_window: int, palette: str = DEFAULT) -> Picture:
    """Return the heatmaps; depth 0 is at the top, hatched where nothing was measured, dashed at the native window.

    Args:
        grids: at least one; all with the same depths and lengths.
        native_window: tokens.
        palette: a name in `PALETTES`.
    """
    panels = tuple(_panel(grid, native_window, palette) for grid in grids)
    columns = len(panels) if len(panels) <= 3 else math.ceil(math.sqrt(len(panels)))
    heading = "Recall by needle depth and context length, % and number of trials"
    return Picture("heatmap", heading, panels, columns, scale=palette)


def _panel(grid: Grid, native_window: int, palette: str) -> Panel:
    depths, lengths = grid.recall.shape
    counts = grid.trials.to_numpy()
    alt = f"Recall of {grid.label} over {depths} depths and {lengths} context lengths"
    title = f"{grid.label}  (n = {span(counts[counts > 0])} a cell)"
    size = max(CELL[0] * lengths, 1.6), (max(CELL[1] * depths, 0.8),)
    return Panel(title, alt, *size, partial(_draw, grid=grid, native_window=native_window, palette=palette))


def _draw(axes: Sequence[Axes], grid: Grid, native_window: int, palette: str) -> None:
    (axis,) = axes
    shares, trials = grid.recall.to_numpy(dtype=float), grid.trials.to_numpy()
    depths, columns = shares.shape
    for (row, column), share in np.ndenumerate(shares):
        _cell(axis, row, column, float(share), int(trials[row, column]), palette)
    lengths = [int(length) for length in grid.recall.columns]
    shown = thinned(range(columns), 1)
    axis.set(xlim=(-0.5, columns - 0.5), ylim=(depths - 0.5, -0.5))
    axis.set_xticks(shown, [length_label(lengths[index]) for index in shown])
    axis.set_yticks(range(depths), [f"{depth:.4g}" if math.isfinite(depth) else "–" for depth in grid.recall.index])
    axis.set(xlabel="context length, tokens", ylabel="needle depth, %")
    for spine in axis.spines.values():
        spine.set_visible(False)
    inside = sum(length <= native_window for length in lengths)
    if inside < columns or lengths[-1] == native_window:
        # On a ground of paper, so that it shows on the dark end of a palette too.
        axis.axvline(inside - 0.5, color=PAPER, linewidth=3.2, zorder=5)
        axis.axvline(inside - 0.5, color=INK, linewidth=1.6, linestyle=WINDOW_DASH, zorder=6, clip_on=False)


def _cell(axis: Axes, row: int, column: int, share: float, trials: int, palette: str) -> None:
    from matplotlib.patches import Rectangle

    corner, size = (column - 0.48, row - 0.46), (0.96, 0.92)
    if not math.isfinite(share):
        axis.add_patch(Rectangle(corner, *size, fill=False, hatch="/////", edgecolor=HATCH, linewidth=0, zorder=1))
        return
    shade = colour(share, palette)
    few = trials < FEW_TRIALS
    patch = Rectangle(corner, *size, facecolor=shade, alpha=MUTED_ALPHA if few else 1.0, linewidth=0, zorder=2)
    axis.add_patch(patch)
    ink = INK if few else ink_on(shade)
    text = f"({percent(share)})" if few else percent(share)
    axis.text(column, row + 0.06, text, ha="center", va="bottom", color=ink, fontsize=8, zorder=4)
    small: dict[str, Any] = {"color": SOFT if few else ink, "fontsize": SMALL - 2, "zorder": 4}
    axis.text(column, row + 0.12, f"n {trials}", ha="center", va="top", **small)
