"""Onsets and blind spots under other thresholds, as tables, Markdown and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ctxeval.analysis.headline import Headline
from ctxeval.analysis.onset import length_label
from ctxeval.analysis.sweep import Swept
from ctxeval.report.tables import has_perplexity, has_recall
from ctxeval.report.text import markdown_cell, scale_label
from ctxeval.results.files import plain


@dataclass(frozen=True)
class SweepTable:
    """A table of cells; without lines, `nowhere` says what that means."""

    title: str
    header: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    nowhere: str = ""


def sweep_tables(rows: Sequence[Swept], summary: Headline) -> list[SweepTable]:
    """Return three tables: where perplexity breaks by ε, where recall breaks by floor, and the blind spot by both.

    A table about a probe that was not measured is left out, and so is a row in which no length is shown to be blind.
    """
    epsilons, floors = (sorted({getattr(row, name) for row in rows}) for name in ("epsilon", "floor"))
    scales = list(dict.fromkeys((row.scale, row.factor) for row in rows))
    at = {(row.scale, row.epsilon, row.floor): row for row in rows}
    tables = []
    if has_perplexity(summary):
        lines = [
            (scale_label(*scale), *(str(at[scale[0], epsilon, floors[0]].ratio_onset) for epsilon in epsilons))
            for scale in scales
        ]
        title = "Where perplexity breaks, by ε (broken: ratio credibly above 1 + ε)"
        tables.append(SweepTable(title, ("Scaling", *map(_percent, epsilons)), tuple(lines)))
    if has_recall(summary) and summary.signal:
        lines = [
            (scale_label(*scale), *(str(at[scale[0], epsilons[0], floor].recall_onset) for floor in floors))
            for scale in scales
        ]
        title = "Where recall breaks, by floor (broken: recall credibly below floor · R)"
        tables.append(SweepTable(title, ("Scaling", *(f"{floor:g} R" for floor in floors)), tuple(lines)))
    if len(tables) == 2:
        lines = [
            (scale_label(*scale), f"{floor:g} R", *(_lengths(at[scale[0], one, floor].blind_spot) for one in epsilons))
            for scale in scales
            for floor in floors
            if any(at[scale[0], one, floor].blind_spot for one in epsilons)
        ]
        title = "Blind spot, by floor and ε (recall broken, perplexity holds)"
        header = ("Scaling", "Floor", *map(_percent, epsilons))
        tables.append(SweepTable(title, header, tuple(lines), "Shown at no length under any of these thresholds."))
    return tables


def markdown_sweep(rows: Sequence[Swept], summary: Headline) -> str:
    """Return the tables of `sweep_tables` as Markdown."""
    return "\n".join(
        _table(one.title, one.header, one.lines) if one.lines else f"**{one.title}**\n\n{one.nowhere}\n"
        for one in sweep_tables(rows, summary)
    )


def json_sweep(rows: Sequence[Swept]) -> list[dict[str, Any]]:
    """Return a flat object a scaling and pair of thresholds; onsets as (after, by], in tokens."""
    return [plain(asdict(row)) for row in rows]


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


def _lengths(lengths: Iterable[int]) -> str:
    return ", ".join(map(length_label, lengths)) or "nowhere"


def _table(title: str, header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = ["| " + " | ".join(map(markdown_cell, line)) + " |" for line in (header, *lines)]
    return "\n".join([f"**{title}**", "", rows[0], "|:--" + "|--:" * (len(header) - 1) + "|", *rows[1:], ""])
