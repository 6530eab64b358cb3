"""Recall by distance from needle to question: explains more than depth does, since RoPE sees only distances."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from rich.table import Table
from rich.text import Text

from ctxeval.analysis.onset import length_label
from ctxeval.analysis.recall import DistanceBin, asked, distance_edges, recall_by_distance, scored
from ctxeval.report.text import MISSING, markdown_cell, percent, percent_range

TITLE = "Recall by distance from needle to question, tokens (rows in brackets)"
CSV_COLUMNS = ("scale", "distance_above", "distance_to", "recall", "recall_low", "recall_high", "rows", "documents")
#: As many bins as fit into 80 columns.
BINS_A_BLOCK = 6


@dataclass(frozen=True)
class DistanceRow:
    """One scaling's recall in each distance bin."""

    scale: str
    bins: tuple[DistanceBin, ...]


def distance_rows(cells: pd.DataFrame, scales: Sequence[str], native_window: int) -> tuple[DistanceRow, ...]:
    """Return recall by distance for each scaling that has scored needles; all share the same bins."""
    rows = scored(asked(cells))
    edges = distance_edges(rows["needle_distance"], native_window)
    return tuple(
        DistanceRow(scale, recall_by_distance(mine, edges))
        for scale in scales
        if len(mine := rows[rows["scale"] == scale])
    )


def terminal_distance(rows: Sequence[DistanceRow]) -> list[Table]:
    """Return the table in blocks of six bins, at most 80 columns wide."""
    blocks = []
    for start in range(0, len(rows[0].bins) if rows else 0, BINS_A_BLOCK):
        table = Table(box=None, title=TITLE, title_justify="left", title_style="bold", padding=(0, 1), pad_edge=False)
        table.add_column("Scaling", overflow="fold", max_width=14)
        chosen = slice(start, start + BINS_A_BLOCK)
        for one in rows[0].bins[chosen]:
            table.add_column(_span(one), justify="right", no_wrap=True)
        for row in rows:
            table.add_row(row.scale, *(Text(_cell(one)) for one in row.bins[chosen]))
        blocks.append(table)
    return blocks


def markdown_distance(rows: Sequence[DistanceRow]) -> str:
    """Return the table as Markdown, with 95 % intervals; empty where nothing was scored."""
    if not rows:
        return ""
    header = ["Scaling", *(_span(one) for one in rows[0].bins)]
    lines = [f"**{TITLE}**", "", _line(header), "|:--" + "|--:" * (len(header) - 1) + "|"]
    for row in rows:
        lines.append(_line([row.scale, *(_long_cell(one) for one in row.bins)]))
    return "\n".join(lines) + "\n"


def csv_distance(rows: Sequence[DistanceRow]) -> str:
    """Return one line a (scaling, bin): edges in tokens, recall and its 95 % interval in full precision."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for row in rows:
        for one in row.bins:
            share = one.recall
            values = (share.value, share.low, share.high) if share.measured else ("", "", "")
            writer.writerow([row.scale, one.low, one.high, *values, share.rows, share.documents])
    return out.getvalue()


def _span(one: DistanceBin) -> str:
    return f"{length_label(int(one.low)) if one.low else '0'}–{length_label(int(one.high))}"


def _cell(one: DistanceBin) -> str:
    return f"{percent(one.recall.value)} ({one.recall.rows})" if one.recall.measured else MISSING


def _long_cell(one: DistanceBin) -> str:
    if not one.recall.measured:
        return MISSING
    return f"{percent(one.recall.value)} [{percent_range(one.recall)}] ({one.recall.rows})"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(markdown_cell, cells)) + " |"
