"""The heatmap and the curves of a run as PNG, drawn off screen."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ctxeval.analysis.headline import Headline, ScalingResult
from ctxeval.analysis.onset import length_label
from ctxeval.report.heatmap import FEW_TRIALS, PALETTE, Grid, span
from ctxeval.report.text import model_line, percent, protocol_line, scale_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 144
PANELS_A_ROW = 3
RATIO_TOP = 2.0
BLIND_COLOUR = "#F0496E"
RECALL_COLOUR = "#0072B2"
RATIO_COLOUR = "#D55E00"


def heatmap_png(panels: Sequence[Grid], native_window: int, manifest: Mapping[str, Any], plan: str) -> bytes:
    """Return the heatmaps, a panel a scaling, on a fixed scale of 0 to 100 %; grey hatching where nothing was measured.

    Args:
        panels: at least one; all with the same depths and lengths.
        native_window: tokens; marked by a vertical line.
        manifest: names the model and the task in the title.
        plan: `exact` or `packed`, for the title.
    """
    from matplotlib.colors import LinearSegmentedColormap

    depths, lengths = panels[0].recall.shape
    columns = len(panels) if len(panels) <= PANELS_A_ROW else math.ceil(math.sqrt(len(panels)))
    rows = math.ceil(len(panels) / columns)
    # At least 6.8 inches, so that the title has room over a single panel.
    size = (max(columns * (0.62 * lengths + 0.9) + 0.9, 6.8), rows * (0.33 * depths + 1.0) + 0.9)
    figure = _figure(size)
    palette = LinearSegmentedColormap.from_list("recall", PALETTE)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    image = None
    for index, axis in enumerate(axes.ravel()):
        if index >= len(panels):
            axis.set_visible(False)
            continue
        image = _panel(axis, panels[index], native_window, palette)
        below = index + columns >= len(panels)
        axis.tick_params(labelbottom=below, labelleft=index % columns == 0)
        axis.set_xlabel("context length (tokens)" if below else "")
        axis.set_ylabel("needle depth (%)" if index % columns == 0 else "")
    if image is not None:
        figure.colorbar(image, ax=axes, label="recall (%)", fraction=0.03, aspect=30, pad=0.02)
    _title(figure, "Needle retrieval (dashed: native window)", manifest, plan)
    return _png(figure)


def _panel(axis: Axes, grid: Grid, native_window: int, palette: Any) -> Any:
    shares = grid.recall.to_numpy(dtype=float) * 100
    trials = grid.trials.to_numpy()
    axis.set_facecolor("#d9d9d9")
    axis.add_patch(_hatching(axis))
    image = axis.imshow(np.ma.masked_invalid(shares), cmap=palette, vmin=0, vmax=100, aspect="auto", zorder=2)
    for (row, column), share in np.ndenumerate(shares):
        if math.isfinite(share):
            pale = trials[row, column] < FEW_TRIALS
            label = f"({percent(share / 100)})" if pale else percent(share / 100)
            axis.text(column, row, label, ha="center", va="center", color="black", fontsize=8, zorder=4)
            if pale:
                axis.add_patch(_veil(column, row))
    _frame(axis, grid, native_window)
    counts = trials[trials > 0]
    few = ", pale under 5" if counts.size and counts.min() < FEW_TRIALS else ""
    axis.set_title(f"{grid.label}   (n = {span(counts)} a cell{few})", fontsize=9, parse_math=False)
    return image


def _frame(axis: Axes, grid: Grid, native_window: int) -> None:
    depths, columns = grid.recall.shape
    lengths = [int(length) for length in grid.recall.columns]
    axis.set_xticks(range(len(lengths)), [length_label(length) for length in lengths], fontsize=8)
    axis.set_yticks(range(len(grid.recall.index)), [f"{depth:.4g}" for depth in grid.recall.index], fontsize=8)
    axis.tick_params(length=0)
    for edge in range(1, columns):
        axis.axvline(edge - 0.5, color="white", linewidth=0.7, zorder=3)
    for edge in range(1, depths):
        axis.axhline(edge - 0.5, color="white", linewidth=0.7, zorder=3)
    inside = sum(length <= native_window for length in lengths)
    axis.axvline(inside - 0.5, color="black", linewidth=2.0, linestyle=(0, (3, 1.5)), zorder=5, clip_on=False)


def _hatching(axis: Axes) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle(
        (0, 0), 1, 1, transform=axis.transAxes, fill=False, hatch="////", edgecolor="#9a9a9a", linewidth=0, zorder=1
    )


def _veil(column: int, row: int) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((column - 0.5, row - 0.5), 1, 1, color="white", alpha=0.55, linewidth=0, zorder=3)


def curves_png(summary: Headline, manifest: Mapping[str, Any]) -> bytes:
    """Return recall (%) and perplexity ratio over length (tokens, log 2), a column a scaling, blind spots shaded."""
    rows = [row for row in summary.rows if any(_measured(result) for result in row.lengths)]
    figure = _figure((max(3.1 * len(rows) + 0.9, 6.8), 5.2))
    axes = figure.subplots(2, max(len(rows), 1), squeeze=False, sharex=True, sharey="row")
    for column, row in enumerate(rows):
        _recall_curve(axes[0, column], row, summary)
        _ratio_curve(axes[1, column], row, summary)
        for axis in axes[:, column]:
            _shade(axis, row, summary)
        axes[0, column].set_title(scale_label(row.scale, row.factor), fontsize=9, parse_math=False)
        axes[1, column].set_xlabel("context length (tokens)")
    axes[0, 0].set_ylabel("recall (%)")
    axes[1, 0].set_ylabel("perplexity ratio")
    bars = f"dotted: {summary.floor:g} R and {1 + summary.epsilon:g}"
    what = f"Retrieval and perplexity over length (shaded: blind spot; dashed: native window; {bars})"
    _title(figure, what, manifest, summary.plan)
    return _png(figure)


def _measured(result: Any) -> bool:
    return bool(result.recall.measured or result.perplexity.ratio.measured)


def _recall_curve(axis: Axes, row: ScalingResult, summary: Headline) -> None:
    points = [(result.length, result.recall) for result in row.lengths if result.recall.measured]
    _band(axis, [(x, 100 * e.value, 100 * e.low, 100 * e.high) for x, e in points], RECALL_COLOUR)
    axis.set_ylim(-3, 103)
    if summary.reference.measured:
        axis.axhline(100 * summary.floor * summary.reference.value, color="#444444", linewidth=0.9, linestyle=":")


def _ratio_curve(axis: Axes, row: ScalingResult, summary: Headline) -> None:
    ratios = [(result.length, result.perplexity.ratio) for result in row.lengths if result.perplexity.ratio.measured]
    # One blow-up must not flatten every other curve: what lies above the axis is put at its top, with its value.
    capped = [(x, min(e.value, RATIO_TOP), min(e.low, RATIO_TOP), min(e.high, RATIO_TOP)) for x, e in ratios]
    _band(axis, capped, RATIO_COLOUR)
    axis.axhline(1 + summary.epsilon, color="#444444", linewidth=0.9, linestyle=":")
    axis.set_ylim(0.85, RATIO_TOP + 0.05)
    for x, estimate in ratios:
        if estimate.value > RATIO_TOP:
            axis.plot([x], [RATIO_TOP], marker="^", markersize=7, color=RATIO_COLOUR)
            axis.annotate(f"{estimate.value:.3g}", (x, 1.93), ha="center", va="top", fontsize=7, color=RATIO_COLOUR)


def _band(axis: Axes, points: Sequence[tuple[float, float, float, float]], colour: str) -> None:
    if not points:
        axis.text(0.5, 0.5, "not measured", ha="center", va="center", transform=axis.transAxes, color="#777777")
        return
    x, value, low, high = (np.asarray(column, dtype=float) for column in zip(*points, strict=True))
    axis.plot(x, value, marker="o", markersize=4, color=colour, linewidth=1.4)
    # Finite bounds for the renderer: a single document has none.
    axis.fill_between(x, np.clip(low, 0, 1e6), np.clip(high, 0, 1e6), color=colour, alpha=0.18, linewidth=0)


def _shade(axis: Axes, row: ScalingResult, summary: Headline) -> None:
    lengths = list(summary.lengths)
    axis.set_xscale("log", base=2)
    axis.set_xticks(lengths, [length_label(length) for length in lengths], fontsize=8, rotation=45)
    axis.minorticks_off()
    axis.axvline(summary.native_window, color="black", linewidth=1.2, linestyle=(0, (3, 1.5)))
    axis.grid(color="#e5e5e5", linewidth=0.6)
    for length in row.blind_spot:
        index = lengths.index(length)
        left = math.sqrt(lengths[index - 1] * length) if index else length / 1.1
        right = math.sqrt(length * lengths[index + 1]) if index + 1 < len(lengths) else length * 1.1
        axis.axvspan(left, right, color=BLIND_COLOUR, alpha=0.16, linewidth=0, zorder=0)


def _figure(size: tuple[float, float]) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _title(figure: Figure, what: str, manifest: Mapping[str, Any], plan: str) -> None:
    lines = (what, model_line(manifest), protocol_line(manifest, plan))
    figure.suptitle("\n".join(lines), fontsize=9, parse_math=False)


def _png(figure: Figure) -> bytes:
    out = io.BytesIO()
    # No date and no version inside: the same cells give the same bytes.
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()
