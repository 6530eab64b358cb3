"""May this model ship? A policy's checks on the bounds of a run, and the verdict over all of them.

What holds of the verdict at the policy's confidence 1 − α, documents being independent: a model that violates a rule
passes with a chance of at most α, because all checks must pass, so that the one that is violated must (an
intersection-union test, Berger 1982); a model that keeps all rules fails with a chance of at most α, because each of
the m checks fails at level α / m (Bonferroni). A single `pass` among many checks is worth its own level only.

The bounds are the ends of two-sided intervals, α / 2 beyond each: near a recall of 1, where documents differ much, a
one-sided Wilson bound of nominal 5 % is beyond the truth in up to 9 % of simulated runs, one of 2.5 % in about 5 %.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pandas as pd

from ctxeval.analysis.agreement import plan_agreement
from ctxeval.analysis.compare import Side
from ctxeval.analysis.completeness import doubt_of
from ctxeval.analysis.headline import Headline, headline
from ctxeval.analysis.question import Grid, Quantity, Question, Questions, State
from ctxeval.analysis.regression import Against, RegressionQuestions, against
from ctxeval.errors import ExitCode, UsageError, unknown
from ctxeval.policy import Policy

Cause = Literal["bound", "nan", "absent", "few", "missing", "doubt", "undecided"]

EXIT_CODES: dict[State, ExitCode] = {
    "pass": ExitCode.OK,
    "fail": ExitCode.GATE_FAILED,
    "inconclusive": ExitCode.INCONCLUSIVE,
}
#: No run has more than this many times the documents of another.
MOST_GROWTH = 1000


@dataclass(frozen=True)
class Check:
    """One question of a policy, answered.

    `low` and `high` are the bounds that were tested; `value`, `low` and `high` are nan where there are none. For the
    blind spot they are those of the margin of recall, `ratio` stands beside them, and `bar` is its limit. `cause`
    says why the state is what it is: a `bound`, NaN rows, nothing to test (`absent`: `note` says why), too `few`
    documents, `missing` rows, a `doubt` about the run (in `note`), or bounds that leave it `undecided`.
    `more_documents` would about decide it, if the values stayed what they are; `None` where no number is known.
    """

    name: str
    rule: str
    length: int
    quantity: Quantity
    bar: float
    state: State
    cause: Cause
    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    rows: int = 0
    documents: int = 0
    nan: int = 0
    missing: int = 0
    lost: Mapping[str, int] = field(default_factory=dict)
    ratio: float = math.nan
    more_documents: int | None = None
    note: str = ""


@dataclass(frozen=True)
class Gate:
    """The verdict on one scaling of a run, with the checks in the order of the policy; `notes` tell of a baseline."""

    policy: Policy
    scale: str
    checks: tuple[Check, ...]
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> State:
        """Return `fail` where a check fails, else `inconclusive` where one is, else `pass`."""
        states = {check.state for check in self.checks}
        if "fail" in states:
            return "fail"
        return "pass" if states == {"pass"} else "inconclusive"

    @property
    def exit_code(self) -> ExitCode:
        """Return the exit code of the verdict."""
        return EXIT_CODES[self.verdict]

    def count(self, state: State) -> int:
        """Return how many checks are in a state."""
        return sum(check.state == state for check in self.checks)


def gate(
    policy: Policy,
    cells: pd.DataFrame,
    summary: Headline,
    scale: str,
    grid: Grid,
    *,
    doubt: str = "",
    baseline: Against | None = None,
) -> Gate:
    """Check one scaling of a run.

    Args:
        policy: what it must show.
        cells: rows of cells.jsonl, all scalings.
        summary: the headline of those cells; its R, floor and epsilon judge effective length and blind spot.
        scale: label of the scaling, as in the column `scale`.
        grid: what the run was asked for; rows that it lacks are missing.
        doubt: why the run may not be all there (`completeness.doubt_of`); such a run can fail, but not pass.
        baseline: what the policy's `regression` compares with.
    """
    run = (policy, cells, summary, scale, grid)
    questions = (RegressionQuestions(*run, baseline=baseline) if baseline else Questions(*run)).all()
    tail = (1 - policy.confidence) / 2
    levels = (tail, tail / max(len(questions), 1))
    doubts = _doubts(cells, doubt)
    checks = tuple(_check(one, levels, policy.min_documents, doubts) for one in questions)
    return Gate(policy, scale, checks, baseline.notes if baseline else ())


def gate_run(
    policy: Policy,
    cells: pd.DataFrame,
    manifest: dict[str, Any],
    scale: str | None = None,
    baseline: Side | None = None,
) -> Gate:
    """Check a run as it was read from its folder; without `scale`, its only scaling beside `none`.

    Raises:
        UsageError: no rows, a manifest without its grid, no such scaling, a baseline that is unlike the run or that no
            rule asks for, or a rule that asks for one that is not given.
    """
    if policy.regression and baseline is None:
        raise UsageError("the policy has the rule regression, but there is no baseline", "give --baseline RUN")
    if baseline is not None and not policy.regression:
        raise UsageError(
            f"--baseline {baseline.name}, but no rule of the policy compares with it",
            "add the rule regression, as in tasks/gates/regression.yaml, or leave the baseline out",
        )
    if cells.empty:
        raise UsageError("the run has no rows", "measure it first")
    try:
        resolved = manifest["resolved"]
        lengths = tuple(int(length) for length in resolved["lengths"])
        labels = [str(scaling["label"]) for scaling in resolved["scalings"]]
        packed = resolved.get("plan") == "packed"
        documents = int(resolved.get("documents") or 0)
        trials = int((manifest.get("spec") or {}).get("trials") or 1)
        grid = Grid(
            target=int(resolved.get("target") or max(lengths)),
            lengths=lengths,
            depths=tuple(float(depth) for depth in resolved.get("depths") or ()),
            losses=min(int(resolved.get("perplexity_documents") or 0), documents),
            contexts=0 if packed else documents * trials,
        )
        window = int(resolved["native_window"])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UsageError(
            f"the run's manifest does not say what was asked for ({type(error).__name__}: {error})",
            "it is damaged, or was written by another version",
        ) from None
    chosen = choose_scaling(labels, scale)
    summary = headline(cells, native_window=window, lengths=lengths, scalings=labels)
    accepted = against(baseline, manifest, "the run") if baseline else None
    doubt = doubt_of(manifest, len(cells))
    return gate(policy, cells, summary, chosen, grid, doubt=doubt, baseline=accepted)


def choose_scaling(labels: list[str], wanted: str | None) -> str:
    """Return the scaling to check: the one wanted, or the only one there is beside `none`.

    Raises:
        UsageError: unknown, or several and none of them wanted.
    """
    if wanted is not None:
        if wanted not in labels:
            raise unknown("scaling of this run", wanted, labels)
        return wanted
    candidates = [label for label in labels if label != "none"] or labels
    if len(candidates) != 1:
        raise UsageError(f"the run has the scalings {', '.join(labels)}", "say which one ships with --scale")
    return candidates[0]


def _doubts(cells: pd.DataFrame, doubt: str) -> dict[str, str]:
    """Return what keeps checks from passing, by the quantities that it touches: `all`, or those of retrieval."""
    doubts = {"all": doubt} if doubt else {}
    agreement = plan_agreement(cells)
    if agreement and (agreement.differs or agreement.contradicts):
        doubts["retrieval"] = "packed and exact needles disagree in this run: measure without --packed"
    return doubts


def _check(question: Question, levels: tuple[float, float], min_documents: int, doubts: dict[str, str]) -> Check:
    evidences = question.evidences
    about: dict[str, Any] = {
        "name": question.name,
        "rule": question.rule,
        "length": question.length,
        "quantity": question.quantity,
        "bar": question.bar,
        "nan": sum(one.nan for one in evidences),
        "missing": sum(one.missing for one in evidences),
    }
    if question.evidence is None:
        return Check(**about, state="inconclusive", cause="absent", note=question.absent)
    documents = min(one.documents for one in evidences)
    low, high = question.shown(*levels)
    about |= {"value": question.evidence.value, "rows": question.evidence.rows, "documents": documents}
    about |= {"low": low, "high": high, "ratio": question.ratio.value if question.ratio else math.nan}
    about["lost"] = dict(sum((Counter(one.lost) for one in evidences), Counter()))
    if about["nan"]:
        return Check(**about, state="fail", cause="nan")
    if documents < min_documents:
        if about["missing"]:
            return Check(**about, state="inconclusive", cause="missing")
        return Check(**about, state="inconclusive", cause="few", more_documents=min_documents - documents)
    state = question.answer(*levels)
    if state == "fail":
        return Check(**about, state=state, cause="bound")
    if about["missing"]:
        return Check(**about, state="inconclusive", cause="missing")
    doubt = doubts.get("all") or (doubts.get("retrieval") if question.quantity != "ratio" else None)
    if doubt:
        return Check(**about, state="inconclusive", cause="doubt", note=doubt)
    if state == "pass":
        return Check(**about, state=state, cause="bound")
    return Check(**about, state=state, cause="undecided", more_documents=_more_documents(question, levels, documents))


def _more_documents(question: Question, levels: tuple[float, float], documents: int) -> int | None:
    """Return about how many documents more would decide, all else staying what it is; `None` where none would."""

    def decided(total: int) -> bool:
        return question.answer(*levels, growth=total / documents) != "inconclusive"

    short, enough = documents, documents + 1
    while not decided(enough):
        short, enough = enough, 2 * enough
        if enough > MOST_GROWTH * documents:
            return None
    while enough - short > 1:
        middle = (short + enough) // 2
        short, enough = (short, middle) if decided(middle) else (middle, enough)
    return enough - documents
