"""The pictures of a run: which there are, and their files."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import pandas as pd

from ctxeval.analysis.certainty import logprob_table
from ctxeval.analysis.headline import Headline
from ctxeval.report.canvas import Picture, png, svg, together
from ctxeval.report.curves_picture import curves
from ctxeval.report.distance import distance_rows
from ctxeval.report.heatmap import grids
from ctxeval.report.heatmap_picture import heatmaps
from ctxeval.report.line_pictures import certainty, distances
from ctxeval.report.palette import DEFAULT
from ctxeval.report.tables import has_perplexity
from ctxeval.report.text import measured_documents, model_line, protocol_line, scale_label

NAMES = ("curves", "heatmap", "distance", "certainty")


def pictures(cells: pd.DataFrame, summary: Headline, palette: str = DEFAULT) -> list[Picture]:
    """Return curves, heatmap, distance and certainty, those that have data, in the order in which a page shows them."""
    scales = [row.scale for row in summary.rows]
    labels = {row.scale: scale_label(row.scale, row.factor) for row in summary.rows}
    found = []
    panels = grids(cells, scales)
    if has_perplexity(summary) or panels:
        found.append(curves(summary))
    if panels:
        found.append(heatmaps(panels, summary.native_window, palette))
    rows = distance_rows(cells, scales, summary.native_window)
    if rows:
        found.append(distances(rows, labels, summary.native_window))
    table = logprob_table(cells)
    if not table.empty:
        found.append(certainty(table, labels))
    return [one for one in found if one.panels]


def picture_files(
    cells: pd.DataFrame,
    manifest: Mapping[str, Any],
    summary: Headline,
    palette: str = DEFAULT,
    *,
    names: Container[str] = NAMES,
    kinds: Sequence[str] = ("png", "svg"),
) -> dict[str, bytes]:
    """Return the pictures of the given names, as files of the given kinds, by file name."""
    lines = (model_line(manifest), protocol_line(manifest, summary.plan, measured_documents(cells)))
    save = {"png": png, "svg": svg}
    return {
        f"{picture.name}.{kind}": save[kind](together(picture, lines))
        for picture in pictures(cells, summary, palette)
        if picture.name in names
        for kind in kinds
    }
