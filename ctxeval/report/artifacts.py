"""The files that a run leaves beside its cells."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ctxeval.analysis.headline import Headline
from ctxeval.analysis.sweep import sweep
from ctxeval.report.distance import csv_distance, distance_rows, markdown_distance
from ctxeval.report.notes import reference_line, verdict_lines, warnings
from ctxeval.report.sweep import json_sweep, markdown_sweep
from ctxeval.report.tables import csv_table, json_table, markdown_tables
from ctxeval.report.text import markdown_cell, measured_documents, model_line, protocol_line
from ctxeval.results.files import plain, write_whole
from ctxeval.results.store import Run

#: The pictures that lie beside a run's rows; all of them are had by `report --pictures`.
PICTURES = ("curves", "heatmap")


def write_artifacts(run: Run, summary: Headline | None = None) -> list[Path]:
    """Write headline.md, .csv, .json, distance.csv, cells.csv and the pictures into the run folder; return their paths.

    distance.csv and heatmap.png need needle rows: a file without data is not written.

    Raises:
        RunError: the disk refuses.
    """
    head = summary or run.headline()
    files = {
        "headline.md": markdown(run, head).encode(),
        "headline.csv": csv_table(head).encode(),
        "headline.json": (json.dumps(json_report(run, head), indent=2, ensure_ascii=False) + "\n").encode(),
        "cells.csv": run.cells.to_csv(index=False, lineterminator="\n").encode(),
    }
    distances = distance_rows(run.cells, [row.scale for row in head.rows], head.native_window)
    if distances:
        files["distance.csv"] = csv_distance(distances).encode()
    files.update(_pictures(run, head))
    paths = []
    for name, data in files.items():
        path = run.path / name
        write_whole(path, data)
        paths.append(path)
    return paths


def markdown(run: Run, summary: Headline) -> str:
    """Return the run as Markdown: what was measured, tables, R, verdicts, other thresholds and notes."""
    lines = [
        f"# {markdown_cell(model_line(run.manifest))}",
        "",
        markdown_cell(protocol_line(run.manifest, summary.plan, measured_documents(run.cells))),
    ]
    lines += ["", markdown_tables(summary), markdown_cell(reference_line(summary)), ""]
    lines += [_item(line) for line in verdict_lines(summary)]
    distances = distance_rows(run.cells, [row.scale for row in summary.rows], summary.native_window)
    if distances:
        lines += ["", markdown_distance(distances)]
    lines += ["", markdown_sweep(sweep(run.cells, run.manifest, summary=summary), summary)]
    notes = warnings(run.cells, run.manifest, summary)
    if notes:
        lines += ["", *(f"> note: {markdown_cell(note)}  " for note in notes)]
    return "\n".join(lines) + "\n"


def json_report(run: Run, summary: Headline) -> dict[str, Any]:
    """Return the headline with what identifies the run, as plain JSON values."""
    about: Mapping[str, Any] = {key: run.manifest.get(key) for key in ("model", "dtype", "device", "versions")}
    notes = warnings(run.cells, run.manifest, summary)
    report: dict[str, Any] = plain({**about, "resolved": run.manifest.get("resolved"), "notes": notes})
    swept = json_sweep(sweep(run.cells, run.manifest, summary=summary))
    return {**report, "headline": json_table(summary), "sweep": swept}


def _item(line: str) -> str:
    indent = len(line) - len(line.lstrip())
    return f"{' ' * indent}- {markdown_cell(line)}"


def _pictures(run: Run, summary: Headline) -> dict[str, bytes]:
    # Here, because matplotlib takes half a second that no other report needs.
    from ctxeval.report.pictures import picture_files

    return picture_files(run.cells, run.manifest, summary, names=PICTURES, kinds=("png",))
