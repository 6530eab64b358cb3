"""A gate's checks as a terminal table, JSON, a GitHub step summary and GitHub annotations."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ctxeval.analysis.gate import Check, Gate
from ctxeval.analysis.question import State
from ctxeval.analysis.stats import Estimate
from ctxeval.report.text import MISSING, markdown_cell, model_line, number, number_range, one_line, percent_range
from ctxeval.report.text import percent as share
from ctxeval.results.files import plain
from ctxeval.wording import are, counted, have

WIDTH = 80
WORDS: Mapping[State, str] = {"fail": "FAIL", "inconclusive": "OPEN", "pass": "PASS"}
VERDICTS: Mapping[State, str] = {"fail": "FAIL", "inconclusive": "INCONCLUSIVE", "pass": "PASS"}
_ORDER: tuple[State, ...] = ("fail", "inconclusive", "pass")


def by_urgency(gate: Gate) -> list[Check]:
    """Return the checks, failed ones first, then the inconclusive ones; otherwise in the order of the policy."""
    return sorted(gate.checks, key=lambda check: _ORDER.index(check.state))


def verdict_line(gate: Gate) -> str:
    """Write the verdict: `FAIL 2 of 9 checks (exit 1)`."""
    verdict, total = gate.verdict, len(gate.checks)
    also = f", {gate.count('inconclusive')} inconclusive" if verdict == "fail" and gate.count("inconclusive") else ""
    return f"{VERDICTS[verdict]} {gate.count(verdict)} of {total} checks{also} (exit {int(gate.exit_code)})"


def header_lines(gate: Gate, manifest: Mapping[str, Any]) -> list[str]:
    """Say what was checked, against what, and how sure the verdict is."""
    level = f"{gate.policy.confidence:.10g}"
    return [
        model_line(manifest),
        one_line(f"scaling {gate.scale} · policy {gate.policy.title or 'without a title'} · confidence {level}"),
        *map(one_line, gate.notes),
    ]


def gate_lines(gate: Gate, manifest: Mapping[str, Any]) -> list[str]:
    """Return the table, at most 80 columns wide: a line a check, the reason below it where it did not pass."""
    lines = [part for line in header_lines(gate, manifest) for part in _fold(line, "")]
    lines.append("")
    for check in by_urgency(gate):
        lines += _row(check)
        if check.state != "pass":
            lines += _fold(reason(check), "      ")
    return [*lines, "", verdict_line(gate)]


def _row(check: Check) -> list[str]:
    measured, asked = measured_text(check), asked_text(check)
    name = check.name
    if len(name) > 37 or len(measured) > 22:
        return [*_fold(f"{WORDS[check.state]}  {name}", "      ", first=""), f"{'':43}{measured:<22} {asked}".rstrip()]
    return [f"{WORDS[check.state]}  {name:<37}{measured:<22} {asked}".rstrip()]


def _fold(text: str, indent: str, first: str | None = None) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=indent if first is None else first, subsequent_indent=indent, break_on_hyphens=False
    )


def measured_text(check: Check) -> str:
    """Write the value with the bounds that were tested: `31 % (22–41)`."""
    if not math.isfinite(check.value):
        return MISSING
    estimate = Estimate(check.value, check.low, check.high)
    if check.quantity == "ratio":
        return f"{number(check.value)} ({number_range(estimate)})"
    if check.quantity == "blind":
        return f"{100 * check.value:+.0f}, ratio {number(check.ratio)}"
    if check.quantity in ("margin", "change"):
        return f"{100 * check.value:+.0f} ({_points(check.low, -1)} to {_points(check.high, 1)})"
    return f"{share(check.value)} % ({percent_range(estimate)})"


def _points(value: float, direction: int) -> str:
    if not math.isfinite(value):
        return "-∞" if value < 0 else "∞"
    rounded = math.ceil(100 * value - 1e-9) if direction > 0 else math.floor(100 * value + 1e-9)
    return f"{rounded:+d}"


def asked_text(check: Check) -> str:
    """Write the bar: `≥ 80 %`."""
    if check.quantity == "ratio":
        return f"≤ {check.bar:g}"
    if check.quantity == "blind":
        return "not blind"
    if check.quantity == "change":
        return f"≥ {100 * check.bar:g} points"
    return "≥ 0 points" if check.quantity == "margin" else f"≥ {100 * check.bar:g} %"


def reason(check: Check) -> str:
    """Say in a sentence why a check is in its state."""
    if check.cause == "absent":
        return check.note
    if check.cause == "nan":
        return f"{are(check.nan, 'row')} NaN: a model that emits NaN never passes"
    if check.cause == "few":
        return (
            f"{counted(check.documents, 'document')}, the policy asks for "
            f"{check.documents + (check.more_documents or 0)}: measure {check.more_documents} more"
        )
    if check.cause == "missing":
        kinds = ", ".join(f"{count} {status}" for status, count in check.lost.items())
        return f"{have(check.missing, 'row')} no result ({kinds})"
    if check.cause == "doubt":
        return check.note
    if check.cause == "undecided":
        return _undecided(check)
    return _decided(check)


def _decided(check: Check) -> str:
    if check.quantity == "blind":
        if check.state == "fail":
            return "recall is broken while perplexity holds: a check of perplexity alone would not see it"
        return "recall holds, or perplexity breaks with it"
    if check.quantity == "ratio":
        side = "above" if check.state == "fail" else "at most"
        return f"the ratio is credibly {side} {check.bar:g}, over {counted(check.documents, 'document')}"
    side = "below" if check.state == "fail" else "at least"
    if check.quantity == "change":
        more = "more" if check.state == "fail" else "at most"
        return f"recall has credibly dropped by {more}{' than' * (more == 'more')} {-100 * check.bar:g} points"
    bar = f"{100 * check.bar:g} %" if check.quantity == "recall" else "the share of the unpatched model's that is asked"
    return f"recall is credibly {side} {bar}, over {counted(check.documents, 'document')}"


def _undecided(check: Check) -> str:
    text = f"undecided with {counted(check.documents, 'document')}"
    if check.more_documents is None:
        return f"{text}: at this value no number of documents would tell"
    return f"{text}: about {counted(check.more_documents, 'more document')} would decide it, if the value stays"


def gate_json(gate: Gate, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the verdict and its checks as plain JSON values; nan and the infinities are null."""
    report: dict[str, Any] = plain(
        {
            "verdict": gate.verdict,
            "exit_code": int(gate.exit_code),
            "summary": verdict_line(gate),
            "scale": gate.scale,
            "policy": gate.policy.model_dump(mode="json"),
            "notes": list(gate.notes),
            "model": manifest.get("model"),
            "checks": [{**asdict(check), "reason": reason(check)} for check in by_urgency(gate)],
        }
    )
    return report


