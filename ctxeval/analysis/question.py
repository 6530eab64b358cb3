"""What a policy asks of a run: one question a rule and length, each answered by bounds at a given confidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from ctxeval.analysis.evidence import Evidence, margin_evidence, ratio_evidence, recall_evidence
from ctxeval.analysis.headline import Headline
from ctxeval.analysis.onset import length_label
from ctxeval.analysis.perplexity import perplexity_rows
from ctxeval.analysis.recall import BASELINE, asked, document_correlation, scored, unpatched_inside
from ctxeval.errors import UsageError
from ctxeval.policy import Length, Policy, Span, parse_depth_span, parse_span

State = Literal["pass", "fail", "inconclusive"]
#: `margin`: recall minus a share of the unpatched model's; `blind`: the same, beside the ratio; `change`: recall minus
#: a baseline's.
Quantity = Literal["recall", "margin", "ratio", "blind", "change"]
#: Of the error rate of "not in the blind spot", what goes to recall; the ratio has the rest.
BLIND_RECALL_SHARE = 0.8
KEYS = ["document", "trial", "depth_percent", "needle_id"]


@dataclass(frozen=True, eq=False)
class Grid:
    """What a run was asked for: lengths in tokens, depths in percent.

    `losses` is the number of perplexity rows a length, `contexts` that of documents times trials that have needles at
    every length; 0 where the run does not say, or where it varies, as in a packed run.
    """

    target: int
    lengths: tuple[int, ...]
    depths: tuple[float, ...] = ()
    losses: int = 0
    contexts: int = 0


@dataclass(frozen=True, eq=False)
class Question:
    """A bound to be kept: `evidence` at least (recall, margin) or at most (ratio) `bar`.

    A length is not in the blind spot where the margin is at least 0, or where the ratio, which `ratio` then holds, is
    above `bar`. `absent` says why there is no evidence.
    """

    name: str
    rule: str
    length: int
    quantity: Quantity = "recall"
    bar: float = 0.0
    evidence: Evidence | None = None
    ratio: Evidence | None = None
    absent: str = ""

    @property
    def evidences(self) -> tuple[Evidence, ...]:
        """All that the answer rests on."""
        return tuple(one for one in (self.evidence, self.ratio) if one is not None)

    def answer(self, pass_tail: float, fail_tail: float, growth: float = 1.0) -> State:
        """Decide: a pass is false with a chance of at most `pass_tail`, a fail with at most `fail_tail`."""
        if self.evidence is None:
            return "inconclusive"
        if self.ratio is not None:
            return self._answer_blind(self.evidence, self.ratio, pass_tail, fail_tail, growth)
        low, high = self.shown(pass_tail, fail_tail, growth)
        if self.quantity == "ratio":
            return "pass" if high <= self.bar else "fail" if low > self.bar else "inconclusive"
        return "pass" if low >= self.bar else "fail" if high < self.bar else "inconclusive"

    def shown(self, pass_tail: float, fail_tail: float, growth: float = 1.0) -> tuple[float, float]:
        """Return the two bounds that are tested: one for passing, the other for failing."""
        assert self.evidence is not None
        lower, upper = (fail_tail, pass_tail) if self.quantity == "ratio" else (pass_tail, fail_tail)
        return self.evidence.bounds(lower, growth)[0], self.evidence.bounds(upper, growth)[1]

    def _answer_blind(
        self, margin: Evidence, ratio: Evidence, pass_tail: float, fail_tail: float, growth: float
    ) -> State:
        # Either alone passes, so the two share the error rate; recall gets most, as in `onset`. Failing needs both.
        recall_tail, ratio_tail = BLIND_RECALL_SHARE * pass_tail, (1 - BLIND_RECALL_SHARE) * pass_tail
        if margin.bounds(recall_tail, growth)[0] >= 0 or ratio.bounds(ratio_tail, growth)[0] > self.bar:
            return "pass"
        broken = margin.bounds(fail_tail, growth)[1] < 0
        holds = not ratio.missing and ratio.bounds(fail_tail, growth)[1] <= self.bar
        return "fail" if broken and holds else "inconclusive"


class Questions:
    """Makes the questions of a policy about one scaling of a run."""

    def __init__(self, policy: Policy, cells: pd.DataFrame, summary: Headline, scale: str, grid: Grid) -> None:
        self._policy, self._summary, self._grid, self._scale = policy, summary, grid, scale
        self._needles, losses = asked(cells), perplexity_rows(cells)
        self._own = self._needles[self._needles["scale"] == scale]
        self._losses = losses[losses["scale"] == scale]
        hits = scored(self._needles)
        self._prior = document_correlation(hits[hits["status"] == "ok"])
        own = (*self._own["context_length"], *self._losses["context_length"])
        self._lengths = tuple(sorted({*grid.lengths, *(int(length) for length in own)}))

    def all(self) -> list[Question]:
        """Return the questions in the order of the policy's keys, by rising length."""
        policy, found = self._policy, []
        for index, floor in enumerate(policy.recall):
            span = parse_depth_span(floor.depths) if floor.depths is not None else None
            label = f", depths {floor.depths} %".replace("..", "–") if span else ""
            for length in self._wanted(parse_span(floor.lengths)):
                name = f"recall at {length_label(length)}{label}"
                found.append(self._recall(name, f"recall[{index}]", length, floor.floor, span))
        for index, ceiling in enumerate(policy.perplexity):
            for length in self._wanted(parse_span(ceiling.lengths)):
                name = f"perplexity ratio at {length_label(length)}"
                found.append(self._ratio(name, f"perplexity[{index}]", length, ceiling.max_ratio))
        return [*found, *self._effective(), *self._blind(), *self._short()]

    def _effective(self) -> list[Question]:
        if self._policy.min_effective_length is None:
            return []
        wanted = self._tokens(parse_span(self._policy.min_effective_length).exact[0])
        # A longer length that holds together with all shorter ones says as much as the length itself.
        top = next((length for length in self._lengths if length >= wanted), wanted)
        title = f"effective length {length_label(wanted)}"
        return [
            self._against_reference(f"{title}: recall at {length_label(length)}", "min_effective_length", length)
            for length in self._wanted(Span((), None, top))
        ]

    def _blind(self) -> list[Question]:
        if self._policy.no_blind_spot_up_to is None:
            return []
        top = self._tokens(parse_span(self._policy.no_blind_spot_up_to).exact[0])
        found = []
        for length in self._wanted(Span((), None, top)):
            name = f"no blind spot at {length_label(length)}"
            one = self._against_reference(name, "no_blind_spot_up_to", length)
            other = self._ratio(name, "no_blind_spot_up_to", length, 1 + self._summary.epsilon)
            why = one.absent or other.absent
            evidence, ratio = (None, None) if why else (one.evidence, other.evidence)
            found.append(Question(name, one.rule, length, "blind", other.bar, evidence, ratio, why))
        return found

    def _short(self) -> list[Question]:
        guard, found = self._policy.short_context, []
        if guard is None:
            return []
        for length in self._wanted(Span((), None, "native")):
            label = f"at {length_label(length)}"
            if guard.min_recall_share is not None:
                base = self._needles[(self._needles["scale"] == BASELINE) & (self._needles["context_length"] == length)]
                name = f"short context: recall {label}"
                found.append(self._margin(name, "short_context", length, base, guard.min_recall_share))
            if guard.max_ratio is not None:
                name = f"short context: ratio {label}"
                found.append(self._ratio(name, "short_context", length, guard.max_ratio))
        return found

    def _recall(self, name: str, rule: str, length: int, bar: float, depths: Span[float] | None) -> Question:
        chosen, lacking = _depths(depths, self._grid.depths, self._own["depth_percent"].unique().tolist())
        if lacking:
            return Question(name, rule, length, bar=bar, absent=lacking)
        rows = self._own[(self._own["context_length"] == length) & self._own["depth_percent"].isin(chosen)]
        if rows.empty:
            return Question(name, rule, length, bar=bar, absent=self._no_rows("needle", length))
        absent = self._absent(length, chosen)
        return Question(name, rule, length, "recall", bar, recall_evidence(rows, self._prior, absent))

    def _ratio(self, name: str, rule: str, length: int, bar: float) -> Question:
        rows = self._losses[self._losses["context_length"] == length]
        if rows.empty:
            return Question(name, rule, length, "ratio", bar, absent=self._no_rows("perplexity", length))
        absent = max(self._grid.losses - len(rows), 0)
        return Question(name, rule, length, "ratio", bar, ratio_evidence(rows, absent))

    def _against_reference(self, name: str, rule: str, length: int) -> Question:
        summary = self._summary
        if not summary.signal:
            why = "no signal: the unpatched model hardly finds a needle inside its own window"
            return Question(name, rule, length, "margin", absent=why)
        return self._margin(name, rule, length, unpatched_inside(self._needles, summary.native_window), summary.floor)

    def _margin(self, name: str, rule: str, length: int, base: pd.DataFrame, share: float) -> Question:
        rows = self._own[self._own["context_length"] == length]
        absent = self._no_rows("needle", length) if rows.empty else ""
        if not absent and scored(base).empty:
            absent = "the run has no answered needle of 'none' to compare with; add none to --scale"
        if absent:
            return Question(name, rule, length, "margin", absent=absent)
        lost = self._absent(length, self._depths_of_grid())
        return Question(name, rule, length, "margin", 0.0, margin_evidence(rows, base, share, self._prior, lost))

    def _depths_of_grid(self) -> Sequence[float]:
        return self._grid.depths or tuple(self._own["depth_percent"].unique().tolist())

    def _no_rows(self, probe: str, length: int) -> str:
        own = self._own if probe == "needle" else self._losses
        if own.empty:
            return f"the run has no {probe} rows of {self._scale} at all"
        measured = ", ".join(length_label(int(one)) for one in sorted(own["context_length"].unique()))
        return f"no {probe} rows of {self._scale} at {length_label(length)}; it was measured at {measured}"

    def _absent(self, length: int, depths: Sequence[float]) -> int:
        """Count needle rows that this scaling should have at a length and has not.

        All scalings ask the same needles of a document, so one that another has is one that is absent here. A depth of
        the grid without any is absent too, and so is a document without any; a document may lack a depth, where two
        fall on one sentence.
        """
        here = self._needles[self._needles["context_length"] == length]
        rows = here[here["depth_percent"].isin(depths)]
        own = rows[rows["scale"] == self._scale]
        others = len(rows.drop_duplicates(KEYS)) - len(own.drop_duplicates(KEYS))
        empty = len(set(depths)) - int(own["depth_percent"].nunique())
        contexts = len(here[here["scale"] == self._scale].drop_duplicates(["document", "trial"]))
        return max(others, empty, self._grid.contexts - contexts)

    def _tokens(self, length: Length) -> int:
        named = {"native": self._summary.native_window, "target": self._grid.target}
        return named[length] if isinstance(length, str) else length

    def _wanted(self, span: Span[Length]) -> list[int]:
        """Return the lengths that a range asks for: those of the run inside it, and its upper end in any case.

        Raises:
            UsageError: a range by names that ends before it begins: only its end would be checked.
        """
        if span.exact:
            return sorted({self._tokens(one) for one in span.exact})
        low = self._tokens(span.low) if span.low is not None else 0
        high = self._tokens(span.high) if span.high is not None else None
        # native..target is for runs that extend; one that stays inside the window is asked for its target.
        if high is not None and low > high and (span.low, span.high) != ("native", "target"):
            raise UsageError(f"range {span.low}..{span.high} is {low}..{high} here", "it ends before it begins")
        inside = {length for length in self._lengths if low <= length and (high is None or length <= high)}
        # A promise up to 32k is not kept by a run that ends at 16k: the end is asked for, and found to be absent.
        ends = {high} if high is not None else set() if inside else {low}
        return sorted(inside | ends)


def _depths(wanted: Span[float] | None, grid: Sequence[float], seen: Sequence[float]) -> tuple[list[float], str]:
    """Return the depths asked for, and what the run lacks of them."""
    known = sorted({*grid, *(float(depth) for depth in seen)})
    if wanted is None:
        return known, ""
    if wanted.exact:
        lacking = [depth for depth in wanted.exact if depth not in known]
        text = ", ".join(f"{depth:g}" for depth in lacking)
        return list(wanted.exact), f"the run has no depth {text} %" if lacking else ""
    low = 0.0 if wanted.low is None else wanted.low
    high = 100.0 if wanted.high is None else wanted.high
    chosen = [depth for depth in known if low <= depth <= high]
    return chosen, "" if chosen else f"the run has no depth between {low:g} and {high:g} %"
