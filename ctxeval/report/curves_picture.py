"""Recall and the perplexity ratio over one length axis, a panel a scaling: the blind spot is the shaded part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ctxeval.analysis.headline import Headline, LengthResult, ScalingResult
from ctxeval.analysis.onset import State, length_label
from ctxeval.analysis.stats import Estimate
from ctxeval.report.canvas import (
    BLIND,
    INK,
    PAPER,
    RATIO,
    RECALL,
    RULE,
    SMALL,
    SOFT,
    WINDOW_DASH,
    Panel,
    Picture,
    finite,
    thinned,
)
from ctxeval.report.notes import blind_spot_text
from ctxeval.report.text import number, scale_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHTS = 3.3, (1.5, 1.3)
RATIO_BOTTOM, RATIO_TOP = 0.85, 2.0
#: Inches that a character of a length's label takes.
CHARACTER = 0.075
#: (x, value, low, high, state)
Point = tuple[float, float, float, float, State]


def curves(summary: Headline) -> Picture:
    """Return recall (%) and perplexity ratio over length (tokens, log 2) with 95 % bands; blind spots are shaded."""
    rows = [row for row in summary.rows if any(_measured(result) for result in row.lengths)]
    panels = tuple(_panel(row, summary) for row in rows)
    columns = len(panels) if len(panels) <= 3 else math.ceil(math.sqrt(len(panels)))
    heading = f"Recall and perplexity over context length; dotted: {summary.floor:g} R and {1 + summary.epsilon:g}"
    return Picture("curves", heading, panels, columns)


def _measured(result: LengthResult) -> bool:
    return result.recall.measured or result.perplexity.ratio.measured


def _panel(row: ScalingResult, summary: Headline) -> Panel:
    label = scale_label(row.scale, row.factor)
    alt = f"{label} over context length. {row.verdict}. Blind spot: {blind_spot_text(row)}"
    return Panel(label, alt, WIDTH, HEIGHTS, partial(_draw, row=row, summary=summary))


def _draw(axes: Sequence[Axes], row: ScalingResult, summary: Headline) -> None:
    above, below = axes
    recall = [_point(one.length, one.recall, one.recall_state, 100) for one in row.lengths if one.recall.measured]
    _band(above, recall, RECALL)
    above.set(ylim=(-5, 105), yticks=[0, 25, 50, 75, 100], ylabel="recall, %")
    if summary.reference.measured:
        bar = 100 * summary.floor * summary.reference.value
        above.axhline(bar, color=SOFT, linewidth=0.9, linestyle=":")
    _ratio(below, row, summary)
    for axis in axes:
        _length_axis(axis, row, summary, last=axis is below)
    _name_blind_spot(above, row, summary)


def _ratio(axis: Axes, row: ScalingResult, summary: Headline) -> None:
    ratios = [(one.length, one.perplexity.ratio, one.ratio_state) for one in row.lengths]
    ratios = [(x, estimate, state) for x, estimate, state in ratios if estimate.measured]
    # One blow-up must not flatten every other curve: what lies above the axis is put at its top, with its value.
    capped = [_point(x, estimate, state, 1, RATIO_TOP) for x, estimate, state in ratios]
    _band(axis, capped, RATIO)
    axis.axhline(1 + summary.epsilon, color=SOFT, linewidth=0.9, linestyle=":")
    axis.set(ylim=(RATIO_BOTTOM, RATIO_TOP + 0.07), ylabel="perplexity ratio", yticks=[1, 1.25, 1.5, 1.75, 2])
    beyond = [(x, estimate.value) for x, estimate, _ in ratios if estimate.value > RATIO_TOP]
    for index in thinned([_inches(x, summary) for x, _ in beyond], 4.5 * CHARACTER):
        x, value = beyond[index]
        behind = {"facecolor": PAPER, "linewidth": 0, "pad": 0.8, "alpha": 0.8}
        axis.text(x, 1.9, number(value), ha="center", va="top", fontsize=SMALL - 0.5, color=RATIO, bbox=behind)


def _point(length: int, estimate: Estimate, state: State, unit: float, top: float = math.inf) -> Point:
    value, low, high = (min(unit * one, top) for one in (estimate.value, estimate.low, estimate.high))
    return float(length), value, low, high, state


def _band(axis: Axes, points: Sequence[Point], colour: str) -> None:
    if not points:
        axis.text(0.5, 0.5, "not measured", ha="center", va="center", transform=axis.transAxes, color=SOFT, fontsize=8)
        return
    x, value, low, high = (np.asarray(column, dtype=float) for column in list(zip(*points, strict=True))[:4])
    low, high = (np.array([finite(one) for one in bound]) for bound in (low, high))
    axis.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
    axis.plot(x, value, color=colour, linewidth=1.4)
    for at, share, state in zip(x, value, [point[4] for point in points], strict=True):
        axis.plot([at], [share], color=colour, linestyle="none", zorder=4, clip_on=False, **_marker(state, colour))


def _marker(state: State, colour: str) -> dict[str, Any]:
    """Return a full dot where a probe holds, a cross where it is broken, a ring where that is open."""
    if state == "broken":
        return {"marker": "X", "markersize": 5.5, "markeredgecolor": PAPER, "markeredgewidth": 0.5}
    face = colour if state == "holds" else PAPER
    return {"marker": "o", "markersize": 4.5, "markerfacecolor": face, "markeredgewidth": 1.2}


def _length_axis(axis: Axes, row: ScalingResult, summary: Headline, *, last: bool) -> None:
    lengths = list(summary.lengths)
    axis.set_xscale("log", base=2)
    axis.minorticks_off()
    axis.set_xlim(*_limits(summary))
    labels = [length_label(length) for length in lengths]
    least = CHARACTER * (max(map(len, labels)) + 0.4)
    named = set(thinned([_inches(length, summary) for length in lengths], least))
    labels = [label if index in named and last else "" for index, label in enumerate(labels)]
    axis.set_xticks(lengths, labels)
    axis.grid(color=RULE, linewidth=0.6)
    axis.set_axisbelow(True)
    axis.axvline(summary.native_window, color=INK, linewidth=1.1, linestyle=WINDOW_DASH)
    if last:
        axis.set_xlabel("context length, tokens")
    for left, right in blind_spans(row, summary):
        axis.axvspan(left, right, color=BLIND, alpha=0.17, linewidth=0, zorder=0)


def blind_spans(row: ScalingResult, summary: Headline) -> list[tuple[float, float]]:
    """Return the blind spot as spans of the length axis (tokens): half way, in logarithms, to the lengths beside it."""
    lengths, found = list(summary.lengths), list[tuple[float, float]]()
    for length in row.blind_spot:
        index = lengths.index(length)
        left = math.sqrt(lengths[index - 1] * length) if index else length / 1.1
        right = math.sqrt(length * lengths[index + 1]) if index + 1 < len(lengths) else length * 1.1
        if found and math.isclose(found[-1][1], left):
            found[-1] = (found[-1][0], right)
        else:
            found.append((left, right))
    return found


def _name_blind_spot(axis: Axes, row: ScalingResult, summary: Headline) -> None:
    spans = blind_spans(row, summary)
    if spans:
        left, right = max(spans, key=lambda one: one[1] / one[0])
        at = math.sqrt(left * min(right, _limits(summary)[1]))
        axis.text(at, 50, "blind spot", rotation=90, ha="center", va="center", fontsize=SMALL, color=BLIND)


def _limits(summary: Headline) -> tuple[float, float]:
    low, high = min(*summary.lengths, summary.native_window), max(summary.lengths)
    return low / 1.12, high * 1.12


def _inches(length: float, summary: Headline) -> float:
    low, high = (math.log(one) for one in _limits(summary))
    return WIDTH * (math.log(length) - low) / (high - low)
