"""The scalings of a geometry beside each other, drawn off screen."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ctxeval.report.canvas import DPI
from ctxeval.rope.pairs import Geometry, ScaledPairs
from ctxeval.rope.scaling import turns

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Okabe and Ito's palette, told apart by colour-blind readers too.
COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#D55E00", "#0072B2", "#CC79A7", "#999999", "#8B4513")
STYLES = ("-", "--", "-.", ":")


def rope_picture(geometry: Geometry, tables: Sequence[ScaledPairs], format: str) -> bytes:
    """Draw the frequency ratio (log) over the pair index, a line a scaling; return the file.

    Args:
        geometry: what is scaled. Marked is where a pair turns once within the native window: its wavelength there.
        tables: at least one.
        format: `png` or `svg`.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.8), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    for index, table in enumerate(tables):
        ratios = [row.ratio for row in table.rows]
        label = f"{table.scaling.label} ×{table.scaling.factor:g}"
        if table.attention_factor != 1:
            label += f", cos and sin × {table.attention_factor:.3f}"
        # Thinner and thinner, so that one line on another leaves both to be seen.
        width = max(3.4 - 0.4 * index, 1.2)
        axis.plot(ratios, STYLES[index % 4], color=COLOURS[index % len(COLOURS)], linewidth=width, label=label)
    _marks(axis, geometry, tables)
    axis.set_yscale("log", base=2)
    axis.yaxis.set_major_formatter(lambda value, _: f"1/{1 / value:g}" if value < 1 else f"{value:g}")
    axis.set_xlabel("pair (0 turns fastest)")
    axis.set_ylabel("frequency / native frequency")
    axis.grid(color="#e5e5e5", linewidth=0.6)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    title = f"{geometry.what}: native window {geometry.window:,} tokens, target {tables[0].target:,}"
    figure.suptitle(title, fontsize=9, parse_math=False)
    return _file(figure, format, rc_context)


def _marks(axis: Axes, geometry: Geometry, tables: Sequence[ScaledPairs]) -> None:
    """Mark full interpolation (dotted), and the first pair that turns less than once within the native window."""
    for factor in sorted({table.scaling.factor for table in tables if table.scaling.factor > 1}):
        axis.axhline(1 / factor, color="#444444", linewidth=0.9, linestyle=":")
    slow = np.flatnonzero(turns(geometry.inv_freq, geometry.window) < 1)
    if slow.size:
        axis.axvline(float(slow[0]) - 0.5, color="black", linewidth=1.2, linestyle=(0, (3, 1.5)))
        axis.annotate(
            "a turn takes more than the native window →",
            (float(slow[0]) - 0.5, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(4, -4),
            textcoords="offset points",
            va="top",
            fontsize=7,
        )


def _file(figure: Any, format: str, rc_context: Any) -> bytes:
    out = io.BytesIO()
    # No date, no version and no random ids inside: the same table gives the same bytes.
    with rc_context({"svg.hashsalt": "ctxeval"}):
        figure.savefig(out, format=format, metadata={"Date": None} if format == "svg" else {"Software": None})
    return out.getvalue()
