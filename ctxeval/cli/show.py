"""Put a run's tables on stdout, or into a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from ctxeval.report.artifacts import json_report, markdown
from ctxeval.report.tables import csv_table
from ctxeval.report.terminal import render_terminal
from ctxeval.results.files import plain, write_whole
from ctxeval.results.store import Run

if TYPE_CHECKING:
    from ctxeval.runner import Forecast


def show(run: Run, format: str, output: Path | None = None) -> None:
    """Write the run in `format` (table, md, csv or json) to `output`, or to stdout.

    Raises:
        RunError: the file cannot be written.
    """
    if format == "table" and output is None:
        render_terminal(run, Console(highlight=False))
        return
    text = render(run, format)
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_whole(output, text.encode())


def show_forecast(forecast: Forecast, format: str) -> None:
    """Print the plan of a dry run (table or json) on stdout."""
    if format == "json":
        typer.echo(json.dumps(plain(forecast.values), indent=2, ensure_ascii=False))
    else:
        typer.echo("\n".join(forecast.lines))


def render(run: Run, format: str) -> str:
    """Return the run as text; `table` becomes Markdown where there is no terminal to draw it on."""
    summary = run.headline()
    if format == "csv":
        return csv_table(summary)
    if format == "json":
        return json.dumps(json_report(run, summary), indent=2, ensure_ascii=False) + "\n"
    return markdown(run, summary)
