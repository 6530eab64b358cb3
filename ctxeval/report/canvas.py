"""What all pictures share: inks, panels placed to the inch, and the bytes of a PNG or an SVG.

A picture is made of panels. Each is drawn by the same function whether it stands alone in a page or beside others in a
file. Nothing is laid out by trial, so the same cells give the same bytes.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 144
#: Inks by role. A page replaces them by its own, for light and dark (see `ctxeval.report.inline`).
INK, SOFT, RULE, HATCH, PAPER = "#1b1f24", "#59616b", "#dfe3e8", "#9aa2ac", "#fefefe"
RECALL, RATIO, BLIND = "#0072b2", "#d55e00", "#e0316a"
#: Okabe and Ito's colours, which colour-blind readers can tell apart, for a line a scaling.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#6b6ecf")
DASHES = ((0, ()), (0, (5, 1.5)), (0, (1.5, 1.2)))
WINDOW_DASH = (0, (3, 1.5))
SMALL = 7.5
#: Opacity of what rests on too few trials.
MUTED_ALPHA = 0.38
#: Inches around a panel's axes, and between the stacked axes of one panel.
LEFT, RIGHT, TOP, BOTTOM, GAP = 0.6, 0.14, 0.1, 0.46, 0.14
LINE = 0.17


@dataclass(frozen=True, eq=False)
class Panel:
    """A titled drawing: axes of one width, stacked from the top, in inches; `alt` says in words what it shows.

    `head` is room above the axes, for a legend.
    """

    title: str
    alt: str
    width: float
    heights: tuple[float, ...]
    draw: Callable[[Sequence[Axes]], None]
    head: float = 0.0

    @property
    def size(self) -> tuple[float, float]:
        """Width and height with margins, without the title."""
        inner = sum(self.heights) + GAP * (len(self.heights) - 1)
        return LEFT + self.width + RIGHT, TOP + self.head + inner + BOTTOM


@dataclass(frozen=True, eq=False)
class Picture:
    """Panels that belong together, with what stands above them in a file. `scale` names a colour bar's palette."""

    name: str
    heading: str
    panels: tuple[Panel, ...]
    columns: int
    scale: str = ""


def alone(panel: Panel) -> Figure:
    """Return one panel on no background, without its title: the page has that as text."""
    figure = _figure(panel.size)
    figure.patch.set_visible(False)
    _place(figure, panel, 0.0, 0.0)
    return figure


def together(picture: Picture, lines: Sequence[str]) -> Figure:
    """Return all panels of a picture under its heading; `lines` say what was measured."""
    panels = picture.panels
    columns = min(picture.columns, len(panels))
    rows = [panels[start : start + columns] for start in range(0, len(panels), columns)]
    wide, high = (max(panel.size[axis] for panel in panels) for axis in (0, 1))
    titles = [[_wrapped(panel.title, wide - LEFT, 9) for panel in row] for row in rows]
    heads = [LINE * max(len(lines) for lines in row) + 0.12 for row in titles]
    bar = 0.75 if picture.scale else 0.0
    width = max(columns * wide, 6.0) + bar
    above = [(picture.heading, 11.0, INK), *((line, 8.5, SOFT) for line in lines)]
    text = [(part, size, ink) for line, size, ink in above for part in _wrapped(line, width - LEFT, size)]
    top = 0.24 + 0.19 * len(text)
    figure = _figure((width, top + sum(heads) + high * len(rows) + 0.05))
    for index, (line, size, ink) in enumerate(text):
        _write(figure, line, LEFT, 0.24 + 0.19 * index, size, ink)
    y = top
    for row, title, head in zip(rows, titles, heads, strict=True):
        for column, panel in enumerate(row):
            for index, line in enumerate(title[column]):
                _write(figure, line, column * wide + LEFT, y + head - 0.04 - LINE * (len(title[column]) - 1 - index), 9)
            _place(figure, panel, column * wide, y + head)
        y += head + high
    if picture.scale:
        _colour_bar(figure, picture.scale, width - bar + 0.1, top + heads[0] + TOP)
    return figure


def png(figure: Figure) -> bytes:
    """Return the figure as PNG. No date and no version inside: the same cells give the same bytes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def svg(figure: Figure) -> bytes:
    """Return the figure as SVG with its text as text; no date, and ids that depend on the content alone."""
    import matplotlib

    out = io.BytesIO()
    about = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "ctxeval"}):
        figure.savefig(out, format="svg", metadata=about)
    return out.getvalue()


def thinned(places: Sequence[float], least: float) -> list[int]:
    """Return the indices of places that lie at least `least` apart, the last always among them."""
    kept: list[int] = []
    for index in range(len(places) - 1, -1, -1):
        if not kept or places[kept[-1]] - places[index] >= least:
            kept.append(index)
    return kept[::-1]


def _figure(size: tuple[float, float]) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=size, dpi=DPI, facecolor="white")


def _place(figure: Figure, panel: Panel, left: float, top: float) -> None:
    wide, high = figure.get_size_inches()
    axes, y = [], top + TOP + panel.head
    for height in panel.heights:
        axes.append(figure.add_axes(((left + LEFT) / wide, 1 - (y + height) / high, panel.width / wide, height / high)))
        y += height + GAP
    for axis in axes:
        axis.set_facecolor("none")
        axis.tick_params(labelsize=SMALL, colors=SOFT, length=0)
        for spine in axis.spines.values():
            spine.set_edgecolor(RULE)
            spine.set_linewidth(0.8)
    panel.draw(axes)
    for axis in axes:
        axis.xaxis.label.set(color=SOFT, fontsize=SMALL + 0.5)
        axis.yaxis.label.set(color=SOFT, fontsize=SMALL + 0.5)
        axis.yaxis.labelpad = 2


def _write(figure: Figure, text: str, x: float, y: float, size: float, ink: str = INK) -> None:
    wide, high = figure.get_size_inches()
    figure.text(x / wide, 1 - y / high, text, fontsize=size, color=ink, va="bottom", ha="left", parse_math=False)


def _wrapped(text: str, inches: float, size: float) -> list[str]:
    # A character of DejaVu Sans is about 0.6 of its size wide.
    return textwrap.wrap(text, max(int(inches * 72 / (0.6 * size)), 8), break_on_hyphens=False) or [""]


def _colour_bar(figure: Figure, palette: str, left: float, top: float) -> None:
    from matplotlib.patches import Rectangle

    from ctxeval.report.palette import colour

    wide, high = figure.get_size_inches()
    height, steps = min(2.2, high - top - 0.3), 50
    axis = figure.add_axes((left / wide, 1 - (top + height) / high, 0.13 / wide, height / high))
    for step in range(steps):
        shade = colour((step + 0.5) / steps, palette)
        axis.add_patch(Rectangle((0, 100 * step / steps), 1, 100 / steps, facecolor=shade, edgecolor=shade, lw=0.3))
    axis.set(xlim=(0, 1), ylim=(0, 100), xticks=[], yticks=[0, 25, 50, 75, 100])
    axis.yaxis.tick_right()
    axis.tick_params(labelsize=SMALL, colors=SOFT, length=0)
    axis.set_title("%", fontsize=SMALL, color=SOFT, pad=4)
    for spine in axis.spines.values():
        spine.set_visible(False)


def finite(value: float, limit: float = 1e6) -> float:
    """Return the value, the infinities as ± `limit`: a renderer cannot draw them."""
    return min(max(value, -limit), limit) if not math.isnan(value) else value
