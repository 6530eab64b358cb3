"""Recall over depth and length in the terminal: a block a scaling, the number in each cell."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd
from rich.text import Text

from ctxeval.analysis.onset import length_label
from ctxeval.analysis.recall import recall_table
from ctxeval.report.palette import DEFAULT, colour, ink_on
from ctxeval.report.text import percent, scale_label

FEW_TRIALS = 5
COLUMNS_A_BLOCK = 11
CELL_WIDTH = 6


@dataclass(frozen=True)
class Grid:
    """Recall of one scaling: `recall` (depths, lengths), nan where unmeasured; `trials` likewise, 0 there."""

    label: str
    recall: pd.DataFrame
    trials: pd.DataFrame


def grids(cells: pd.DataFrame, scalings: list[str]) -> list[Grid]:
    """Return a grid a scaling that has needle rows, all with the same depths (0 first) and lengths."""
    table = recall_table(cells)
    depths = sorted(table["depth_percent"].unique())
    lengths = sorted(table["context_length"].unique())
    found = []
    for scale in sorted(scalings, key=lambda label: label != "none"):
        own = table[table["scale"] == scale]
        if own.empty:
            continue
        factor = float(cells.loc[cells["scale"] == scale, "factor"].iloc[0])
        recall = own.pivot(index="depth_percent", columns="context_length", values="recall")
        trials = own.pivot(index="depth_percent", columns="context_length", values="n")
        recall = recall.reindex(index=depths, columns=lengths)
        trials = trials.reindex(index=depths, columns=lengths).fillna(0).astype(int)
        found.append(Grid(scale_label(scale, factor), recall, trials))
    return found


def span(counts: Any) -> str:
    """Write the smallest and the largest of some counts: `4–16`, or `16` where they agree; `0` where there are none."""
    if not len(counts):
        return "0"
    return f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)}–{max(counts)}"


def terminal_heatmap(grid: Grid, native_window: int, palette: str = DEFAULT) -> Text:
    """Draw one scaling: depth 0 at the top, a bar where the native window ends, (n) in brackets under 5 trials."""
    text = Text()
    for start in range(0, grid.recall.shape[1], COLUMNS_A_BLOCK):
        _draw(text, grid, slice(start, start + COLUMNS_A_BLOCK), native_window, palette)
    return text.append(_caption(grid, native_window), style="dim")


def _draw(text: Text, grid: Grid, block: slice, native_window: int, palette: str) -> None:
    every = [int(length) for length in grid.recall.columns]
    lengths = every[block]
    text.append(f"{grid.label}\n", style="bold").append("  depth")
    for length in lengths:
        text.append(length_label(length).rjust(CELL_WIDTH - 1) + " " + _bar(length, every, native_window))
    text.append("\n")
    for depth in grid.recall.index:
        text.append(f"{depth:5.4g} %" if math.isfinite(depth) else "      –")
        for length in lengths:
            share, trials = float(grid.recall.loc[depth, length]), int(grid.trials.loc[depth, length])
            text.append(*_cell(share, trials, palette)).append(_bar(length, every, native_window))
        text.append("\n")


def _cell(share: float, trials: int, palette: str) -> tuple[str, str]:
    if trials == 0:
        return "–".rjust(CELL_WIDTH - 1) + " ", "dim"
    if trials < FEW_TRIALS:
        return f"({percent(share)})".rjust(CELL_WIDTH), "dim"
    shade = colour(share, palette)
    return percent(share).rjust(CELL_WIDTH - 1) + " ", f"{ink_on(shade)} on {shade}"


def _bar(length: int, lengths: list[int], native_window: int) -> str:
    """Return the bar behind the last length inside the window, unless the window ends beyond all `lengths`."""
    inside = [candidate for candidate in lengths if candidate <= native_window]
    ends = len(inside) < len(lengths) or length == native_window
    return "│" if inside and length == inside[-1] and ends else " "


def _caption(grid: Grid, native_window: int) -> str:
    counts = grid.trials.to_numpy().ravel()
    counts = counts[counts > 0]
    if not counts.size:
        return "recall, %; nothing measured\n"
    few = "; (in brackets: under 5)" if counts.min() < FEW_TRIALS else ""
    trials = "trial" if counts.max() == 1 else "trials"
    return f"recall, %; {span(counts)} {trials} a cell{few}; │ native window {length_label(native_window)}\n"
