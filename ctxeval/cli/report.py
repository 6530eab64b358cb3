"""The `report` command: run folders to tables, a page, a model card or pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ctxeval.errors import RunError, UsageError, unknown

if TYPE_CHECKING:
    from ctxeval.results.store import Run

FORMATS = ("table", "md", "csv", "json", "html", "model-card")


def report(
    run_folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders; several are compared.")],
    format: Annotated[str, typer.Option("--format", help="table, md, csv, json, html or model-card.")] = "table",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write to this file instead of stdout.")] = None,
    pictures: Annotated[
        Path | None, typer.Option("--pictures", help="Write every picture into this folder, as PNG and as SVG.")
    ] = None,
    palette: Annotated[
        str,
        typer.Option("--palette", help="Colours of recall: classic, or for colour-blind readers cividis or viridis."),
    ] = "classic",
    no_samples: Annotated[
        bool,
        typer.Option("--no-samples", help="With html: leave out corpus text, needles and what the model answered."),
    ] = False,
) -> None:
    """Show a finished (or unfinished) run, or several side by side."""
    from ctxeval.cli.show import show_runs
    from ctxeval.report.palette import PALETTES
    from ctxeval.results.store import load_run

    for kind, value, known in (("format", format, FORMATS), ("palette", palette, tuple(PALETTES))):
        if value not in known:
            raise unknown(kind, value, known)
    runs = [load_run(folder) for folder in run_folders]
    for run in runs:
        if run.cells.empty:
            raise UsageError(f"{run.path} has no rows", "measure it first")
    if len(runs) > 1 and format == "model-card":
        raise UsageError(f"{len(runs)} runs for one model card", "give the run that ships")
    show_runs(runs, format, output, palette=palette, samples=not no_samples)
    if pictures is not None:
        _write_pictures(pictures, runs, palette)


def _write_pictures(folder: Path, runs: list[Run], palette: str) -> None:
    from ctxeval.report.pictures import picture_files
    from ctxeval.results.files import write_whole

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot write {folder}: {error.strerror}", "give another folder with --pictures") from None
    for index, run in enumerate(runs, start=1):
        before = f"{index}-" if len(runs) > 1 else ""
        for name, data in picture_files(run.cells, run.manifest, run.headline(), palette).items():
            write_whole(folder / f"{before}{name}", data)
