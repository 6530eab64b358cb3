"""The `gate` command: a run folder and a policy to an exit code that CI can trust."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ctxeval.errors import RunError, unknown

if TYPE_CHECKING:
    from ctxeval.analysis.gate import Gate
    from ctxeval.results.store import Run

FORMATS = ("table", "json", "junit")


def gate(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    policy: Annotated[str, typer.Option("--policy", metavar="FILE", help="A policy (YAML), or `ship` or `smoke`.")],
    scale: Annotated[
        str | None, typer.Option("--scale", help="The scaling that ships; by default the only one beside none.")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option("--baseline", metavar="RUN", help="For the rule regression: RUN, RUN@SCALE or a baseline file."),
    ] = None,
    format: Annotated[str, typer.Option("--format", help="table, json or junit.")] = "table",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write to this file instead of stdout.")] = None,
    junit: Annotated[Path | None, typer.Option("--junit", help="Write JUnit XML to this file, too.")] = None,
) -> None:
    """Check a run against a policy: exit 0 passed, 1 failed, 4 inconclusive."""
    from ctxeval.analysis.gate import gate_run
    from ctxeval.policy import load_policy
    from ctxeval.report.gate import verdict_line
    from ctxeval.results.files import write_whole
    from ctxeval.results.store import load_run
    from ctxeval.sides import open_side

    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    wanted = load_policy(policy)
    run = load_run(run_folder)
    against = open_side(baseline, scale) if baseline is not None else None
    found = gate_run(wanted, run.cells, run.manifest, scale, against)
    if junit is not None:
        write_whole(junit, render(found, run, "junit").encode())
    if output is not None:
        write_whole(output, render(found, run, format).encode())
        typer.echo(verdict_line(found), err=True)
    elif format == "table":
        show_gate(found, run)
    else:
        typer.echo(render(found, run, format), nl=False)
    # The runner reads both streams; JSON and XML on stdout must stay what they are.
    tell_github(found, run, stderr=format != "table" and output is None)
    raise typer.Exit(int(found.exit_code))


def tell_github(gate: Gate, run: Run, *, stderr: bool) -> None:
    """Annotate the job and add to its summary, where this is a GitHub job.

    Raises:
        RunError: the summary cannot be written.
    """
    from ctxeval.report.gate import step_summary, workflow_commands

    if os.environ.get("GITHUB_ACTIONS"):
        for line in workflow_commands(gate):
            typer.echo(line, err=stderr)
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        _append(Path(summary), step_summary(gate, run.manifest))


def render(gate: Gate, run: Run, format: str) -> str:
    """Return the gate as text in `format`: table, json or junit."""
    from ctxeval.report.gate import gate_json, gate_lines
    from ctxeval.report.junit import junit_xml

    if format == "json":
        return json.dumps(gate_json(gate, run.manifest), indent=2, ensure_ascii=False) + "\n"
    if format == "junit":
        return junit_xml(gate, run.manifest)
    return "\n".join(gate_lines(gate, run.manifest)) + "\n"


def show_gate(gate: Gate, run: Run, *, stderr: bool = False) -> None:
    """Print the table, coloured where there is a terminal."""
    from rich.console import Console
    from rich.text import Text

    from ctxeval.report.gate import gate_lines

    console = Console(highlight=False, stderr=stderr)
    styles = {"FAIL": "bold red", "OPEN": "yellow", "INCONCLUSIVE": "bold yellow", "PASS": "green"}
    for line in gate_lines(gate, run.manifest):
        text = Text(line)
        word = line.split(" ", 1)[0]
        text.stylize(styles.get(word, ""), 0, len(word))
        console.print(text, soft_wrap=True)


def _append(path: Path, text: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as handle:
            handle.write(text)
    except OSError as error:
        raise RunError(f"cannot write GITHUB_STEP_SUMMARY {path}: {error.strerror}", "is it a file?") from None
