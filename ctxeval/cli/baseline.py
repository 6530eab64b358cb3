"""The `baseline` command: a finished run to a small file that can be committed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def baseline(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="A finished run's folder.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Such as results/baselines/NAME.json; default: stdout.")
    ] = None,
) -> None:
    """Write what comparisons and gates need of a run to a file that can be committed."""
    from ctxeval.results.baseline import baseline_json
    from ctxeval.results.files import write_whole
    from ctxeval.results.store import load_run

    text = baseline_json(load_run(run_folder))
    if output is None:
        typer.echo(text, nl=False)
        return
    write_whole(output, text.encode())
    typer.echo(
        f"wrote {output} ({len(text.encode()) / 1024:.0f} KB); commit it, and name it where a RUN is asked for",
        err=True,
    )
