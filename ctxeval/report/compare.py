"""A comparison in the terminal, as Markdown, CSV and JSON: what differs, the table worst first, the verdict."""

from __future__ import annotations

import csv
import io
import math
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ctxeval.analysis.change import ALPHA, METRICS, Change
from ctxeval.analysis.compare import Comparison, Side
from ctxeval.analysis.onset import length_label
from ctxeval.analysis.stats import Estimate
from ctxeval.report.text import (
    INCOMPLETE,
    MISSING,
    markdown_cell,
    model_line,
    number,
    number_range,
    one_line,
    percent,
    scale_label,
)
from ctxeval.results.files import plain

WIDTH = 80
UNITS = {"recall": "recall, %", "answer log-prob": "log-prob, nats"}
CSV_COLUMNS = (
    *("baseline", "candidate", "metric", "context_length", "state", "baseline_value", "candidate_value", "change"),
    *("low", "high", "p_value", "p_adjusted", "pairs", "documents", "differ", "missing", "baseline_nan"),
    "candidate_nan",
)
_HEADER = f"{'':22}{'Length':>6}{'Baseline':>9}{'Candidate':>10} {'Change (95 %)':<25}{'p':>7}"


def side_line(side: Side) -> str:
    """Write what a side is: its name, model and scaling."""
    label = scale_label(side.scale, float(side.scaling.get("factor") or math.nan))
    return one_line(f"{side.name}: {model_line(side.run.manifest)} · {label}")


def about_lines(comparison: Comparison) -> list[tuple[str, str]]:
    """Return (word, text): the two sides, and what differs besides the scaling."""
    alike = comparison.likeness
    lines = [("baseline", side_line(comparison.baseline)), ("candidate", side_line(comparison.candidate))]
    lines += [("unlike", f"{one}") for one in alike.refused]
    if alike.refused:
        lines.append(("unlike", "compared on what both have, as --allow-mismatch asks: not like with like"))
    lines += [("flagged", f"{one}") for one in alike.flagged]
    lines += [("model", f"{one}") for one in alike.free]
    for word, side in (("baseline", comparison.baseline), ("candidate", comparison.candidate)):
        if not side.run.manifest.get("finished"):
            lines.append(("flagged", f"the {word} is not finished"))
    return [(word, one_line(text)) for word, text in lines]


def compare_lines(comparison: Comparison) -> list[str]:
    """Return the comparison as text, at most 80 columns wide; the verdict stands last."""
    lines = []
    for word, text in about_lines(comparison):
        lines += textwrap.wrap(text, WIDTH, initial_indent=f"{word:<11}", subsequent_indent=" " * 11)
    lines += ["", _HEADER.rstrip(), *map(_row, comparison.changes)]
    return [*lines, "", *textwrap.wrap(legend(comparison), WIDTH), "", *textwrap.wrap(verdict_line(comparison), WIDTH)]


def legend(comparison: Comparison) -> str:
    """Explain states, p and marks."""
    return (
        f"p: adjusted for all {comparison.tests} tests of the table, by sign-flips of documents. better, worse: "
        f"p ≤ {ALPHA:g} and the interval leaves out no change. {INCOMPLETE} rows missing or NaN"
    )


def _row(change: Change) -> str:
    values = level(change, change.baseline), level(change, change.candidate) + mark(change)
    state = "" if change.state == "open" else change.state
    return (
        f"{state:<8}{UNITS.get(change.metric, change.metric):<14}{length_label(change.length):>6}"
        f"{values[0]:>9}{values[1]:>10} {change_text(change):<25}{p_text(change.p_adjusted):>7}"
    ).rstrip()


def mark(change: Change) -> str:
    """Return the mark of a change that rests on fewer rows than were asked for."""
    return INCOMPLETE if change.missing or change.candidate_nan or change.baseline_nan else ""


def level(change: Change, value: float) -> str:
    """Write one side's value in the metric's unit."""
    if not math.isfinite(value):
        return "NaN" if change.candidate_nan and change.state == "worse" and change.metric != "recall" else MISSING
    if change.metric == "recall":
        return percent(value)
    return f"{value:.3f}" if change.metric == "bits per byte" else number(value) if value > 0 else f"{value:.2f}"


def change_text(change: Change) -> str:
    """Write the change with its interval, rounded outwards: `-23 (-35 to -10)`, `×0.97 (0.95–1.00)`."""
    if not math.isfinite(change.value):
        return MISSING
    if change.metric == "perplexity":
        return f"×{number(change.value)} ({number_range(Estimate(change.value, change.low, change.high))})"
    scale, digits = (100, 0) if change.metric == "recall" else (1, 3 if change.metric == "bits per byte" else 2)
    if digits == 2 and max(abs(change.low), abs(change.high)) >= 10:
        digits = 1
    low, high = _outward(scale * change.low, digits, -1), _outward(scale * change.high, digits, 1)
    return f"{scale * change.value:+.{digits}f} ({low} to {high})"


def _outward(value: float, digits: int, direction: int) -> str:
    if not math.isfinite(value):
        return "-∞" if value < 0 else "∞"
    shifted = value * 10**digits
    rounded = math.ceil(shifted - 1e-9) if direction > 0 else math.floor(shifted + 1e-9)
    return f"{rounded / 10**digits:+.{digits}f}"


