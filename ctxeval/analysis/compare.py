"""What changed from a baseline to a candidate, and is it more than chance: paired by document, needle and token.

Recall: the interval is that of `paired.PairedProportion`, never of zero width; perplexity and answer log-prob: t
intervals over documents (a plain percentile bootstrap over 8 documents covers 77–88 %). Significance comes from
sign-flips of whole documents, adjusted for the whole table (`flips.sign_flip_family`), and never contradicts the
interval beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from ctxeval.analysis.change import ALPHA, METRICS, Change, Contribution, State, loss_change, needle_changes
from ctxeval.analysis.flips import sign_flip_family
from ctxeval.analysis.likeness import Likeness, likeness
from ctxeval.analysis.perplexity import perplexity_rows
from ctxeval.analysis.recall import asked
from ctxeval.errors import UsageError, unknown

if TYPE_CHECKING:
    from ctxeval.results.store import Run

Verdict = Literal["worse", "better", "mixed", "open", "identical", "nothing to compare"]
_ORDER: tuple[State, ...] = ("worse", "missing", "open", "better")


@dataclass(frozen=True, eq=False)
class Side:
    """One scaling of a run, under the name by which it is shown; `scaling` is what the manifest says of it."""

    name: str
    scale: str
    run: Run
    scaling: Mapping[str, Any]

    @property
    def lengths(self) -> tuple[int, ...]:
        """The grid, in tokens."""
        return tuple(int(length) for length in self.run.manifest["resolved"]["lengths"])


@dataclass(frozen=True, eq=False)
class Comparison:
    """A candidate against a baseline; `changes` begin with the worst. `tests` is how many p-values are in the table."""

    baseline: Side
    candidate: Side
    likeness: Likeness
    changes: tuple[Change, ...]
    tests: int

    def having(self, state: State) -> tuple[Change, ...]:
        """Return the changes of a state, worst first."""
        return tuple(one for one in self.changes if one.state == state)

    @property
    def documents(self) -> int:
        """How many documents the table rests on at most."""
        return max((one.documents for one in self.changes), default=0)

    @property
    def decidable(self) -> bool:
        """Whether there are documents enough for significance: at best 2 of 2^D sign patterns are as extreme."""
        return 2.0 ** (1 - self.documents) <= ALPHA

    @property
    def verdict(self) -> Verdict:
        """Say in a word what the table shows."""
        if self.having("worse"):
            return "mixed" if self.having("better") else "worse"
        if self.having("better"):
            return "better"
        pairs = sum(one.pairs for one in self.changes)
        if not pairs:
            return "nothing to compare"
        return "open" if any(one.differ for one in self.changes) else "identical"


def side(run: Run, scale: str | None = None) -> Side:
    """Name one scaling of a run that was loaded; without `scale`, the only one beside none.

    Raises:
        UsageError: no rows, a manifest without its grid, or no such scaling.
    """
    if run.cells.empty:
        raise UsageError(f"{run.path} has no rows", "measure it first")
    try:
        resolved = run.manifest["resolved"]
        scalings = {str(one["label"]): dict(one) for one in resolved["scalings"]}
        _ = [int(length) for length in resolved["lengths"]]
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"the manifest of {run.path} does not say what was asked for ({type(error).__name__}: {error})",
            "it is damaged, or was written by another version",
        ) from None
    chosen = _choose(scale, scalings, str(run.path))
    return Side(f"{run.path}@{chosen}", chosen, run, scalings[chosen])


def _choose(wanted: str | None, labels: Mapping[str, Any], where: str) -> str:
    if wanted is not None:
        if wanted not in labels:
            raise unknown(f"scaling of {where}", wanted, labels)
        return wanted
    candidates = [label for label in labels if label != "none"] or list(labels)
    if len(candidates) != 1:
        raise UsageError(f"{where} has the scalings {', '.join(labels)}", f"name one: {where}@{candidates[0]}")
    return candidates[0]


def compare_runs(baseline: Side, candidates: Sequence[Side], *, allow_mismatch: bool = False) -> tuple[Comparison, ...]:
    """Compare each candidate with the baseline; all their p-values are one family.

    Raises:
        UsageError: the runs are not about the same thing, unless `allow_mismatch`, which compares what both have.
    """
    found: list[tuple[Side, Likeness, list[Contribution]]] = []
    for candidate in candidates:
        alike = Likeness() if candidate.run is baseline.run else likeness(baseline.run.manifest, candidate.run.manifest)
        if alike.refused and not allow_mismatch:
            raise refusal(baseline.name, candidate.name, alike)
        found.append((candidate, alike, _contributions(baseline, candidate, alike)))
    tested = [part for _, _, parts in found for part in parts if len(part[1])]
    shifts = pd.concat([shift for _, shift in tested], axis=1).fillna(0.0) if tested else pd.DataFrame()
    levels = {}
    if tested:
        raw, adjusted = sign_flip_family(shifts.to_numpy(float))
        levels = {id(tested[index][0]): (raw[index], adjusted[index]) for index in range(len(tested))}
    comparisons = []
    for candidate, alike, parts in found:
        changes = [_judge(change, levels.get(id(change))) for change, _ in parts]
        changes.sort(key=lambda one: (_ORDER.index(one.state), METRICS.index(one.metric), -one.harm, one.length))
        comparisons.append(Comparison(baseline, candidate, alike, tuple(changes), len(tested)))
    return tuple(comparisons)


def refusal(
    baseline: str, candidate: str, alike: Likeness, hint: str = "or insist with --allow-mismatch"
) -> UsageError:
    """Return the error for runs that are not about the same thing, with every difference."""
    shown = "; ".join(map(str, alike.refused))
    return UsageError(f"{candidate} is unlike {baseline}: {shown}", f"measure both alike{', ' * bool(hint)}{hint}")


def _judge(change: Change, levels: tuple[float, float] | None) -> Change:
    if levels is None:
        return change
    raw, adjusted = float(levels[0]), float(levels[1])
    return replace(change, p_value=raw, p_adjusted=adjusted, state=change.judged(adjusted))


def _contributions(baseline: Side, candidate: Side, alike: Likeness) -> list[Contribution]:
    """Return the changes at every length that both grids have, for each probe that one of them has rows of."""
    sides = (candidate, baseline)
    needles = [asked(one.run.cells).query("scale == @one.scale") for one in sides]
    losses = [perplexity_rows(one.run.cells).query("scale == @one.scale") for one in sides]
    found: list[Contribution] = []
    for length in sorted({*baseline.lengths} & {*candidate.lengths}):
        one, other = (rows[rows["context_length"] == length] for rows in needles)
        if len(one) or len(other):
            found += needle_changes(one, other, length, alike.same_needles)
        one, other = (rows[rows["context_length"] == length] for rows in losses)
        if len(one) or len(other):
            found.append(loss_change(one, other, length, alike.same_text))
    return found
