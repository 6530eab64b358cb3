"""The headline of a run: a row a scaling, with recall, perplexity ratio, states and the verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ctxeval.analysis.effective import nolima_length, ruler_length
from ctxeval.analysis.onset import (
    Onset,
    Order,
    State,
    blind_spot,
    holds_through,
    length_label,
    onset,
    order,
    ratio_states,
    recall_states,
)
from ctxeval.analysis.perplexity import NO_PERPLEXITY, Perplexity, finished, paired, perplexity, perplexity_rows
from ctxeval.analysis.recall import (
    asked,
    control_rate,
    document_correlation,
    incomplete,
    main_plan,
    recall,
    reference_rows,
    scored,
    unpatched_inside,
)
from ctxeval.analysis.stats import NOTHING, Estimate
from ctxeval.errors import UsageError

#: R must be credibly above this (and above the no-needle control) for a verdict.
NO_SIGNAL_RECALL = 0.1


@dataclass(frozen=True)
class LengthResult:
    """What one scaling shows at one length (tokens).

    Of the rows asked for, `*_nan` counts those whose logits or loss were not finite (a needle among them is a miss in
    `recall`; `perplexity` is then nan, and broken), and `*_missing` those without a result, or without a baseline.
    """

    length: int
    recall: Estimate
    perplexity: Perplexity
    recall_state: State
    ratio_state: State
    recall_nan: int = 0
    recall_missing: int = 0
    ratio_nan: int = 0
    ratio_missing: int = 0


@dataclass(frozen=True)
class ScalingResult:
    """One row of the headline. `*_through` is the longest length up to which the probe holds, in tokens.

    `effective_length` is ours: the longest, in tokens, up to which recall (the point estimate) stays at floor · R; the
    others are as those benchmarks define them, see `analysis.effective`.
    """

    scale: str
    factor: float
    lengths: tuple[LengthResult, ...]
    recall_onset: Onset
    ratio_onset: Onset
    recall_through: int | None
    ratio_through: int | None
    effective_length: int | None
    blind_spot: tuple[int, ...]
    order: Order
    verdict: str
    ruler_length: int | None = None
    nolima_length: int | None = None


@dataclass(frozen=True)
class Headline:
    """The answer of a run.

    `reference` is R, the unpatched model's recall inside its window; `reference_missing` counts the rows that it lacks.
    """

    native_window: int
    lengths: tuple[int, ...]
    plan: str
    epsilon: float
    floor: float
    reference: Estimate
    control: Estimate
    signal: bool
    rows: tuple[ScalingResult, ...]
    reference_missing: int = 0


def headline(
    cells: pd.DataFrame,
    *,
    native_window: int,
    lengths: Sequence[int],
    scalings: Sequence[str],
    epsilon: float = 0.05,
    floor: float = 0.85,
) -> Headline:
    """Summarise the cells of a run: see `Headline`.

    Args:
        cells: rows of cells.jsonl.
        native_window: tokens; R is read at lengths in [native / 2, native].
        lengths: the grid, tokens.
        scalings: labels as in the column `scale`, in the order of the rows; `none` is put first.
        epsilon: perplexity is broken where the ratio is credibly above 1 + epsilon.
        floor: recall is broken where it is credibly below floor · R.
    """
    grid = tuple(sorted(set(lengths)))
    needles = asked(cells)
    hits = scored(needles)
    # Without NaN: whole documents of it at one length would say that rows are alike at every length.
    prior = document_correlation(hits[hits["status"] == "ok"])
    found = recall(reference_rows(hits, native_window), prior)
    reference = found.estimate() if found else NOTHING
    lacking = len(unpatched_inside(needles, native_window)) - reference.rows
    control = control_rate(cells)
    chance = max(NO_SIGNAL_RECALL, control.value if control.measured else 0.0)
    signal = not reference.measured or reference.low > chance
    losses = perplexity_rows(cells)
    # Python's sort is stable: the baseline comes first, the others keep their order.
    labels = sorted(dict.fromkeys(scalings), key=lambda label: label != "none")
    rows = []
    for label in labels:
        own, own_losses = needles[needles["scale"] == label], losses[losses["scale"] == label]
        lost = incomplete(own)
        retrieval = recall_states(scored(own), hits, grid, native_window, floor=floor, prior=prior, incomplete=lost)
        ratio = ratio_states(own_losses, grid, epsilon)
        states = {length: (retrieval[length], ratio[length]) for length in grid}
        results = tuple(_at(own, own_losses, length, states[length], prior) for length in grid)
        factor = cells.loc[cells["scale"] == label, "factor"]
        bar = floor * reference.value if signal and reference.measured else None
        rows.append(_scaling(label, float(factor.iloc[0]) if len(factor) else math.nan, results, signal, bar))
    plan = main_plan(cells)
    return Headline(native_window, grid, plan, epsilon, floor, reference, control, signal, tuple(rows), lacking)


def _at(
    needles: pd.DataFrame, losses: pd.DataFrame, length: int, states: tuple[State, State], prior: float
) -> LengthResult:
    here, loss = needles[needles["context_length"] == length], losses[losses["context_length"] == length]
    hits, done = scored(here), finished(loss)
    found = recall(hits, prior)
    infinite = int((loss["status"] == "nan").sum())
    return LengthResult(
        length=length,
        recall=found.estimate() if found else NOTHING,
        perplexity=NO_PERPLEXITY if infinite else perplexity(done),
        recall_state=states[0],
        ratio_state=states[1],
        recall_nan=int((here["status"] == "nan").sum()),
        recall_missing=len(here) - len(hits),
        ratio_nan=infinite,
        ratio_missing=len(loss) - len(paired(done)) - infinite,
    )


def _scaling(
    label: str, factor: float, results: tuple[LengthResult, ...], signal: bool, bar: float | None
) -> ScalingResult:
    retrieval = {result.length: result.recall_state for result in results}
    ratio = {result.length: result.ratio_state for result in results}
    which = order(retrieval, ratio, signal)
    blind = blind_spot(retrieval, ratio) if signal else ()
    # What is left of a length with needles missing may be the easy part.
    scores = {one.length: one.recall.value for one in results if one.recall.measured and not one.recall_missing}
    return ScalingResult(
        scale=label,
        factor=factor,
        lengths=results,
        recall_onset=onset(retrieval),
        ratio_onset=onset(ratio),
        recall_through=holds_through(retrieval),
        ratio_through=holds_through(ratio),
        effective_length=_effective(results, bar),
        blind_spot=blind,
        order=which,
        verdict=_sentence(which, retrieval, ratio),
        ruler_length=ruler_length(scores),
        nolima_length=nolima_length(scores),
    )


def _effective(results: tuple[LengthResult, ...], bar: float | None) -> int | None:
    """Return the longest length with recall (the point estimate) at `bar`, all shorter ones too.

    `bar` is `None` where there is nothing to compare with. A length with needles missing ends it: what is left of it
    may be the easy part.
    """
    longest = None
    for result in results:
        if bar is None or result.recall_missing or not result.recall.value >= bar:
            break
        longest = result.length
    return longest


def _sentence(which: Order, retrieval: dict[int, State], ratio: dict[int, State]) -> str:
    if which == "no signal":
        return "no signal (the unpatched model hardly finds a needle inside its own window), so no verdict"
    if which == "nothing measured":
        return which
    courses = []
    if which != "perplexity only":
        courses.append(_course("recall", retrieval))
    if which != "retrieval only":
        courses.append(_course("perplexity", ratio))
    openings = {
        "both": "both break at the same length",
        "neither": "neither breaks",
        "not resolved": "order not resolved",
        "retrieval only": "perplexity not measured",
        "perplexity only": "retrieval not measured",
    }
    return f"{openings.get(which, which)}: {', '.join(courses)}"


def _course(name: str, states: dict[int, State]) -> str:
    where, through = onset(states), holds_through(states)
    if where.by is not None:
        course = f"breaks {'at' if where.after is None else 'in'} {where}"
    elif through is None:
        course = "undecided"
    else:
        undecided = any(state == "undecided" for state in states.values())
        course = f"holds through {length_label(through)}" + (", undecided beyond" if undecided else "")
    unmeasured = ", ".join(length_label(length) for length in sorted(states) if states[length] == "missing")
    return f"{name} {course}" + (f", not measured at {unmeasured}" if unmeasured else "")


def from_manifest(cells: pd.DataFrame, manifest: dict[str, Any]) -> Headline:
    """Summarise the cells of a run on the grid that its manifest resolved.

    Raises:
        UsageError: the manifest does not say what that is.
    """
    try:
        resolved = manifest["resolved"]
        window, lengths = int(resolved["native_window"]), [int(length) for length in resolved["lengths"]]
        labels = [str(scaling["label"]) for scaling in resolved["scalings"]]
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"the run's manifest does not say what was asked for ({type(error).__name__}: {error})",
            "it is damaged, or was written by another version",
        ) from None
    if not lengths or not labels:
        raise UsageError("the run's manifest has no lengths or no scalings", "it is damaged")
    return headline(cells, native_window=window, lengths=lengths, scalings=labels)
