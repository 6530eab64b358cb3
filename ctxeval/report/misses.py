"""The needles that were missed, with the text around them where the run has kept it. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ctxeval.analysis.onset import length_label
from ctxeval.analysis.recall import asked
from ctxeval.report.text import MISSING, one_line
from ctxeval.results.samples import Excerpt, Sample

#: Rows a scaling that are listed where no text was kept.
ROWS = 12


@dataclass(frozen=True)
class Shown:
    """A needle as a report shows it; `excerpt` is `None` where the run has kept no text."""

    correct: bool
    length: str
    where: str
    expected: str
    got: str
    excerpt: Excerpt | None


def shown_samples(cells: pd.DataFrame, samples: Sequence[Sample], scale: str) -> list[Shown]:
    """Return the kept samples of one scaling: misses first, shorter lengths first. Those without a row are left out."""
    rows = {str(row["cell_id"]): row for row in cells[cells["probe"] == "needle"].to_dict("records")}
    mine = [one for one in samples if one.scale == scale and one.cell_id in rows]
    mine.sort(key=lambda one: (one.correct, one.context_length))
    return [_shown(rows[one.cell_id], one.excerpt) for one in mine]


def missed_rows(cells: pd.DataFrame, scale: str) -> list[Shown]:
    """Return the first misses of one scaling from its rows alone, shorter lengths first."""
    rows = asked(cells)
    rows = rows[(rows["scale"] == scale) & ~rows["correct"].fillna(value=False) & rows["status"].isin(["ok", "nan"])]
    rows = rows.sort_values(["context_length", "document"], kind="stable").groupby("context_length").head(2)
    return [_shown(row, None) for row in rows.head(ROWS).to_dict("records")]


def _shown(row: Mapping[Any, Any], excerpt: Excerpt | None) -> Shown:
    return Shown(
        correct=row["status"] == "ok" and bool(row["correct"]),
        length=length_label(int(row["context_length"])),
        where=_where(row),
        expected=one_line(str(row["expected"])),
        got="NaN" if row["status"] == "nan" else one_line(str(row["got"])) or MISSING,
        excerpt=excerpt and _clean(excerpt),
    )


def _where(row: Mapping[Any, Any]) -> str:
    parts = [f"document {row['document']}"]
    if math.isfinite(row["depth_percent"]):
        parts.append(f"depth {row['depth_percent']:.4g} %")
    if math.isfinite(row["needle_distance"]):
        parts.append(f"{row['needle_distance']:,.0f} tokens before the question")
    if row["n_needles"] > 1:
        parts.append(f"one of {row['n_needles']:.0f} needles in its context")
    return " · ".join(parts)


def _clean(excerpt: Excerpt) -> Excerpt:
    texts = (excerpt.before, excerpt.needle, excerpt.after, excerpt.question, excerpt.lead)
    return Excerpt(*(one_line(text) for text in texts))
