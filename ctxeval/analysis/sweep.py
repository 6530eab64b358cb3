"""Would the verdict be another one under other thresholds? Onsets and blind spot over ε and the floor of recall."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import pandas as pd

from ctxeval.analysis.headline import Headline, from_manifest
from ctxeval.analysis.onset import Onset, Order, blind_spot, onset, order, ratio_states, recall_states
from ctxeval.analysis.perplexity import perplexity_rows
from ctxeval.analysis.recall import asked, document_correlation, incomplete, scored

EPSILONS = (0.01, 0.02, 0.05, 0.1, 0.2)
FLOORS = (0.5, 0.7, 0.85, 0.95)


@dataclass(frozen=True)
class Swept:
    """What one scaling shows where perplexity breaks above 1 + `epsilon` and recall below `floor` · R.

    Onsets and the blind spot are in tokens, as in `ScalingResult`; `ratio_onset` depends on `epsilon` alone, and
    `recall_onset` on `floor`. Each pair of thresholds has error rates of its own: to choose the pair by its result
    is to give them up.
    """

    scale: str
    factor: float
    epsilon: float
    floor: float
    recall_onset: Onset
    ratio_onset: Onset
    blind_spot: tuple[int, ...]
    order: Order


def sweep(
    cells: pd.DataFrame,
    manifest: dict[str, Any],
    epsilons: Sequence[float] = EPSILONS,
    floors: Sequence[float] = FLOORS,
    summary: Headline | None = None,
) -> tuple[Swept, ...]:
    """Judge every scaling of a run under each pair of thresholds: by scaling, then floor, then ε, both ascending.

    Args:
        cells: rows of cells.jsonl.
        manifest: of the same run.
        epsilons: perplexity is broken where the ratio is credibly above 1 + ε.
        floors: recall is broken where it is credibly below floor · R; 0 to 1.
        summary: the headline of the cells, where there is one already.
    """
    head = summary or from_manifest(cells, manifest)
    needles, losses = asked(cells), perplexity_rows(cells)
    hits = scored(needles)
    prior = document_correlation(hits[hits["status"] == "ok"])
    found = []
    for row in head.rows:
        own, own_losses = needles[needles["scale"] == row.scale], losses[losses["scale"] == row.scale]
        lost = incomplete(own)
        retrieval = {
            floor: recall_states(
                scored(own), hits, head.lengths, head.native_window, floor=floor, prior=prior, incomplete=lost
            )
            for floor in sorted(floors)
        }
        ratio = {epsilon: ratio_states(own_losses, head.lengths, epsilon) for epsilon in sorted(epsilons)}
        for floor, epsilon in product(retrieval, ratio):
            states = retrieval[floor], ratio[epsilon]
            blind = blind_spot(*states) if head.signal else ()
            which = order(*states, head.signal)
            onsets = onset(states[0]), onset(states[1])
            factor = row.factor if math.isfinite(row.factor) else 1.0
            found.append(Swept(row.scale, factor, epsilon, floor, *onsets, blind, which))
    return tuple(found)
