"""The headline in the two forms of a page: a line a scaling, and a table a probe. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
        f"* Effective length: recall stays at {summary.floor:g} R or more up to it. RULER's: the longest with recall "
        f"above {100 * RULER_THRESHOLD:g} %. NoLiMa's: the longest with {100 * NOLIMA_SHARE:g} % of the scaling's own "
        "recall in short contexts. All three are point estimates, without error bars."
    )
    return Overview(tuple(name for name, _ in shown), lines, footnote if recall else "")


def _length(length: int | None) -> str:
    return length_label(length) if length else MISSING


def probe_blocks(summaries: Mapping[str, Headline]) -> list[Block]:
    """Return a table for each probe that was measured.

    `summaries` are named by their run; of several, the rows of one scaling stand below each other, over all lengths
    that any of them has.
    """
    heads = list(summaries.values())
    lengths = sorted({length for head in heads for length in head.lengths})
    header = ("Scaling", *map(length_label, lengths), "Holds to")
    titles = (
        ("Recall ↑, %", True, has_recall),
        ("Perplexity ratio to the unpatched native window ↓", False, has_perplexity),
    )
    return [
        Block(title, header, tuple(_rows(summaries, lengths, retrieval)))
        for title, retrieval, there in titles
        if any(map(there, heads))
    ]


def _rows(
    summaries: Mapping[str, Headline], lengths: Sequence[int], retrieval: bool
) -> Iterator[tuple[str, tuple[Measured, ...], str]]:
    scales = dict.fromkeys(row.scale for head in summaries.values() for row in head.rows)
    for scale in scales:
        for name, head in summaries.items():
            for row in head.rows:
                if row.scale == scale:
                    label = f"{row_label(row)} · {name}" if len(summaries) > 1 else row_label(row)
                    limit = through(row.recall_through if retrieval else row.ratio_through, head.lengths[0])
                    yield label, _cells(row, lengths, retrieval), limit


def _cells(row: ScalingResult, lengths: Sequence[int], retrieval: bool) -> tuple[Measured, ...]:
    there = {one.length: (measured_recall if retrieval else measured_ratio)(one) for one in row.lengths}
    return tuple(there.get(length, Measured(MISSING, "", "missing", "")) for length in lengths)
