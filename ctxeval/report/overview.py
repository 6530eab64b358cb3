"""The headline in the two forms of a page: a line a scaling, and a table a probe. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ctxeval.analysis.effective import NOLIMA_SHARE, RULER_THRESHOLD
from ctxeval.analysis.headline import Headline, ScalingResult
from ctxeval.analysis.onset import length_label
from ctxeval.report.notes import blind_spot_text
from ctxeval.report.tables import Measured, has_perplexity, has_recall, measured_ratio, measured_recall, row_label
from ctxeval.report.text import MISSING, through


@dataclass(frozen=True)
class Overview:
    """A line a scaling: how far each probe holds, blind spot, effective lengths, and the verdict last.

    `footnote` says what the effective lengths are; it is empty where there are none.
    """

    header: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    footnote: str


@dataclass(frozen=True)
class Block:
    """One probe over all lengths: (scaling, a cell a length, how far it holds) a row."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Measured, ...], str], ...]


def overview(summary: Headline) -> Overview:
    """Return the headline table. Columns of a probe that was not measured are left out."""
    recall, ratio = has_recall(summary), has_perplexity(summary)
    judged = recall and summary.signal and summary.reference.measured
    columns = [
        ("Scaling", True, row_label),
        ("Recall holds to", recall, lambda row: through(row.recall_through, summary.lengths[0])),
        ("Perplexity holds to", ratio, lambda row: through(row.ratio_through, summary.lengths[0])),
        ("Blind spot", recall and ratio and summary.signal, blind_spot_text),
        ("Effective length*", judged, lambda row: through(row.effective_length, summary.lengths[0])),
        ("RULER's*", recall, lambda row: _length(row.ruler_length)),
        ("NoLiMa's*", recall, lambda row: _length(row.nolima_length)),
        ("What was found", True, lambda row: row.verdict),
    ]
    shown = [(name, write) for name, there, write in columns if there]
    lines = tuple(tuple(write(row) for _, write in shown) for row in summary.rows)
    footnote = (
        f"* Effective length: recall stays at {summary.floor:g} R or more up to it. RULER's: the longest with recall above "
        f"{100 * RULER_THRESHOLD:g} %. NoLiMa's: the longest with {100 * NOLIMA_SHARE:g} % of the scaling's own recall in "
        "short contexts. All three are point estimates, without error bars."
    )
    return Overview(tuple(name for name, _ in shown), lines, footnote if recall else "")


def _length(length: int | None) -> str:
    return length_label(length) if length else MISSING


def probe_blocks(summary: Headline, run: str = "") -> list[Block]:
    """Return a table for each probe that was measured; `run` is put into their titles."""
    where = f", {run}" if run else ""
    header = ("Scaling", *map(length_label, summary.lengths), "Holds to")
    blocks = []
    if has_recall(summary):
        blocks.append(Block(f"Recall ↑, %{where}", header, tuple(_row(row, summary, True) for row in summary.rows)))
    if has_perplexity(summary):
        title = f"Perplexity ratio to the unpatched native window ↓{where}"
        blocks.append(Block(title, header, tuple(_row(row, summary, False) for row in summary.rows)))
    return blocks


def _row(row: ScalingResult, summary: Headline, retrieval: bool) -> tuple[str, tuple[Measured, ...], str]:
    cells = tuple((measured_recall if retrieval else measured_ratio)(one) for one in row.lengths)
    limit = row.recall_through if retrieval else row.ratio_through
    return row_label(row), cells, through(limit, summary.lengths[0])
