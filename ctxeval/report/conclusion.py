"""The verdict on a whole run in one sentence, never greener than its weakest part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from ctxeval.analysis.agreement import plan_agreement
from ctxeval.analysis.completeness import lost_text
from ctxeval.analysis.headline import Headline, ScalingResult
from ctxeval.analysis.onset import length_label
from ctxeval.report.tables import has_perplexity, has_recall
from ctxeval.report.text import scale_label

Tone = Literal["good", "bad", "open"]


@dataclass(frozen=True)
class Conclusion:
    """What a manager reads. `good`: some scaling holds at every length; `bad`: all are broken; `open`: neither."""

    tone: Tone
    sentence: str


def conclusion(cells: pd.DataFrame, manifest: Mapping[str, Any], summary: Headline) -> Conclusion:
    """Judge the scalings of a run together (`none` only where there is nothing else).

    A scaling works where recall and the perplexity ratio credibly hold at every length of the grid, in a run that is
    whole and whose packed plan agrees with the exact one. What was measured with one probe only is never said to work.
    """
    rows = [row for row in summary.rows if row.scale != "none"] or list(summary.rows)
    if not (has_recall(summary) or has_perplexity(summary)):
        return Conclusion("open", "Nothing was measured.")
    if not summary.signal:
        why = "the unpatched model hardly finds a needle inside its own window, so the task tells nothing"
        return Conclusion("open", f"No verdict: {why}.")
    target = length_label(summary.lengths[-1])
    good, bad, other = (_named(rows, kind, summary) for kind in ("holds", "broken", "open"))
    doubt = _doubt(cells, manifest)
    both = has_recall(summary) and has_perplexity(summary)
    blind = _blind(rows)
    failed = [f"{_list(bad)} {_is(bad)} broken"] if bad else []
    unclear = [f"{_list(other)} {_is(other)} undecided"] if other else []
    if good and both and not doubt:
        works = f"{_list(good)} work{'s' * (len(good) == 1)} up to {target}"
        return Conclusion("good", f"{'; '.join([works, *failed, *unclear])}{blind}.")
    held = []
    if good:
        probe = "recall and perplexity hold" if both else "recall holds" if has_recall(summary) else "perplexity holds"
        missing = "" if both else f", {'perplexity' if has_recall(summary) else 'retrieval'} was not measured"
        held = [f"{_list(good)}: {probe} up to {target}{missing}"]
    tone: Tone = "bad" if bad and not good and not other else "open"
    opening = "Does not work" if tone == "bad" else "Not shown to work"
    parts = [*held, *failed, *unclear, *([doubt] if doubt else [])]
    return Conclusion(tone, f"{opening} up to {target}: {'; '.join(parts)}{blind}.")


def _named(rows: Sequence[ScalingResult], kind: str, summary: Headline) -> list[str]:
    return [_name(row, kind) for row in rows if _kind(row, summary) == kind]


def _name(row: ScalingResult, kind: str) -> str:
    label = scale_label(row.scale, row.factor)
    by = [onset.by for onset in (row.recall_onset, row.ratio_onset) if onset.by is not None]
    return f"{label} (by {length_label(min(by))})" if kind == "broken" and by else label


def _kind(row: ScalingResult, summary: Headline) -> str:
    """Return `broken` where any length of a probe is, `holds` where all lengths of the probes measured do."""
    probes = [name for name, there in (("recall", has_recall), ("ratio", has_perplexity)) if there(summary)]
    states = {getattr(one, f"{name}_state") for one in row.lengths for name in probes}
    if "broken" in states:
        return "broken"
    return "holds" if states == {"holds"} else "open"


def _doubt(cells: pd.DataFrame, manifest: Mapping[str, Any]) -> str:
    if not manifest.get("finished"):
        return "the run is not finished"
    if lost := lost_text(manifest, len(cells)):
        return lost
    agreement = plan_agreement(cells)
    if agreement and (agreement.differs or agreement.contradicts):
        return "the packed plan cannot be trusted here"
    return ""


def _blind(rows: Sequence[ScalingResult]) -> str:
    spots = [
        f"{scale_label(row.scale, row.factor)} at {', '.join(map(length_label, row.blind_spot))}"
        for row in rows
        if row.blind_spot
    ]
    return f"; perplexity alone would have passed {' and '.join(spots)}" if spots else ""


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _is(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"
