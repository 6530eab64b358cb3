"""Thousands of synthetic runs at a time: the states and the order of `analysis.onset`, by the same bounds.

`test_simulation` compares it, run by run, with `headline` on data frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from ctxeval.analysis.formulas import t_quantile
from ctxeval.analysis.onset import RATIO_BROKEN, RATIO_HOLDS, RECALL_BROKEN, RECALL_HOLDS, State, order
from ctxeval.analysis.trial_runs import Batch, pooled_prior

NATIVE = 2048
LENGTHS = (1024, 2048, 3072, 4096, 5120, 6144, 8192)
#: Token-free: the tail of a document has one size, so that a loss is its mean excess in nats a token.
FLOOR, EPSILON = 0.85, 0.05


@dataclass(frozen=True)
class Drawn:
    """Runs of one scaling: `own` and `base` (the unpatched model) hits by length, `excess` (runs, documents) nats."""

    own: dict[int, Batch]
    base: dict[int, Batch]
    excess: dict[int, Any]


def rates(generator: np.random.Generator, mean: float, correlation: float, luck: Any) -> Any:
    """Return beta hit rates of documents at the quantiles `luck`: two needles of one correlate by `correlation`."""
    if correlation == 0 or mean in (0, 1):
        return np.full(luck.shape, mean)
    spread = 1 / correlation - 1
    return stats.beta.ppf(luck, mean * spread, (1 - mean) * spread)


def draw_runs(
    seed: Sequence[int],
    recalls: Sequence[float],
    excesses: Sequence[float],
    *,
    runs: int,
    documents: int,
    correlation: float = 0.15,
    needles: float = 9,
    spread: float = 0.02,
    reference: float = 0.95,
    alike: bool = False,
) -> Drawn:
    """Draw runs with a recall and an excess loss at each of `LENGTHS`.

    `alike`: a document that is hard at one length is as hard at all of them, and for the unpatched model.
    """
    generator = np.random.default_rng(list(seed))
    sizes = np.diff(np.floor(np.arange(documents + 1) * needles + 1e-9)).astype(int)
    shared = generator.random((runs, documents))

    def batch(mean: float) -> Batch:
        if alike:
            return Batch(generator.binomial(sizes, rates(generator, mean, correlation, shared)), sizes)
        if correlation == 0 or mean in (0, 1):
            return Batch(generator.binomial(sizes, np.full((runs, documents), mean)), sizes)
        width = 1 / correlation - 1
        own = generator.beta(mean * width, (1 - mean) * width, size=(runs, documents))
        return Batch(generator.binomial(sizes, own), sizes)

    own = {length: batch(mean) for length, mean in zip(LENGTHS, recalls, strict=True)}
    base = {length: batch(reference) for length in LENGTHS if NATIVE / 2 <= length <= NATIVE}
    excess = {
        length: generator.normal(mean, spread, size=(runs, documents))
        for length, mean in zip(LENGTHS, excesses, strict=True)
    }
    return Drawn(own, base, excess)


def recall_state_table(drawn: Drawn) -> Any:
    """Return (runs, lengths) states of recall, as `recall_states`."""
    sizes = sum((one.sizes for one in drawn.base.values()), np.zeros(1))
    reference = Batch(sum((one.hits for one in drawn.base.values()), np.zeros(1)), sizes)
    prior = pooled_prior([*drawn.own.values(), *drawn.base.values()])
    runs, count = len(reference.hits), len(LENGTHS)
    handed = np.zeros(runs)
    columns = []
    for index, batch in enumerate(drawn.own.values()):
        share = 0.5 if index == 0 else 0.5 / (count - 1)
        level = handed + share * RECALL_HOLDS
        broken = batch.difference(reference, FLOOR, RECALL_BROKEN / count, prior)[1] < 0
        holds = np.zeros(runs, dtype=bool)
        for one in np.unique(level):
            holds |= (level == one) & (batch.difference(reference, FLOOR, float(one), prior)[0] >= 0)
        holds &= ~broken
        handed = np.where(holds, level, 0.0)
        columns.append(np.select([broken, holds], ["broken", "holds"], "undecided"))
    return np.column_stack(columns)


def ratio_state_table(drawn: Drawn) -> Any:
    """Return (runs, lengths) states of the ratio, as `ratio_states`."""
    columns = []
    bar = np.log1p(EPSILON)
    for excess in drawn.excess.values():
        documents = excess.shape[1]
        mean, error = excess.mean(axis=1), excess.std(axis=1, ddof=1) / np.sqrt(documents)
        low = mean - t_quantile(RATIO_BROKEN / len(LENGTHS), documents - 1) * error
        high = mean + t_quantile(RATIO_HOLDS / len(LENGTHS), documents - 1) * error
        columns.append(np.select([low > bar, high <= bar], ["broken", "holds"], "undecided"))
    return np.column_stack(columns)


def orders(drawn: Drawn) -> list[str]:
    """Return the order that each run names."""
    recall, ratio = recall_state_table(drawn), ratio_state_table(drawn)
    named: list[str] = []
    for own, other in zip(recall, ratio, strict=True):
        states: tuple[dict[int, State], ...] = tuple(dict(zip(LENGTHS, row, strict=True)) for row in (own, other))
        named.append(order(*states))
    return named