def step_summary(gate: Gate, manifest: Mapping[str, Any]) -> str:
    """Return the Markdown for a GitHub job summary."""
    lines = [f"### ctxeval gate: {verdict_line(gate)}", ""]
    lines += [markdown_cell(line) + "  " for line in header_lines(gate, manifest)]
    lines += ["", "| | Check | Measured | Asked | Why |", "|:--|:--|--:|--:|:--|"]
    for check in by_urgency(gate):
        parts = (WORDS[check.state], check.name, measured_text(check), asked_text(check), reason(check))
        lines.append("| " + " | ".join(markdown_cell(part) for part in parts) + " |")
    return "\n".join(lines) + "\n\n"


def workflow_commands(gate: Gate) -> list[str]:
    """Return GitHub workflow commands: an `::error` a failed check, a `::warning` an inconclusive one."""
    kinds = {"fail": "error", "inconclusive": "warning"}
    return [
        f"::{kinds[check.state]} title={_property(f'ctxeval gate, {gate.scale}')}::"
        f"{_message(f'{check.name}: {measured_text(check)}, asked {asked_text(check)}; {reason(check)}')}"
        for check in by_urgency(gate)
        if check.state in kinds
    ]


def _message(text: str) -> str:
    return one_line(text).replace("%", "%25")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
