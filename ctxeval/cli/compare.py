"""The `compare` command: what changed from a baseline to candidates. It compares, it does not gate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ctxeval.errors import unknown

if TYPE_CHECKING:
    from ctxeval.analysis.compare import Comparison, Side

FORMATS = ("table", "md", "csv", "json")


def compare(
    baseline: Annotated[str, typer.Argument(metavar="BASELINE", help="RUN or RUN@SCALE; RUN: a folder or a baseline.")],
    candidates: Annotated[list[str], typer.Argument(metavar="CANDIDATE...", help="The same, each compared with it.")],
    allow_mismatch: Annotated[
        bool, typer.Option("--allow-mismatch", help="Compare what both have, though the runs are unlike.")
    ] = False,
    format: Annotated[str, typer.Option("--format", help="table, md, csv or json.")] = "table",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write to this file instead of stdout.")] = None,
) -> None:
    """Compare runs, or scalings of one run: paired, with intervals and significance, worst first."""
    from ctxeval.analysis.compare import compare_runs
    from ctxeval.report.compare import verdict_line
    from ctxeval.results.files import write_whole
    from ctxeval.sides import open_side

    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    known: dict[str, Side] = {}
    for name in (baseline, *candidates):
        known[name] = known.get(name) or open_side(name)
    found = compare_runs(known[baseline], [known[name] for name in candidates], allow_mismatch=allow_mismatch)
    if output is not None:
        write_whole(output, render(found, format).encode())
        for comparison in found:
            typer.echo(verdict_line(comparison), err=True)
    elif format == "table":
        _show(found)
    else:
        typer.echo(render(found, format), nl=False)


def render(comparisons: tuple[Comparison, ...], format: str) -> str:
    """Return the comparisons as text in `format`: table, md, csv or json."""
    from ctxeval.report.compare import compare_csv, compare_json, compare_lines, compare_markdown

    if format == "csv":
        return compare_csv(comparisons)
    if format == "json":
        return json.dumps([compare_json(one) for one in comparisons], indent=2, ensure_ascii=False) + "\n"
    if format == "md":
        return "\n".join(compare_markdown(one) for one in comparisons)
    return "\n\n".join("\n".join(compare_lines(one)) for one in comparisons) + "\n"


def _show(comparisons: tuple[Comparison, ...]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    styles = {"worse": "bold red", "better": "green", "missing": "yellow", "flagged": "yellow", "unlike": "bold yellow"}
    for line in render(comparisons, "table").splitlines():
        word = line.split(" ", 1)[0]
        text = Text(line)
        text.stylize(styles.get(word, ""), 0, len(word))
        console.print(text, soft_wrap=True)
