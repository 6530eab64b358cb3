"""What the words RUN and RUN@SCALE on the command line name: one scaling of a run folder or of a baseline file."""

from __future__ import annotations

from pathlib import Path

from ctxeval.analysis.compare import Side, side
from ctxeval.results.baseline import load_baseline
from ctxeval.results.store import Run, load_run


def open_run(path: Path) -> Run:
    """Read a run folder, or the file of a committed baseline.

    Raises:
        UsageError: neither, unreadable, or damaged.
    """
    return load_baseline(path) if path.is_file() else load_run(path)


def open_side(name: str, preferred: str | None = None) -> Side:
    """Read RUN or RUN@SCALE; a path that exists as it is wins.

    Without a scale it is `preferred`, where the run has it, or the only one beside none.

    Raises:
        UsageError: no such run, or no such scaling.
    """
    path, scale = name, ""
    if "@" in name and not Path(name).exists():
        path, _, scale = name.rpartition("@")
    run = open_run(Path(path))
    if not scale and preferred is not None:
        labels = [one.get("label") for one in (run.manifest.get("resolved") or {}).get("scalings") or []]
        scale = preferred if preferred in labels else ""
    return side(run, scale or None)
