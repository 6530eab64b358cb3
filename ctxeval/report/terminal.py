"""A run in the terminal: heatmaps, headline, R, verdicts, blind spot, warnings."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ctxeval.analysis.headline import Headline
from ctxeval.report.distance import distance_rows, terminal_distance
from ctxeval.report.heatmap import grids, terminal_heatmap
from ctxeval.report.notes import reference_line, verdict_lines, warnings
from ctxeval.report.palette import DEFAULT
from ctxeval.report.tables import terminal_tables
from ctxeval.report.text import LEGEND, measured_documents, model_line, protocol_line
from ctxeval.results.store import Run


def render_terminal(run: Run, console: Console, summary: Headline | None = None, palette: str = DEFAULT) -> None:
    """Print a run. `summary` is computed where it is not given."""
    head = summary or run.headline()
    console.print(Text(model_line(run.manifest), style="bold"))
    console.print(Text(protocol_line(run.manifest, head.plan, measured_documents(run.cells))))
    console.print()
    for grid in grids(run.cells, [row.scale for row in head.rows]):
        console.print(terminal_heatmap(grid, head.native_window, palette))
    for table in terminal_tables(head):
        console.print(table)
        console.print()
    console.print(Text(LEGEND, style="dim"))
    console.print()
    for block in terminal_distance(distance_rows(run.cells, [row.scale for row in head.rows], head.native_window)):
        console.print(block)
        console.print()
    console.print(Text(reference_line(head)))
    for line in verdict_lines(head):
        console.print(Text(line, style="" if line.startswith(" ") else "bold"))
    for line in warnings(run.cells, run.manifest, head):
        console.print(Text(f"note: {line}", style="yellow"))
