"""The needle probe: a fact is hidden in prose, and asked for at the end of the context.

Correct means that every answer token is the arg-max given the gold tokens before it, and that the arg-max after the
answer does not prolong it: what greedy decoding would have produced, in one forward pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any

import numpy as np

from ctxeval.engine.plan import Prompt
from ctxeval.model.scores import TokenScores
from ctxeval.probes.excerpt import excerpt
from ctxeval.probes.measurement import Measurement
from ctxeval.probes.packing import Candidate, GridCell, choose, least_apart
from ctxeval.probes.sites import SiteRule, lead_in, nearest_depth
from ctxeval.probes.task import Needle, NeedleTask, make_needle
from ctxeval.text.assemble import Frame, Insertion, Question, assemble, reach
from ctxeval.text.documents import Document


@dataclass(frozen=True)
class NeedleGrid:
    """What the needle probe asks: lengths in tokens, depths in percent, and the seeds' coordinates."""

    lengths: tuple[int, ...]
    depths: tuple[float, ...]
    native_window: int
    seed: int
    trials: int
    needles_per_context: int


@dataclass(frozen=True, eq=False)
class NeedleProbe:
    """Builds the measurements of the needle probe for one tokenizer and task."""

    task: NeedleTask
    frame: Frame
    grid: NeedleGrid

    @cached_property
    def rule(self) -> SiteRule:
        """The site rule, with room for the longest wording of the task."""
        reserve = 0
        value = "8" * self.task.digits
        longest = sorted(self.task.keys, key=len)[-8:]
        for form in self.task.wordings:
            statements = [self.frame.statement(form.statement.format(key=key, value=value)) for key in longest]
            questions = [
                self.frame.question(form.question.format(key=key), form.lead.format(key=key), value) for key in longest
            ]
            reserve = max(reserve, max(map(len, statements)) + max(map(len, questions)))
        # Rarely a short key takes more tokens than a long one: eight tokens cover the difference.
        return SiteRule(lead_in(self.grid.native_window), reserve + 8, len(self.frame.prefix))

    def exact(self, document: Document, trial: int) -> list[Measurement]:
        """One needle a context, at every length and depth; and the same haystack without a needle as control."""
        measurements = []
        for length in self.grid.lengths:
            for site, depth in self._distinct_sites(document, length).items():
                needle = self._needle(document, trial, site)
                measurements.append(self._measure(document, trial, "exact", [(site, needle)], needle, length, depth))
        stranger = self._stranger(document, trial, ())
        measurements += [
            self._measure(document, trial, "exact", [], stranger, length, None) for length in self.grid.lengths
        ]
        return measurements

    def _distinct_sites(self, document: Document, length: int) -> dict[int, float]:
        """Return the sites of one length, each with its depth.

        In short contexts several depths fall on one sentence start: that is one needle, of the depth it is nearest to.
        """
        found: dict[int, float] = {}
        for depth in self.grid.depths:
            site = self.rule.site(depth, length, document.sentence_starts)
            real = self.rule.depth(site + self.rule.prefix, length)
            if site not in found or abs(depth - real) < abs(found[site] - real):
                found[site] = depth
        return found

    def packed(self, document: Document, trial: int, counts: Counter[GridCell]) -> list[Measurement]:
        """Several needles a context, each asked for at every length beyond it; `counts` balances the grid's cells.

        A row's depth is that of the grid nearest to where the needle really stands.
        """
        name = f"packing:{self.grid.seed}:{document.index}:{trial}"
        chosen = choose(
            self._candidates(document, trial),
            counts,
            self.grid.needles_per_context,
            lambda site: Random(f"{name}:{site}").random(),
            least_apart(self.grid.native_window),
        )
        hidden = self._place(document, chosen)
        measurements = []
        shift = 0
        for site, needle in hidden:
            position = self.rule.prefix + shift + site
            shift += len(self.frame.statement(needle.statement))
            for length, depth in self._cells(position):
                measurements.append(self._measure(document, trial, "packed", hidden, needle, length, depth))
        stranger = self._stranger(document, trial, [one.needle for one in chosen])
        measurements += [
            self._measure(document, trial, "packed", hidden, stranger, length, None) for length in self.grid.lengths
        ]
        return measurements

    def exact_subset(
        self, document: Document, trial: int, packed: Sequence[Measurement], rank: int, rows: int
    ) -> list[Measurement]:
        """Repeat `rows` of a packed context's measurements with their needle alone in its haystack.

        `rank` is the context's place in the order of execution: lengths and needles rotate with it, so that few rows,
        each of another document, cover the grid. (Only rows of different documents can prove a disagreement.)
        """
        asked = [one.columns for one in packed if not one.columns["control"]]
        lengths = sorted({columns["context_length"] for columns in asked})
        chosen: dict[tuple[str, int], Mapping[str, Any]] = {}
        for index in range(rank * rows, (rank + 1) * rows):
            length = lengths[index % len(lengths)] if lengths else 0
            there = [columns for columns in asked if columns["context_length"] == length]
            if there:
                columns = there[(index * 5 + index // len(lengths)) % len(there)]
                chosen[columns["needle_id"], length] = columns
        measurements = []
        for columns in chosen.values():
            site = int(columns["needle_id"].rsplit(".", 1)[1])
            needle = self._needle(document, trial, site)
            length, depth = columns["context_length"], columns["depth_percent"]
            measurements.append(self._measure(document, trial, "exact", [(site, needle)], needle, length, depth))
        return measurements

    def _cells(self, position: int) -> tuple[GridCell, ...]:
        """Return the grid cells that a needle at an absolute position serves: every length that it fits into."""
        found = []
        for length in self.grid.lengths:
            depth = nearest_depth(self.rule.depth(position, length), self.grid.depths)
            if position + self.rule.reserve <= length and depth is not None:
                found.append((length, depth))
        return tuple(found)

    def _candidates(self, document: Document, trial: int) -> list[Candidate]:
        grid, rule = self.grid, self.rule
        sites = {rule.site(depth, length, document.sentence_starts) for length in grid.lengths for depth in grid.depths}
        return [
            Candidate(site, self._needle(document, trial, site), cells)
            for site in sorted(sites)
            if (cells := self._cells(site + rule.prefix))
        ]

    def _place(self, document: Document, chosen: Sequence[Candidate]) -> list[tuple[int, Needle]]:
        """Return the text token before which each needle stands in a shared context.

        Needles before it push a needle back; it moves forward in the text by as much, to a sentence start, so that its
        absolute position is the one it has alone (never later: what fits alone fits here; never in the lead-in).
        """
        placed: list[tuple[int, Needle]] = []
        shift, earliest = 0, max(self.rule.lead_in - self.rule.prefix, 0)
        for one in chosen:
            wanted = one.site - shift
            index = int(np.searchsorted(document.sentence_starts, wanted, side="right")) - 1
            start = int(document.sentence_starts[index]) if index >= 0 else -1
            site = start if start >= earliest else wanted
            statement = len(self.frame.statement(one.needle.statement))
            placed.append((site, one.needle))
            shift, earliest = shift + statement, site + max(least_apart(self.grid.native_window) - statement, 1)
        return placed

    def _needle(self, document: Document, trial: int, site: int) -> Needle:
        return make_needle(
            self.task, seed=self.grid.seed, document=document.index, trial=trial, site=site, forbidden=document.text
        )

    def _stranger(self, document: Document, trial: int, present: Sequence[Needle]) -> Needle:
        """Return a needle that is not in the context: another key, value and, where there are enough, wording."""
        taken = {one.key for one in present}, {one.value for one in present}, {one.wording for one in present}
        for site in range(-1, -2000, -1):
            needle = self._needle(document, trial, site)
            fresh_wording = needle.wording not in taken[2] or len(taken[2]) >= len(self.task.wordings)
            if needle.key not in taken[0] and needle.value not in taken[1] and fresh_wording:
                return needle
        raise AssertionError("no needle left for the control")

    def _measure(
        self,
        document: Document,
        trial: int,
        plan: str,
        hidden: Sequence[tuple[int, Needle]],
        asked: Needle,
        length: int,
        depth: float | None,
    ) -> Measurement:
        question = self.frame.question(asked.question, asked.lead, asked.value)
        inside = self._visible(hidden, question, length)
        insertions = [Insertion(site, self.frame.statement(one.statement)) for site, one in inside]
        built = assemble(self.frame, document.ids, insertions, question, length)
        where = [position for (_, one), position in zip(inside, built.positions, strict=True) if one is asked]
        if bool(where) != (depth is not None):
            raise AssertionError(f"needle {asked.needle_id} at {length} tokens: depth {depth}, found at {where}")
        statement = len(self.frame.statement(asked.statement))
        columns = {
            "probe": "needle",
            "task": self.task.name,
            "control": "" if where else "no-needle",
            "plan": plan,
            "context_length": length,
            "depth_percent": depth,
            "document": document.index,
            "trial": trial,
            "needle_id": asked.needle_id,
            "needle_position": where[0] if where else None,
            "needle_distance": built.question_position - (where[0] + statement - 1) if where else None,
            "n_needles": len(inside),
            "expected": asked.value,
            "answer_tokens": len(question.answer_ids),
        }
        prompt = Prompt(built.ids, built.answer_position, length + 1)
        shown = reach(self.frame, insertions, question, length)
        around = next((excerpt(document, site, shown, one) for site, one in inside if one is asked), None)
        return Measurement(columns, (prompt,), _Reading(self.frame, question, asked.value), around)

    def _visible(
        self, hidden: Sequence[tuple[int, Needle]], question: Question, length: int
    ) -> list[tuple[int, Needle]]:
        """Return the needles, in order of site, that stand whole within a context of `length` tokens."""
        visible: list[tuple[int, Needle]] = []
        for site, needle in hidden:
            more = [*visible, (site, needle)]
            insertions = [Insertion(at, self.frame.statement(one.statement)) for at, one in more]
            if site > reach(self.frame, insertions, question, length):
                break
            visible = more
        return visible


@dataclass(frozen=True, eq=False)
class _Reading:
    """Reads a needle row's measured columns off the scores of its answer tokens and of the position after them."""

    frame: Frame
    question: Question
    expected: str

    def __call__(self, scores: Sequence[TokenScores]) -> Mapping[str, Any]:
        (score,) = scores
        count = len(self.question.answer_ids)
        nll, margin = score.nll[:count], score.margin
        if not (np.isfinite(nll).all() and np.isfinite(margin).all()):
            return {"status": "nan", "reason": "the logits of the answer are not finite"}
        exact = bool((score.argmax[:count] == self.question.answer_ids).all())
        prolonged = self.frame.continues(int(score.argmax[count]), self.expected)
        shown = score.argmax[: count + 1] if exact and prolonged else score.argmax[:count]
        return {
            "correct": exact and not prolonged,
            "answer_logprob": -float(nll.sum()),
            "margin": float(margin[:count].min()),
            "got": self.frame.tokenizer.decode(shown).strip(),
        }
