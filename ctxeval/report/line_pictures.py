"""Recall over distance, all scalings in one panel; and the answer's log-probability over depth, a panel a scaling."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ctxeval.analysis.onset import length_label
from ctxeval.report.canvas import DASHES, INK, RULE, SERIES, SMALL, SOFT, WINDOW_DASH, Panel, Picture, thinned
from ctxeval.report.distance import DistanceRow
from ctxeval.report.palette import mix

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: From the shortest length to the longest; both ends show on white and on black.
SHORT, LONG = "#4a90d9", "#d6453d"
#: Log-probabilities (nats) nearer to 0 than this are drawn here: the axis is logarithmic.
LEAST = 0.001
WIDTH, LEGEND_LINE = 4.6, 0.19


def distances(rows: Sequence[DistanceRow], labels: Mapping[str, str], native_window: int) -> Picture:
    """Return recall (%) over the distance from needle to question (tokens), a line a scaling, 95 % bars.

    Args:
        rows: at least one, see `distance_rows`.
        labels: how a scaling is called.
        native_window: tokens.
    """
    draw = partial(_distances, rows=rows, labels=labels, native_window=native_window)
    names = ", ".join(labels[row.scale] for row in rows)
    alt = f"Recall over distance from needle to question, for {names}"
    panel = Panel("", alt, WIDTH, (2.3,), draw, head=LEGEND_LINE * len(_legend_rows(rows, labels)))
    return Picture("distance", "Recall by distance from needle to question", (panel,), 1)


def _distances(
    axes: Sequence[Axes], rows: Sequence[DistanceRow], labels: Mapping[str, str], native_window: int
) -> None:
    (axis,) = axes
    last = max(one.high for one in rows[0].bins)
    for index, row in enumerate(rows):
        bins = [one for one in row.bins if one.recall.measured]
        shift = (index - (len(rows) - 1) / 2) * last * 0.006  # bars side by side, not on top of each other
        x = np.array([(one.low + one.high) / 2 + shift for one in bins])
        value, low, high = (
            np.array([100 * getattr(one.recall, name) for one in bins]) for name in ("value", "low", "high")
        )
        colour, dash = _style(index)
        axis.vlines(x, low, high, color=colour, linewidth=1.0, alpha=0.45)
        axis.plot(x, value, color=colour, linestyle=dash, linewidth=1.5, marker="o", markersize=3.5)
    axis.axvline(native_window, color=INK, linewidth=1.1, linestyle=WINDOW_DASH)
    edges = [0.0, *(one.high for one in rows[0].bins)]
    named = thinned([WIDTH * edge / last for edge in edges], 0.34)
    axis.set_xticks([edges[i] for i in named], [length_label(int(edges[i])) if edges[i] else "0" for i in named])
    axis.set(xlim=(0, last), ylim=(-4, 104), yticks=[0, 25, 50, 75, 100], ylabel="recall, %")
    axis.set_xlabel("distance from needle to question, tokens")
    axis.grid(color=RULE, linewidth=0.6)
    axis.set_axisbelow(True)
    _legend(axis, rows, labels)


def _legend_rows(rows: Sequence[DistanceRow], labels: Mapping[str, str]) -> list[list[tuple[int, float, str]]]:
    """Return the legend's lines: of each entry its scaling's index, its place in inches and its name."""
    lines: list[list[tuple[int, float, str]]] = [[]]
    x = 0.0
    for index, row in enumerate(rows):
        name = textwrap.shorten(labels[row.scale], 50, placeholder=" …") or "…"
        wide = 0.35 + 0.07 * len(name) + 0.15
        if lines[-1] and x + wide > WIDTH:
            lines.append([])
            x = 0.0
        lines[-1].append((index, x, name))
        x += wide
    return lines


def _legend(axis: Axes, rows: Sequence[DistanceRow], labels: Mapping[str, str]) -> None:
    lines = _legend_rows(rows, labels)
    for number, line in enumerate(reversed(lines)):
        y = 1 + (0.1 + LEGEND_LINE * number) / 2.3
        for index, x, name in line:
            colour, dash = _style(index)
            ends = [x / WIDTH, (x + 0.26) / WIDTH]
            axis.plot(ends, [y, y], color=colour, linestyle=dash, lw=1.5, transform=axis.transAxes, clip_on=False)
            about: dict[str, Any] = {"va": "center", "fontsize": SMALL, "color": SOFT, "parse_math": False}
            axis.text((x + 0.33) / WIDTH, y, name, transform=axis.transAxes, **about)


def _style(index: int) -> tuple[str, Any]:
    return SERIES[index % len(SERIES)], DASHES[index // len(SERIES) % len(DASHES)]


def certainty(table: pd.DataFrame, labels: Mapping[str, str]) -> Picture:
    """Return the answer's log-probability (nats, logarithmic axis) over depth (%), a line a length, a panel a scaling.

    Args:
        table: see `logprob_table`; not empty.
        labels: how a scaling is called, in the order of the panels; those without rows are left out.
    """
    lengths = sorted(int(length) for length in table["context_length"].unique())
    best, worst = (max(-float(value), LEAST) for value in (table["logprob"].max(), table["logprob"].min()))
    panels = []
    for scale, label in labels.items():
        own = table[table["scale"] == scale]
        if not own.empty:
            draw = partial(_certainty, table=own, lengths=lengths, ends=(best, worst))
            alt = f"Log-probability of the answer over needle depth, {label}"
            panels.append(Panel(label, alt, 3.3, (1.9,), draw, head=0.12))
    columns = len(panels) if len(panels) <= 3 else math.ceil(math.sqrt(len(panels)))
    return Picture("certainty", "Log-probability of the answer by needle depth, nats", tuple(panels), columns)


def _certainty(axes: Sequence[Axes], table: pd.DataFrame, lengths: Sequence[int], ends: tuple[float, float]) -> None:
    (axis,) = axes
    for index, length in enumerate(lengths):
        own = table[table["context_length"] == length].sort_values("depth_percent")
        colour = mix(SHORT, LONG, index / max(len(lengths) - 1, 1))
        loss = np.maximum(-own["logprob"].to_numpy(dtype=float), LEAST)
        axis.plot(own["depth_percent"], loss, color=colour, linewidth=1.3, marker="o", markersize=2.6)
    _lengths_beside(axis, lengths)
    axis.set_yscale("log")
    axis.minorticks_off()
    top, bottom = ends[0] / 1.4, ends[1] * 1.4
    ticks = [tick for power in range(-3, 4) for tick in (10.0**power, 3 * 10.0**power) if top <= tick <= bottom]
    axis.set_yticks(ticks, [f"−{tick:g}" for tick in ticks])
    axis.set(ylim=(bottom, top), xlim=(-2, 102), xticks=[0, 25, 50, 75, 100])
    axis.set(xlabel="needle depth, %", ylabel="log-prob., nats")
    axis.grid(color=RULE, linewidth=0.6)
    axis.set_axisbelow(True)


def _lengths_beside(axis: Axes, lengths: Sequence[int]) -> None:
    """Name the lengths in their colours along the top, as many as fit."""
    step = math.ceil(len(lengths) / 8)
    chosen = [index for index in range(len(lengths)) if (len(lengths) - 1 - index) % step == 0]
    for place, index in enumerate(chosen):
        colour = mix(SHORT, LONG, index / max(len(lengths) - 1, 1))
        x = (place + 0.5) / len(chosen)
        axis.text(x, 1.015, length_label(lengths[index]), color=colour, transform=axis.transAxes, **_CENTRED)


_CENTRED: Mapping[str, Any] = {"ha": "center", "va": "bottom", "fontsize": SMALL - 0.5}
