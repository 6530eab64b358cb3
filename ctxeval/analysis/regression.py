"""What the rule `regression` of a policy asks: that a run is not much worse than a baseline run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ctxeval.analysis.compare import Side, refusal
from ctxeval.analysis.evidence import change_evidence, ratio_to_baseline
from ctxeval.analysis.likeness import Likeness, likeness
from ctxeval.analysis.onset import length_label
from ctxeval.analysis.perplexity import perplexity_rows
from ctxeval.analysis.question import Question, Questions
from ctxeval.analysis.recall import asked
from ctxeval.policy import Regression, parse_span


@dataclass(frozen=True, eq=False)
class Against:
    """A baseline that is about the same thing as the run that is checked."""

    side: Side
    likeness: Likeness

    @property
    def notes(self) -> tuple[str, ...]:
        """Say what the run is checked against, and what differs besides model and scaling."""
        return (f"baseline {self.side.name}", *(f"flagged: {one}" for one in self.likeness.flagged))


def against(baseline: Side, manifest: Mapping[str, Any], name: str) -> Against:
    """Accept a baseline for the run with this manifest, named `name`.

    Raises:
        UsageError: it is of another corpus, task, seed or grid.
    """
    alike = likeness(baseline.run.manifest, manifest)
    if alike.refused:
        raise refusal(f"the baseline {baseline.name}", name, alike, hint="")
    return Against(baseline, alike)


class RegressionQuestions(Questions):
    """All questions of a policy, those against a baseline included; see `Questions`."""

    def __init__(self, *run: Any, baseline: Against) -> None:
        super().__init__(*run)
        self._alike, scale = baseline.likeness, baseline.side.scale
        needles, losses = asked(baseline.side.run.cells), perplexity_rows(baseline.side.run.cells)
        self._their_needles = needles[needles["scale"] == scale]
        self._their_losses = losses[losses["scale"] == scale]

    def all(self) -> list[Question]:
        """Return the questions in the order of the policy's keys, by rising length; those of `regression` come last."""
        found = super().all()
        for index, rule in enumerate(self._policy.regression):
            for length in self._wanted(parse_span(rule.lengths)):
                found += self._at(rule, f"regression[{index}]", length)
        return found

    def _at(self, rule: Regression, name: str, length: int) -> list[Question]:
        label = length_label(length)
        found = []
        if rule.max_recall_drop is not None:
            found.append(self._drop(f"regression: recall at {label}", name, length, -rule.max_recall_drop))
        if rule.max_ratio is not None:
            found.append(self._worse(f"regression: perplexity at {label}", name, length, rule.max_ratio))
        return found

    def _drop(self, title: str, name: str, length: int, bar: float) -> Question:
        own, theirs = (_at_length(rows, length) for rows in (self._own, self._their_needles))
        absent = self._no_rows("needle", length) if own.empty else ""
        if not absent and theirs.empty:
            absent = f"the baseline has no needle rows at {length_label(length)}"
        if absent:
            return Question(title, name, length, "change", bar, absent=absent)
        lost = self._absent(length, self._depths_of_grid())
        evidence = change_evidence(own, theirs, self._alike.same_needles, lost)
        return Question(title, name, length, "change", bar, evidence)

    def _worse(self, title: str, name: str, length: int, bar: float) -> Question:
        own, theirs = (_at_length(rows, length) for rows in (self._losses, self._their_losses))
        absent = self._no_rows("perplexity", length) if own.empty else ""
        if not absent and theirs.empty:
            absent = f"the baseline has no perplexity rows at {length_label(length)}"
        if not absent and not self._same_tokens(own, theirs):
            absent = "the baseline has another tokenizer: perplexity by token does not compare; `ctxeval compare` does"
        if absent:
            return Question(title, name, length, "ratio", bar, absent=absent)
        evidence = ratio_to_baseline(own, theirs, max(self._grid.losses - len(own), 0))
        return Question(title, name, length, "ratio", bar, evidence)

    def _same_tokens(self, own: pd.DataFrame, theirs: pd.DataFrame) -> bool:
        sizes = ["document", "n_tokens", "bytes"]
        both = own[sizes].merge(theirs[sizes], on="document")
        return self._alike.same_text and bool(
            ((both["n_tokens_x"] == both["n_tokens_y"]) & (both["bytes_x"] == both["bytes_y"])).all()
        )


def _at_length(rows: pd.DataFrame, length: int) -> pd.DataFrame:
    return rows[rows["context_length"] == length]
