"""Put the tables of one run, or of several, on stdout or into a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from ctxeval.report.artifacts import json_report, markdown
from ctxeval.report.palette import DEFAULT
from ctxeval.report.tables import csv_table
from ctxeval.report.terminal import render_terminal
from ctxeval.results.files import plain, write_whole
from ctxeval.results.store import Run

if TYPE_CHECKING:
    from ctxeval.analysis.headline import Headline
    from ctxeval.runner import Forecast


def show(run: Run, format: str, output: Path | None = None) -> None:
    """Write the run in `format` to `output`, or to stdout. See `show_runs`."""
    show_runs([run], format, output)


def show_runs(
    runs: Sequence[Run], format: str, output: Path | None = None, *, palette: str = DEFAULT, samples: bool = True
) -> None:
    """Write the runs in `format` (table, md, csv, json, html or model-card) to `output`, or to stdout.

    Raises:
        RunError: the file cannot be written.
        UsageError: damaged samples, or nothing that a model card could say.
    """
    if format == "table" and output is None:
        for index, run in enumerate(runs):
            typer.echo("\n" * (index > 0), nl=False)
            render_terminal(run, Console(highlight=False), palette=palette)
        return
    text = render(runs, format, palette=palette, samples=samples)
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


def render(runs: Sequence[Run], format: str, *, palette: str = DEFAULT, samples: bool = True) -> str:
    """Return the runs as text; `table` becomes Markdown where there is no terminal to draw it on."""
    if format == "html":
        return _page(runs, palette, samples)
    summaries = [run.headline() for run in runs]
    if format == "model-card":
        from ctxeval.report.model_card import model_card

        return model_card(runs[0].manifest, summaries[0])
    pairs = list(zip(runs, summaries, strict=True))
    if format == "csv":
        return csv_table(summaries[0]) if len(runs) == 1 else _csv(pairs)
    if format == "json":
        reports = [json_report(run, summary) for run, summary in pairs]
        content = reports[0] if len(runs) == 1 else {"runs": reports}
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    return "\n".join([*(markdown(run, summary) for run, summary in pairs), *_compared(runs)])


def _page(runs: Sequence[Run], palette: str, samples: bool) -> str:
    from ctxeval.report.differences import differences
    from ctxeval.report.html import Content, html_report
    from ctxeval.results.samples import load_samples

    contents = [Content(run, run.headline(), load_samples(run.path) if samples else None) for run in runs]
    return html_report(contents, palette, differences(runs) if len(runs) > 1 else ())


def _csv(pairs: Sequence[tuple[Run, Headline]]) -> str:
    """Return the tables one below the other, with the run's folder as the first column."""
    import csv
    import io

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for index, (run, summary) in enumerate(pairs):
        header, *rows = csv.reader(io.StringIO(csv_table(summary)))
        writer.writerows([["run", *header]] * (index == 0) + [[str(run.path), *row] for row in rows])
    return out.getvalue()


def _compared(runs: Sequence[Run]) -> list[str]:
    if len(runs) < 2:
        return []
    from ctxeval.report.differences import differences, markdown_differences

    return [markdown_differences(differences(runs))]
