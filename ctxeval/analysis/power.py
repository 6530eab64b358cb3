"""How many documents does a policy need before it can be decided?

A model that keeps the policy is assumed: at each length its true recall is `margin` above the strictest bar there, and
its true perplexity ratio `ratio_margin` below the lowest ceiling. Wanted is the number of documents at which it passes
all checks with the chance `power`. Recall is simulated (`analysis.trial_runs`); the chance of a t interval to end below
a ceiling is exact. Lengths are drawn apart: in real runs they share documents, so that fewer may do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from scipy import stats

from ctxeval.analysis.formulas import t_quantile
from ctxeval.analysis.onset import length_label
from ctxeval.analysis.question import Question
from ctxeval.analysis.trial_runs import RUNS, Array, Assumptions, Check, Design, trial_runs
from ctxeval.policy import Policy, parse_depth_span

#: Documents tried, each number about an eighth above the one before.
LADDER = tuple(sorted({round(2 * 1.125**step) for step in range(51)}))
KNOWN_RULES = ("recall", "perplexity", "min_effective_length", "no_blind_spot_up_to", "short_context")


@dataclass(frozen=True)
class Need:
    """A check, the truth assumed of it, and the documents that it needs by itself.

    `truth` is a recall or a ratio, nan where none can be assumed. `documents` is `None` where the longest of the ladder
    would not do, and where `never` says why the check cannot be passed at all.
    """

    check: Check
    truth: float = math.nan
    documents: int | None = None
    never: str = ""


@dataclass(frozen=True)
class Power:
    """What a policy needs: `documents` with needles, `losses` with perplexity; `None` without, or where none would do.

    `chance` is that of the model to pass all checks with so many; nan where there is no such number. `unplanned` names
    checks of rules that rest on something else than this run, and are left out.
    """

    needs: tuple[Need, ...]
    documents: int | None = None
    losses: int | None = None
    chance: float = math.nan
    unplanned: tuple[str, ...] = ()

    @property
    def never(self) -> bool:
        """Whether the policy cannot be passed, however many documents there are."""
        return any(need.never for need in self.needs)


def power(policy: Policy, questions: Iterable[Question], design: Design, assumed: Assumptions) -> Power:
    """Return the documents that each check of a policy needs, and all of them together.

    Args:
        policy: what is asked.
        questions: of the policy on the design's grid, see `Questions`; their evidence is not looked at.
        design: what a document carries.
        assumed: of the model and its documents.
    """
    asked = list(questions)
    unplanned = tuple(one.name for one in asked if not one.rule.startswith(KNOWN_RULES))
    checks = [check_of(policy, one, design, assumed) for one in asked if one.rule.startswith(KNOWN_RULES)]
    if not checks:
        return Power((), unplanned=unplanned)
    never = [_never(check, design, assumed) for check in checks]
    if any(never):
        needs = tuple(Need(check, never=why) for check, why in zip(checks, never, strict=True))
        return Power(needs, unplanned=unplanned)
    chances = _Chances(policy, checks, design, assumed)
    ladder = sorted({policy.min_documents, *(rung for rung in LADDER if rung > policy.min_documents)})
    needs = tuple(Need(one, chances.truth(one), first(ladder, chances.enough(one))) for one in checks)
    # Simulated chances must exceed what is asked by two of their standard errors, or chance would name too few.
    error = math.sqrt(assumed.power * (1 - assumed.power) / RUNS) if chances.retrieval else 0.0
    wanted = assumed.power + 2 * error
    rung = first(ladder, lambda rung: chances.together(rung, rung) >= wanted)
    if rung is None:
        return Power(needs, unplanned=unplanned)
    below = max((one for one in ladder if one < rung), default=rung - 1)
    both = first(range(below + 1, rung + 1), lambda count: chances.together(count, count) >= wanted) or rung
    losses = first([one for one in ladder if one < both] + [both], lambda rung: chances.together(both, rung) >= wanted)
    # What is enough for all is enough for one: the ladder has gaps.
    needs = tuple(replace(need, documents=min(need.documents or both, both)) for need in needs)
    return Power(
        needs,
        both if chances.retrieval else None,
        losses if any(check.quantity in ("ratio", "blind") for check in checks) else None,
        chances.together(both, losses or both),
        unplanned,
    )


@dataclass(eq=False)
class _Chances:
    """The chances of the assumed model to pass, by the number of documents; each number is drawn once."""

    policy: Policy
    checks: Sequence[Check]
    design: Design
    assumed: Assumptions
    retrieval: list[Check] = field(init=False)

    def __post_init__(self) -> None:
        self.retrieval = [check for check in self.checks if check.quantity != "ratio"]
        self.tail = (1 - self.policy.confidence) / 2
        self.recalls: dict[int, float] = {}
        self.ratios: dict[int, float] = {}
        for check in self.checks:
            if check.quantity == "ratio":
                self.ratios[check.length] = min(self.ratios.get(check.length, math.inf), check.bar)
            else:
                bar = _recall_bar(check, self.assumed)
                self.recalls[check.length] = max(self.recalls.get(check.length, 0.0), bar + self.assumed.margin)
        self.drawn = cache(self._draw)
        self.below = cache(self._below)

    def truth(self, check: Check) -> float:
        if check.quantity == "ratio":
            return self.ratios[check.length] - self.assumed.ratio_margin
        return self.recalls[check.length]

    def enough(self, check: Check) -> Callable[[int], bool]:
        """Return whether a number of documents is enough for one check alone."""

        def chance(documents: int) -> float:
            if check.quantity == "ratio":
                return self.below(check.bar, self.truth(check), documents)
            return float(self.drawn(documents)[:, self.retrieval.index(check)].mean())

        return lambda documents: chance(documents) >= self.assumed.power

    def together(self, documents: int, losses: int) -> float:
        recall = float(self.drawn(documents).all(axis=1).mean()) if self.retrieval else 1.0
        margin = self.assumed.ratio_margin
        return recall * math.prod(self.below(bar, bar - margin, losses) for bar in self.ratios.values())

    def _draw(self, documents: int) -> Array:
        return trial_runs(self.policy, self.retrieval, self.design, self.recalls, documents, self.assumed)

    def _below(self, ceiling: float, truth: float, documents: int) -> float:
        return ratio_chance(ceiling, truth, documents, self.tail, self.assumed.spread)


def ratio_chance(ceiling: float, truth: float, documents: int, tail: float, spread: float) -> float:
    """Return the chance that the upper t bound of a ratio that is `truth` ends at `ceiling` or below.

    (log ceiling − mean) / standard error is noncentral t, about √D · log(ceiling / truth) / spread.
    """
    centre = math.sqrt(documents) * math.log(ceiling / truth) / spread
    return float(stats.nct.sf(t_quantile(tail, documents - 1), documents - 1, centre))


def first(ladder: Sequence[int], enough: Callable[[int], bool]) -> int | None:
    """Return the first rung that is enough, where all later ones are; `None` where the last is not."""
    # From below, in strides: runs of many documents take long to draw.
    short, high = -1, 0
    while not enough(ladder[high]):
        if high == len(ladder) - 1:
            return None
        short, high = high, min(high + 8, len(ladder) - 1)
    while high - short > 1:
        middle = (short + high) // 2
        short, high = (short, middle) if enough(ladder[middle]) else (middle, high)
    return ladder[high]


def check_of(policy: Policy, question: Question, design: Design, assumed: Assumptions) -> Check:
    """Return the question without its evidence."""
    rule, part, share, base = question.rule, 1.0, 0.0, ""
    if rule.startswith("recall"):
        depths = policy.recall[int(rule.removeprefix("recall[").removesuffix("]"))].depths
        part = 1.0 if depths is None else _part(depths, design.grid.depths)
    elif question.quantity in ("margin", "blind"):
        guard = policy.short_context.min_recall_share if policy.short_context else None
        share, base = (guard or 0.0, "same") if rule == "short_context" else (assumed.floor, "reference")
    return Check(question.name, rule, question.length, question.quantity, question.bar, share, base, part)


def _part(depths: float | str | list[float], grid: Sequence[float]) -> float:
    """Return which share of the grid's depths is asked for; 0 where one of them is not there."""
    span = parse_depth_span(depths)
    if span.exact:
        return len(set(span.exact)) / len(grid) if set(span.exact) <= set(grid) else 0.0
    low, high = 0.0 if span.low is None else span.low, 100.0 if span.high is None else span.high
    return sum(low <= depth <= high for depth in grid) / len(grid)


def _recall_bar(check: Check, assumed: Assumptions) -> float:
    return check.share * assumed.reference if check.base else check.bar


def _never(check: Check, design: Design, assumed: Assumptions) -> str:
    """Say why no number of documents would let the check pass; empty where one may."""
    if check.length not in design.grid.lengths:
        return f"{length_label(check.length)} is not in the grid of lengths"
    if check.quantity == "ratio":
        low = check.bar <= assumed.ratio_margin
        return f"no ratio is {assumed.ratio_margin:g} below {check.bar:g}: lower --ratio-margin" if low else ""
    if check.part == 0:
        return "the grid has no such depth"
    if not design.needles.get(check.length):
        return f"no needle fits into {length_label(check.length)}"
    bar = _recall_bar(check, assumed)
    if bar + assumed.margin > 1:
        return f"no recall is {100 * assumed.margin:g} points above {100 * bar:.3g} %: lower --margin, or the floor"
    return ""
