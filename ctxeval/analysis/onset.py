"""At which length retrieval and perplexity break, and which of the two breaks first."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from ctxeval.analysis.formulas import PRIOR_CORRELATION
from ctxeval.analysis.perplexity import paired, ratio_bounds
from ctxeval.analysis.recall import alike, recall, reference_rows
from ctxeval.analysis.stats import scaled_difference

State = Literal["holds", "broken", "undecided", "missing"]
Order = Literal[
    "retrieval first",
    "perplexity first",
    "both",
    "neither",
    "not resolved",
    "no signal",
    "retrieval only",
    "perplexity only",
    "nothing measured",
]
States = Mapping[int, State]

#: Chance of any false state of a kind over all lengths of a scaling. A wrong "retrieval first" needs a false `broken`
#: of recall or a false `holds` of the ratio, a wrong "perplexity first" the reverse: either pair adds up to 5 %.
#: `holds` of recall gets the most, because shares near 1 are the hardest to tell from 0.85 · R.
RECALL_BROKEN, RATIO_HOLDS = 0.025, 0.025
RECALL_HOLDS, RATIO_BROKEN = 0.04, 0.01


@dataclass(frozen=True)
class Onset:
    """Where a probe breaks: after `after` tokens (the last length that holds; `None`: none does) and by `by` tokens.

    `by` is the first broken length, `None` where no length is broken.
    """

    after: int | None
    by: int | None

    def __str__(self) -> str:
        if self.by is None:
            return "not broken"
        return (
            f"≤ {length_label(self.by)}"
            if self.after is None
            else f"({length_label(self.after)}, {length_label(self.by)}]"
        )


def length_label(length: int) -> str:
    """Write a length in tokens as `16K` (16,384), `2.5K` (2,560) or, where neither is exact, in full."""
    return f"{length / 1024:g}K" if length >= 1024 and length % 128 == 0 else str(length)


def recall_states(
    rows: pd.DataFrame,
    baseline: pd.DataFrame,
    lengths: Sequence[int],
    native_window: int,
    *,
    floor: float = 0.85,
    prior: float = PRIOR_CORRELATION,
    incomplete: Container[int] = (),
) -> dict[int, State]:
    """Judge recall at each length against `floor` · R, R being the unpatched model's recall inside its window.

    R is taken on the documents and depths of the length in question, and its uncertainty is propagated. States are
    simultaneous over the lengths measured: `broken` by Bonferroni; `holds` from the shortest up by the fallback
    procedure (Wiens and Dmitrienko 2005), half of the error rate starting at the shortest and each length that holds
    handing its own on to the next.

    Args:
        rows: scored needle rows of one scale.
        baseline: scored needle rows that hold the reference; others are ignored.
        prior: see `recall`.
        incomplete: lengths at which some needles have no result; what is left there can break, but not hold.
    """
    measured = [length for length in sorted(lengths) if (rows["context_length"] == length).any()]
    reference = reference_rows(baseline, native_window)
    states: dict[int, State] = dict.fromkeys(lengths, "missing")
    handed_on = 0.0
    for length in measured:
        share = 0.5 if length == measured[0] else 0.5 / (len(measured) - 1)
        level, handed_on = handed_on + share * RECALL_HOLDS, 0.0
        here = rows[rows["context_length"] == length]
        same = alike(reference, here["document"], here["depth_percent"])
        here = alike(here, same["document"], same["depth_percent"])
        found, known = recall(here, prior), recall(same, prior)
        states[length] = "undecided"
        if found is None or known is None:
            continue
        if scaled_difference(found, known, floor, RECALL_BROKEN / len(measured))[1] < 0:
            states[length] = "broken"
        elif length not in incomplete and scaled_difference(found, known, floor, level)[0] >= 0:
            states[length], handed_on = "holds", level
    return states


def ratio_states(rows: pd.DataFrame, lengths: Sequence[int], epsilon: float = 0.05) -> dict[int, State]:
    """Judge the perplexity ratio at each length against 1 + `epsilon`; states are simultaneous (Bonferroni).

    A loss that is NaN counts as infinite, and so does the mean over all documents: the length is broken. Where rows
    have no result otherwise, or no baseline, what is left can break, but not hold.

    Args:
        rows: perplexity rows of one scale, whatever became of them.
    """
    usable = paired(rows)
    measured = [length for length in sorted(lengths) if (usable["context_length"] == length).any()]
    states: dict[int, State] = dict.fromkeys(lengths, "missing")
    for length in measured:
        here = usable[usable["context_length"] == length]
        low, _ = ratio_bounds(here, RATIO_BROKEN / len(measured))
        _, high = ratio_bounds(here, RATIO_HOLDS / len(measured))
        whole = len(here) == (rows["context_length"] == length).sum()
        states[length] = "broken" if low > 1 + epsilon else "holds" if whole and high <= 1 + epsilon else "undecided"
    for length in rows.loc[rows["status"] == "nan", "context_length"]:
        states[length] = "broken"
    return {length: states[length] for length in lengths}


def onset(states: States) -> Onset:
    """Return the interval in which a probe breaks: (last length that holds before it, first that is broken]."""
    lengths = sorted(states)
    by = next((length for length in lengths if states[length] == "broken"), None)
    held = [length for length in lengths if states[length] == "holds" and (by is None or length < by)]
    return Onset(held[-1] if held else None, by)


def holds_through(states: States) -> int | None:
    """Return the longest length that holds together with every shorter one of the grid, in tokens."""
    longest = None
    for length in sorted(states):
        if states[length] != "holds":
            break
        longest = length
    return longest


def blind_spot(recall_state: States, ratio_state: States) -> tuple[int, ...]:
    """Return the lengths at which recall is broken while the perplexity ratio holds."""
    shared = sorted(set(recall_state) & set(ratio_state))
    return tuple(length for length in shared if (recall_state[length], ratio_state[length]) == ("broken", "holds"))


def order(recall_state: States, ratio_state: States, signal: bool = True) -> Order:
    """Say which probe breaks first.

    A probe is first only if there is a length at which it is broken and the other credibly holds; where lengths point
    both ways, the shortest decides. Where there is no such length, one of the two states must be wrong for a probe to
    be named, and the error rates of the two add up to 5 % over all lengths. A length of the grid that was not measured
    is no evidence of holding.
    """
    has_recall = any(state != "missing" for state in recall_state.values())
    has_ratio = any(state != "missing" for state in ratio_state.values())
    if not (has_recall or has_ratio):
        return "nothing measured"
    if has_recall and not signal:
        return "no signal"
    if not has_ratio:
        return "retrieval only"
    if not has_recall:
        return "perplexity only"
    retrieval, perplexity = blind_spot(recall_state, ratio_state), blind_spot(ratio_state, recall_state)
    if retrieval or perplexity:
        return "retrieval first" if min(retrieval + perplexity) in retrieval else "perplexity first"
    pairs = [(recall_state[length], ratio_state[length]) for length in sorted(set(recall_state) & set(ratio_state))]
    if all(pair == ("holds", "holds") for pair in pairs):
        return "neither"
    first = next((index for index, pair in enumerate(pairs) if pair != ("holds", "holds")), len(pairs))
    return "both" if pairs[first] == ("broken", "broken") else "not resolved"
