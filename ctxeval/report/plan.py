"""A plan as a terminal table and as JSON: what each check needs, and what the whole costs."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ctxeval.analysis.onset import length_label
from ctxeval.analysis.power import LADDER, Need, Power
from ctxeval.analysis.trial_runs import Assumptions, Design
from ctxeval.engine.budget import Cost, duration
from ctxeval.policy import Policy
from ctxeval.report.text import number, one_line
from ctxeval.results.files import plain

WIDTH = 80


@dataclass(frozen=True, eq=False)
class Plan:
    """What was planned. `sources` says where assumptions come from; cost and command are known with a model only."""

    policy: Policy
    design: Design
    assumed: Assumptions
    power: Power
    sources: str = ""
    cost: Cost | None = None
    seconds: float | None = None
    command: str = ""
    notes: Sequence[str] = ()


def plan_lines(plan: Plan) -> list[str]:
    """Return the table, at most 80 columns wide."""
    assumed, found = plan.assumed, plan.power
    level = f"{plan.policy.confidence:.10g}"
    lines = _fold(one_line(f"policy {plan.policy.title or 'without a title'} · confidence {level}"))
    lines += _fold(
        f"assumed: recall {100 * assumed.margin:g} points above the strictest bar of its length, ratio "
        f"{assumed.ratio_margin:g} below the ceiling; the unpatched model's recall {100 * assumed.reference:.3g} %, "
        f"correlation of a document's needles {assumed.correlation:.2g}, spread of the log ratio over documents "
        f"{assumed.spread:.2g}{plan.sources}"
    )
    needles = ", ".join(f"{length_label(one)} {count:.3g}" for one, count in sorted(plan.design.needles.items()))
    lines += _fold(f"needles a document: {needles}") if needles else []
    lines += ["", f"{'Check':<46}{'assumed':>9}{'asked':>14}{'documents':>11}"]
    lines += [line for need in found.needs for line in _row(need)]
    lines.append("")
    if found.never:
        lines += _fold("NEVER: a model as assumed cannot pass this policy on this grid, however long it is measured")
    elif not found.needs:
        lines += _fold("the policy has no check that a plan can be made for")
    elif found.documents is None and found.losses is None:
        lines += _fold(f"more than {LADDER[-1]} documents: raise --margin, --trials or --depths, or relax the policy")
    else:
        lines += _fold(total_line(found, len(found.needs)))
    if plan.cost is not None:
        parts = [f"{plan.cost.tokens:,} tokens to forward", f"{plan.cost.flops / 1e12:,.1f} TFLOP"]
        if plan.seconds is not None:
            parts.append(f"about {duration(plan.seconds)} on this machine")
        lines += _fold(", ".join(parts))
    if found.unplanned:
        lines += _fold(f"note: not planned for: {', '.join(found.unplanned)}")
    lines += [part for note in plan.notes for part in _fold(f"note: {note}")]
    # Not folded: it is to be copied.
    return [*lines, plan.command] if plan.command else lines


def total_line(found: Power, checks: int) -> str:
    """Say how many documents all checks together need."""
    documents = found.documents if found.documents is not None else found.losses
    which = ""
    if found.documents is not None and found.losses is not None and found.losses < found.documents:
        which = f", {found.losses} of them with perplexity"
    return (
        f"all {checks} check{'s' * (checks != 1)} together: {documents} documents{which}; "
        f"such a model passes with a chance of {100 * found.chance:.0f} %"
    )


def _row(need: Need) -> list[str]:
    check, ratio = need.check, need.check.quantity == "ratio"
    if need.never:
        return [*_fold(check.name), *_fold(f"never: {need.never}", "      ")]
    truth = number(need.truth) if ratio else f"{100 * need.truth:.0f} %"
    asked = f"≤ {check.bar:g}" if ratio else f"≥ {100 * check.bar:g} %"
    if check.base:
        asked = f"≥ {check.share:g} {'R' if check.base == 'reference' else 'none'}"
    documents = str(need.documents) if need.documents is not None else f"> {LADDER[-1]}"
    values = f"{truth:>9}{asked:>14}{documents:>11}"
    names = textwrap.wrap(check.name, 45, break_on_hyphens=False)
    return [*names[:-1], f"{names[-1]:<46}{values}"]


def _fold(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def plan_json(plan: Plan) -> dict[str, Any]:
    """Return the plan as plain JSON values; what is not known is null."""
    found = plan.power
    cost: Mapping[str, Any] | None = None
    if plan.cost is not None:
        cost = {"tokens": plan.cost.tokens, "flops": plan.cost.flops, "seconds": plan.seconds}
    report: dict[str, Any] = plain(
        {
            "policy": plan.policy.model_dump(mode="json"),
            "assumed": asdict(plan.assumed),
            "needles_a_document": dict(plan.design.needles),
            "checks": [{**asdict(one.check), **asdict(one), "check": one.check.name} for one in found.needs],
            "never": found.never,
            "documents": found.documents,
            "perplexity_documents": found.losses,
            "chance": found.chance,
            "unplanned": list(found.unplanned),
            "cost": cost,
            "command": plan.command or None,
            "notes": list(plan.notes),
        }
    )
    return report