def p_text(value: float) -> str:
    """Write a p-value, never as 0."""
    if not math.isfinite(value):
        return MISSING
    return "<0.001" if value < 0.001 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def verdict_line(comparison: Comparison) -> str:
    """Say in one sentence which is better, where, and how sure that is."""
    pair = [f"{one_line(side.name)}" for side in (comparison.candidate, comparison.baseline)]
    lacking = len(comparison.having("missing"))
    tail = f"; {lacking} comparisons lack results" if lacking else ""
    verdict = comparison.verdict
    if verdict == "nothing to compare":
        return f"nothing to compare: {pair[0]} and {pair[1]} have no measurement in common"
    if verdict == "identical":
        pairs = sum(one.pairs for one in comparison.changes)
        return f"identical: {pair[0]} and {pair[1]} agree in all {pairs:,} pairs, as if nothing was changed{tail}"
    if verdict == "open":
        if comparison.decidable:
            return f"open: no significant difference between {pair[0]} and {pair[1]}{_limit(comparison)}{tail}"
        return f"open: {comparison.documents} of at least 6 documents needed to tell {pair[0]} from {pair[1]}{tail}"
    found = {state: _where(comparison.having(state)) for state in ("worse", "better")}
    told = "; ".join(f"{state} in {where}" if verdict == "mixed" else where for state, where in found.items() if where)
    if verdict == "mixed":
        return f"mixed: {pair[0]} against {pair[1]} is {told}{tail}"
    other = "better" if verdict == "worse" else "worse"
    return f"{verdict}: {pair[0]} is significantly {verdict} than {pair[1]} in {told}; nowhere {other}{tail}"


def _where(changes: Sequence[Change]) -> str:
    """Name the lengths, a metric at a time, with the largest change of each; log-probs only where nothing else is."""
    parts: list[str] = []
    for metric in METRICS:
        mine = [one for one in changes if one.metric == metric]
        if not mine or (metric == "answer log-prob" and parts):
            continue
        most = max(mine, key=lambda one: abs(one.harm))
        lengths = ", ".join(length_label(length) for length in sorted(one.length for one in mine))
        unit = {"recall": " points", "answer log-prob": " nats", "bits per byte": " bits"}.get(metric, "")
        value, _, interval = change_text(most).partition(" (")
        at = f" at {length_label(most.length)}" if len(mine) > 1 else ""
        shown = f"{value}{unit}{at}, 95 % interval {interval[:-1]}, p {p_text(most.p_adjusted)}" if interval else "NaN"
        parts.append(f"{metric} at {lengths} ({shown})")
    return " and ".join(parts)


def _limit(comparison: Comparison) -> str:
    """Say how large a loss of recall the data still allow."""
    lows = [(one.low, one.length) for one in comparison.changes if one.metric == "recall" and math.isfinite(one.low)]
    if not lows or min(lows)[0] >= 0:
        return ""
    low, length = min(lows)
    return f"; {math.ceil(-100 * low)} points of recall may be lost at {length_label(length)}"


def compare_markdown(comparison: Comparison) -> str:
    """Return the comparison as Markdown."""
    lines = [f"### {markdown_cell(verdict_line(comparison))}", ""]
    lines += [f"- {word}: {markdown_cell(text)}" for word, text in about_lines(comparison)]
    lines += ["", "| | Metric | Length | Baseline | Candidate | Change (95 %) | p |", "|:--|:--|--:|--:|--:|--:|--:|"]
    for one in comparison.changes:
        values = level(one, one.baseline), level(one, one.candidate) + mark(one), change_text(one)
        state = "" if one.state == "open" else one.state
        cells = (state, UNITS.get(one.metric, one.metric), length_label(one.length), *values, p_text(one.p_adjusted))
        lines.append("| " + " | ".join(map(markdown_cell, cells)) + " |")
    return "\n".join([*lines, "", markdown_cell(legend(comparison))]) + "\n"


def compare_csv(comparisons: Sequence[Comparison]) -> str:
    """Return all comparisons as CSV, full precision, a line a change; empty where there is no value."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for comparison in comparisons:
        for one in comparison.changes:
            values = [
                *(comparison.baseline.name, comparison.candidate.name, one.metric, one.length, one.state),
                *(one.baseline, one.candidate, one.value, one.low, one.high, one.p_value, one.p_adjusted),
                *(one.pairs, one.documents, one.differ, one.missing, one.baseline_nan, one.candidate_nan),
            ]
            writer.writerow(["" if plain(value) is None else value for value in values])
    return out.getvalue()


def compare_json(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as plain JSON values; nan and the infinities are null."""
    sides = {
        word: {"name": one.name, "scaling": dict(one.scaling), "model": one.run.manifest.get("model")}
        for word, one in (("baseline", comparison.baseline), ("candidate", comparison.candidate))
    }
    report: dict[str, Any] = plain(
        {
            "verdict": comparison.verdict,
            "sentence": verdict_line(comparison),
            **sides,
            **{name: [asdict(one) for one in getattr(comparison.likeness, name)] for name in ("refused", "flagged")},
            "model_differences": [asdict(one) for one in comparison.likeness.free],
            "tests": comparison.tests,
            "changes": [asdict(one) for one in comparison.changes],
        }
    )
    return report
