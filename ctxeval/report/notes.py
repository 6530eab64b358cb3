"""What a reader must know before believing the numbers, and the sentences of the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from ctxeval.analysis.agreement import Agreement, plan_agreement
from ctxeval.analysis.headline import Headline, ScalingResult
from ctxeval.analysis.onset import length_label
from ctxeval.analysis.recall import failures
from ctxeval.report.tables import has_perplexity, has_recall
from ctxeval.report.text import one_line, percent, percent_range, scale_label

FEW_DOCUMENTS = 8


def reference_line(summary: Headline) -> str:
    """Say what R is."""
    if not has_recall(summary):
        return "R: retrieval was not measured"
    if not summary.reference.measured:
        return "R: not measured (no needle rows of 'none' inside the native window), so recall is not judged"
    r = summary.reference
    control = ""
    if summary.control.measured:
        control = f"; without a needle {percent(summary.control.value)} % of {summary.control.rows}"
    return (
        f"R, the unpatched model's recall inside its window: {percent(r.value)} % ({percent_range(r)}), "
        f"{r.rows} needles in {r.documents} documents{control}"
    )


def verdict_lines(summary: Headline) -> list[str]:
    """Return a sentence a scaling, and its blind spot where both probes were judged."""
    lines = []
    for row in summary.rows:
        lines.append(f"{scale_label(row.scale, row.factor)}: {row.verdict}")
        if has_recall(summary) and has_perplexity(summary) and summary.signal:
            lines.append(f"  blind spot: {blind_spot_text(row)}")
    return [one_line(line) if not line.startswith("  ") else "  " + one_line(line) for line in lines]


def blind_spot_text(row: ScalingResult) -> str:
    """Write the blind spot: the lengths at which recall is broken and perplexity holds."""
    if not row.blind_spot:
        return "empty"
    lengths = ", ".join(map(length_label, row.blind_spot))
    return f"{lengths} (recall broken, perplexity holds)"


def warnings(cells: pd.DataFrame, manifest: Mapping[str, Any], summary: Headline) -> list[str]:
    """Return what limits the run, a line each."""
    lines = []
    if summary.plan == "packed":
        most = cells.loc[(cells["probe"] == "needle") & (cells["plan"] == "packed"), "n_needles"].max()
        lines.append(f"packed plan: up to {most:.0f} needles share a context")
    agreement = plan_agreement(cells)
    if agreement:
        lines.append(_agreement(agreement))
    elif summary.plan == "packed":
        lines.append("packed plan without an exact subset: its agreement is unknown")
    failed = failures(cells)
    if failed:
        kinds = ", ".join(f"{count} {status}" for status, count in failed.items())
        lines.append(f"{sum(failed.values())} of {len(cells)} cells have no result ({kinds}); they count as missing")
    if not manifest.get("finished"):
        lines.append("the run is not finished: more cells may follow")
    units = summary.reference.documents
    if 0 < units < FEW_DOCUMENTS:
        lines.append(f"{units} documents: intervals are wide; {FEW_DOCUMENTS} or more are advised")
    return [one_line(line) for line in lines]


def _agreement(agreement: Agreement) -> str:
    same = agreement.same
    text = (
        f"packed and exact agree on {percent(same.value)} % ({percent_range(same)}) of {same.rows} needles; "
        f"recall {percent(agreement.packed)} % packed, {percent(agreement.exact)} % exact (p = {agreement.p_value:.2g})"
    )
    return f"{text}: BEYOND CHANCE, do not trust the packed plan here" if agreement.differs else text
