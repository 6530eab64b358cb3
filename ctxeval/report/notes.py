"""What a reader must know before believing the numbers, and the sentences of the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from ctxeval.analysis.agreement import Agreement, plan_agreement
from ctxeval.analysis.completeness import lost_text
from ctxeval.analysis.effective import NOLIMA_SHARE, RULER_THRESHOLD
from ctxeval.analysis.headline import Headline, LengthResult, ScalingResult
from ctxeval.analysis.onset import length_label
from ctxeval.analysis.perplexity import finished, paired, perplexity_rows
from ctxeval.analysis.recall import asked, failures
from ctxeval.report.tables import has_perplexity, has_recall
from ctxeval.report.text import (
    MISSING,
    number,
    number_range,
    one_line,
    percent,
    percent_range,
    scale_label,
    through,
)
from ctxeval.wording import are, counted

FEW_DOCUMENTS = 8


def reference_line(summary: Headline) -> str:
    """Say what R is."""
    if not has_recall(summary):
        return "R: retrieval was not measured"
    if not summary.reference.measured:
        return "R: not measured (no answered needle of 'none' inside the native window), so recall is not judged"
    r = summary.reference
    control = ""
    if summary.control.measured:
        control = f"; without a needle {percent(summary.control.value)} % of {summary.control.rows}"
    lacking = f" ({summary.reference_missing} more without an answer)" if summary.reference_missing else ""
    return (
        f"R, the unpatched model's recall inside its window: {percent(r.value)} % ({percent_range(r)}), "
        f"{counted(r.rows, 'needle')} in {counted(r.documents, 'document')}{lacking}{control}"
    )


def verdict_lines(summary: Headline) -> list[str]:
    """Return a sentence a scaling, its blind spot where both probes were judged, and the effective lengths."""
    lines = []
    for row in summary.rows:
        lines.append(f"{scale_label(row.scale, row.factor)}: {row.verdict}")
        if row.order == "not resolved":
            lines.append(f"  {_first_undecided(row, summary)}")
        if has_recall(summary) and has_perplexity(summary) and summary.signal:
            lines.append(f"  blind spot: {blind_spot_text(row)}")
    if has_recall(summary) and summary.reference.measured and summary.signal:
        lines.append(_effective_lengths(summary))
    return [one_line(line) if not line.startswith("  ") else "  " + one_line(line) for line in lines if line.strip()]


def _first_undecided(row: ScalingResult, summary: Headline) -> str:
    """Say how far the first undecided length of each probe is from its bar; empty where none is undecided."""
    parts = []
    recall = next((one for one in row.lengths if one.recall_state == "undecided"), None)
    if recall and summary.reference.measured:
        share, r = recall.recall, summary.reference
        bar = replace(r, value=summary.floor * r.value, low=summary.floor * r.low, high=summary.floor * r.high)
        interval, wanted = (f"{percent(one.value)} % ({percent_range(one)})" for one in (share, bar))
        parts.append(f"recall at {length_label(recall.length)} is {interval}, its bar {wanted}")
    loss = next((one for one in row.lengths if one.ratio_state == "undecided"), None)
    if loss:
        ratio = loss.perplexity.ratio
        interval = f"{number(ratio.value)} ({number_range(ratio)})"
        parts.append(f"ratio at {length_label(loss.length)} is {interval}, its bar {number(1 + summary.epsilon)}")
    return "undecided: " + "; ".join(parts) if parts else ""


def _effective_lengths(summary: Headline) -> str:
    shortest = summary.lengths[0]
    lengths = [
        f"{scale_label(row.scale, row.factor)}: {through(row.effective_length, shortest)}"
        f" · {length_label(row.ruler_length) if row.ruler_length else MISSING}"
        f" · {length_label(row.nolima_length) if row.nolima_length else MISSING}"
        for row in summary.rows
    ]
    what = (
        f"recall stays at {summary.floor:g} R or more up to it · RULER's, the longest with recall above "
        f"{100 * RULER_THRESHOLD:g} % · NoLiMa's, the longest with {100 * NOLIMA_SHARE:g} % of the scaling's own "
        "recall in short contexts; point estimates, no error bars"
    )
    return f"effective length ({what}): {', '.join(lengths)}"


def blind_spot_text(row: ScalingResult) -> str:
    """Write the blind spot, and the lengths that may yet belong to it: only what is decided is called empty."""
    found = ", ".join(map(length_label, row.blind_spot))
    maybe = [one for one in row.lengths if _may_be_blind(one)]
    parts = [f"{found} (recall broken, perplexity holds)"] if found else []
    for word, unmeasured in (("undecided", False), ("not measured", True)):
        lengths = [length_label(one.length) for one in maybe if _unmeasured(one) == unmeasured]
        parts += [f"{word} at {', '.join(lengths)}"] if lengths else []
    return "; ".join(parts) or "empty"


def _unmeasured(result: LengthResult) -> bool:
    return "missing" in (result.recall_state, result.ratio_state)


def _may_be_blind(result: LengthResult) -> bool:
    states = result.recall_state, result.ratio_state
    return states[0] != "holds" and states[1] != "broken" and states != ("broken", "holds")


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
    lines += _gaps(cells)
    lines += _empty_depths(cells, manifest)
    lines += _inert(manifest)
    if not manifest.get("finished"):
        lines.append("the run is not finished: more cells may follow")
    elif lost := lost_text(manifest, len(cells)):
        lines.append(f"{lost}: the tables show only what is left of it")
    units = summary.reference.documents
    if 0 < units < FEW_DOCUMENTS:
        lines.append(f"{counted(units, 'document')}: intervals are wide; {FEW_DOCUMENTS} or more are advised")
    return [one_line(line) for line in lines]


def _inert(manifest: Mapping[str, Any]) -> list[str]:
    """Name the scalings whose temperature this model cancels."""
    inert = [name for name, proof in (manifest.get("proofs") or {}).items() if proof.get("temperature") == "inert"]
    if not inert:
        return []
    why = "this model normalises q and k after RoPE"
    return [f"the temperature of {', '.join(inert)} has no effect: {why}, so that yarn is ntk-parts here"]


def _gaps(cells: pd.DataFrame) -> list[str]:
    lines, failed = [], failures(cells)
    nan = failed.pop("nan", 0)
    if nan:
        lines.append(f"NaN in {nan} of {counted(len(cells), 'cell')}: a needle counts as a miss, a loss as infinite")
    if failed:
        lost, kinds = sum(failed.values()), ", ".join(f"{count} {status}" for status, count in failed.items())
        lines.append(f"no result for {lost} of {counted(len(cells), 'cell')} ({kinds}): no length with one holds")
    losses = perplexity_rows(cells)
    alone = len(finished(losses)) - len(paired(losses))
    if alone:
        lines.append(f"no baseline for {alone} of {len(losses)} losses: no length with one holds")
    return lines


def _empty_depths(cells: pd.DataFrame, manifest: Mapping[str, Any]) -> list[str]:
    """Name the lengths at which some of the run's depths have no needle: their recall is a mean over other depths."""
    total = len((manifest.get("resolved") or {}).get("depths") or [])
    filled = asked(cells).groupby("context_length")["depth_percent"].nunique()
    empty = {length: total - count for length, count in zip(filled.index.tolist(), filled.tolist(), strict=True)}
    empty = {length: count for length, count in empty.items() if count > 0}
    if len(empty) == 1:
        ((length, count),) = empty.items()
        return [f"{count} of {total} depths have no needle at {length_label(length)}: its recall is not comparable"]
    counts = ", ".join(f"{count} at {length_label(length)}" for length, count in sorted(empty.items()))
    return [f"some of {total} depths have no needle ({counts}): recall there is not comparable"] if empty else []


def _agreement(agreement: Agreement) -> str:
    same = agreement.same
    few = f"{are(same.documents, 'document')} too few to tell"
    text = (
        f"packed and exact agree on {percent(same.value)} % ({percent_range(same)}) of {same.rows} needles; "
        f"recall {percent(agreement.packed)} % packed, {percent(agreement.exact)} % exact (p = {agreement.p_value:.2g})"
    )
    if agreement.differs:
        return f"{text}: BEYOND CHANCE, do not trust the packed plan here"
    if agreement.contradicts:
        return f"{text}: they CONTRADICT each other, do not trust the packed plan here ({few})"
    return text if agreement.conclusive else f"{text}: {few}"
