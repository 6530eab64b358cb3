"""The headline table, as a terminal table, Markdown, CSV and JSON of the same content."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from ctxeval.analysis.headline import Headline, LengthResult, ScalingResult
from ctxeval.analysis.onset import State, length_label
from ctxeval.report.text import (
    INCOMPLETE,
    LEGEND,
    MARKS,
    half_width,
    markdown_cell,
    number,
    number_range,
    percent,
    percent_range,
    scale_label,
    through,
)
from ctxeval.results.files import plain

#: As many lengths as fit into 80 columns; a longer grid is cut into blocks.
LENGTHS_A_BLOCK = 7
ABSOLUTE = "Perplexity ↓ (each length on its own tokens)"
STYLES: dict[State, str] = {"holds": "green", "broken": "bold red", "undecided": "yellow", "missing": "dim"}
CSV_COLUMNS = (
    *("scale", "factor", "context_length", "recall", "recall_low", "recall_high", "recall_rows", "recall_documents"),
    *("recall_state", "recall_nan", "recall_missing", "perplexity", "bits_per_byte", "ratio", "ratio_low"),
    *("ratio_high", "ratio_documents", "ratio_state", "ratio_nan", "ratio_missing"),
)


def has_recall(summary: Headline) -> bool:
    """Whether retrieval was measured at all."""
    return any(result.recall.measured for row in summary.rows for result in row.lengths)


def has_perplexity(summary: Headline) -> bool:
    """Whether perplexity was measured at all."""
    results = [result for row in summary.rows for result in row.lengths]
    return any(math.isfinite(result.perplexity.value) or result.ratio_nan for result in results)


def terminal_tables(summary: Headline) -> Iterator[Table]:
    """Yield the blocks of the headline: recall, then the perplexity ratio, at most seven lengths a block."""
    for start in range(0, len(summary.lengths), LENGTHS_A_BLOCK):
        columns = range(start, min(start + LENGTHS_A_BLOCK, len(summary.lengths)))
        if has_recall(summary):
            yield _block(summary, columns, "Recall ↑, % (95 % interval below)", True)
        if has_perplexity(summary):
            yield _block(summary, columns, "Perplexity ratio to the unpatched native window ↓ (95 % below)", False)
        if has_perplexity(summary) and not has_recall(summary):
            yield _absolute(summary, columns)


def _block(summary: Headline, columns: Sequence[int], title: str, retrieval: bool) -> Table:
    table = Table(box=None, title=title, title_justify="left", title_style="bold", padding=(0, 1), pad_edge=False)
    table.add_column("Scaling", overflow="fold", max_width=14)
    for column in columns:
        table.add_column(length_label(summary.lengths[column]), justify="right", no_wrap=True, min_width=5)
    table.add_column("Holds to", justify="right", no_wrap=True)
    for row in summary.rows:
        cells = [_recall_cell(row.lengths[i]) if retrieval else _ratio_cell(row.lengths[i]) for i in columns]
        limit = through(row.recall_through if retrieval else row.ratio_through, summary.lengths[0])
        table.add_row(Text(row_label(row)), *cells, Text(limit))
    return table


def _absolute(summary: Headline, columns: Sequence[int]) -> Table:
    """Return perplexity itself, for comparison with papers: other lengths score other tokens."""
    table = Table(box=None, title=ABSOLUTE, title_justify="left", title_style="bold", padding=(0, 1), pad_edge=False)
    table.add_column("Scaling", overflow="fold", max_width=14)
    for column in columns:
        table.add_column(length_label(summary.lengths[column]), justify="right", no_wrap=True, min_width=5)
    for row in summary.rows:
        table.add_row(Text(row_label(row)), *(Text(number(row.lengths[i].perplexity.value)) for i in columns))
    return table


@dataclass(frozen=True)
class Measured:
    """What a table says of a probe at one length: the value, its interval, its state and the marks of that state."""

    value: str
    spread: str
    state: State
    marks: str


def measured_recall(result: LengthResult) -> Measured:
    """Return recall in percent."""
    incomplete = INCOMPLETE if result.recall_nan or result.recall_missing else ""
    state = result.recall_state
    return Measured(percent(result.recall.value), percent_range(result.recall), state, MARKS[state] + incomplete)


def measured_ratio(result: LengthResult) -> Measured:
    """Return the perplexity ratio."""
    incomplete = INCOMPLETE if result.ratio_nan or result.ratio_missing else ""
    value = "NaN" if result.ratio_nan else number(result.perplexity.ratio.value)
    state = result.ratio_state
    return Measured(value, number_range(result.perplexity.ratio), state, MARKS[state] + incomplete)


def _recall_cell(result: LengthResult) -> Text:
    one = measured_recall(result)
    return Text(one.value + one.marks, style=STYLES[one.state]).append("\n" + one.spread, style="dim not bold default")


def _ratio_cell(result: LengthResult) -> Text:
    one = measured_ratio(result)
    text = Text(one.value + one.marks, style=STYLES[one.state])
    return text.append("\n" + half_width(result.perplexity.ratio), style="dim not bold default")


def row_label(row: ScalingResult) -> str:
    """Write a scaling with its factor; `none` is marked as the base that the others are compared with."""
    label = scale_label(row.scale, row.factor)
    return f"{label} (base)" if row.scale == "none" else label


def markdown_tables(summary: Headline) -> str:
    """Return the headline as Markdown tables with all lengths side by side, marked as in the terminal; with legend."""
    parts = []
    if has_recall(summary):
        parts.append(_markdown(summary, "Recall ↑, % (95 % interval)", True))
    if has_perplexity(summary):
        parts.append(_markdown(summary, "Perplexity ratio to the unpatched native window ↓ (95 % interval)", False))
    if has_perplexity(summary) and not has_recall(summary):
        lines = [
            _line([row_label(row), *(number(one.perplexity.value) for one in row.lengths)]) for row in summary.rows
        ]
        header = ["Scaling", *map(length_label, summary.lengths)]
        parts.append(
            "\n".join([f"**{ABSOLUTE}**", "", _line(header), "|:--" + "|--:" * len(summary.lengths) + "|", *lines, ""])
        )
    return "\n".join([*parts, LEGEND + "\n"])


def _markdown(summary: Headline, title: str, retrieval: bool) -> str:
    header = ["Scaling", *map(length_label, summary.lengths), "Holds to"]
    lines = [f"**{title}**", "", _line(header), "|:--" + "|--:" * (len(header) - 1) + "|"]
    for row in summary.rows:
        cells = [_markdown_cell(result, retrieval) for result in row.lengths]
        limit = through(row.recall_through if retrieval else row.ratio_through, summary.lengths[0])
        lines.append(_line([row_label(row), *cells, limit]))
    return "\n".join(lines) + "\n"


def _markdown_cell(result: LengthResult, retrieval: bool) -> str:
    one = measured_recall(result) if retrieval else measured_ratio(result)
    return one.value + (f" ({one.spread})" if one.spread else "") + (f" {one.marks}" if one.marks else "")


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(markdown_cell, cells)) + " |"


def csv_table(summary: Headline) -> str:
    """Return the headline as CSV, one line a (scaling, length): full precision, lengths in tokens, empty if missing."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for row in summary.rows:
        for result in row.lengths:
            recall, loss = result.recall, result.perplexity
            values = [
                *(row.scale, row.factor, result.length),
                *(recall.value, recall.low, recall.high, recall.rows, recall.documents, result.recall_state),
                *(result.recall_nan, result.recall_missing),
                *(loss.value, loss.bits_per_byte, loss.ratio.value, loss.ratio.low, loss.ratio.high),
                *(loss.ratio.documents, result.ratio_state, result.ratio_nan, result.ratio_missing),
            ]
            writer.writerow(["" if plain(value) is None else value for value in values])
    return out.getvalue()


def json_table(summary: Headline) -> dict[str, Any]:
    """Return the headline as plain JSON values (nan and infinities are null)."""
    content: dict[str, Any] = plain(asdict(summary))
    return content
