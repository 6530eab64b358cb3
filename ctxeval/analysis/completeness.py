"""Is a run that says it is finished all there? What was lost on the way must never pass for what was not asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def lost_rows(manifest: Mapping[str, Any], rows: int) -> int:
    """Return how many rows a finished run with `rows` rows lacks of those planned; 0 where it does not say."""
    planned = manifest.get("planned_rows")
    return max(planned - rows, 0) if manifest.get("finished") and isinstance(planned, int) else 0


def lost_text(manifest: Mapping[str, Any], rows: int) -> str:
    """Say that a finished run lacks rows; empty where it does not."""
    lost = lost_rows(manifest, rows)
    return f"the run lost {lost} of its {lost + rows} rows" if lost else ""


def doubt_of(manifest: Mapping[str, Any], rows: int) -> str:
    """Say why a run cannot be known to be all there, for a gate; empty where nothing speaks against it."""
    if not manifest.get("finished"):
        return "the run is not finished"
    silent = "" if manifest.get("planned_rows") is not None else "the run does not say how many rows it should have"
    lost = lost_text(manifest, rows) or silent
    return f"{lost}: `ctxeval run --resume` checks, and measures what is missing" if lost else ""
