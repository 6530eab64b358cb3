"""Rows of a baseline and of a candidate, brought together: the same needles, the same documents."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from ctxeval.analysis.formulas import PRIOR_CORRELATION, PRIOR_DOCUMENTS
from ctxeval.analysis.stats import Array
from ctxeval.errors import UsageError

NEEDLE = ["context_length", "document", "trial", "depth_percent", "needle_id"]
LOSS = ["context_length", "document", "trial"]


@dataclass(frozen=True, eq=False)
class Pairs:
    """Rows that both sides have, in one order, and how many only one of them has."""

    candidate: pd.DataFrame
    baseline: pd.DataFrame
    unpaired: int


def pair(candidate: pd.DataFrame, baseline: pd.DataFrame, keys: list[str]) -> Pairs:
    """Bring together the rows of one scaling each that agree in `keys`, which name a row.

    Raises:
        UsageError: a key is there twice.
    """
    one, other = (rows.set_index(keys, drop=False) for rows in (candidate, baseline))
    for rows in (one, other):
        if not rows.index.is_unique:
            again = rows.index[rows.index.duplicated()][0]
            raise UsageError(f"two rows of {dict(zip(keys, again, strict=True))}", "each is measured once")
    both = one.index.intersection(other.index, sort=False)
    unpaired = len(one) + len(other) - 2 * len(both)
    return Pairs(one.loc[both].reset_index(drop=True), other.loc[both].reset_index(drop=True), unpaired)


def pair_needles(candidate: pd.DataFrame, baseline: pd.DataFrame, same_needles: bool) -> Pairs:
    """Pair needle rows by document, depth and needle; where ids mean nothing, by their order in document and depth."""
    if not same_needles:
        candidate, baseline = (_counted(rows) for rows in (candidate, baseline))
    return pair(candidate, baseline, NEEDLE)


def _counted(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(needle_id=rows.groupby(NEEDLE[:-1]).cumcount().astype(str))


def cell_weights(rows: pd.DataFrame) -> pd.Series:
    """Return weights, summing to 1, under which every depth of a length counts the same; see `recall.recall`."""
    sizes = rows.groupby(["context_length", "depth_percent"], dropna=False)["document"].transform("size")
    weights = 1 / sizes.astype(float)
    return weights / weights.sum()


@dataclass(frozen=True)
class PairedProportion:
    """A difference of two weighted shares of hits over the same rows, documents being the units.

    `gained` and `lost` are the shares of pairs in which only the candidate, or only the baseline, hits.
    """

    gained: float
    lost: float
    rows: int
    documents: int
    effective_rows: float

    @property
    def value(self) -> float:
        """The candidate's share minus the baseline's."""
        return self.gained - self.lost

    def bounds(self, tail: float, growth: float = 1.0) -> tuple[float, float]:
        """Return bounds with a chance of `tail` beyond each, had there been `growth` times the documents.

        The adjusted Wald interval of Bonett and Price (2012), which adds one pair to either kind of disagreement, so
        that it is never of zero width; on the effective sample size, with a t quantile, as `stats` does with shares.
        """
        units = max(round(self.documents * growth), 1)
        quantile = float(stats.t.ppf(1 - tail, units - 1 + PRIOR_DOCUMENTS))
        n = self.effective_rows * growth
        gained, lost = ((share * n + 1) / (n + 2) for share in (self.gained, self.lost))
        half = quantile * math.sqrt((gained + lost - (gained - lost) ** 2) / (n + 2))
        # The value itself always lies inside, though the centre is drawn towards 0.
        low, high = min(gained - lost - half, self.value), max(gained - lost + half, self.value)
        return max(low, -1.0), min(high, 1.0)


def paired_proportion(shift: Any, weights: Any, documents: Any) -> PairedProportion:
    """Estimate the weighted sum of `shift`, the candidate's hit minus the baseline's.

    The design effect is estimated from the documents' totals and averaged with a prior, as in
    `stats.cluster_proportion`: a few disagreements tell little of it, none nothing. Simulated in
    tests/analysis/test_compare_coverage.py.

    Args:
        shift: (rows,) -1, 0 or 1; at least one row.
        weights: (rows,) positive, summing to 1; see `cell_weights`.
        documents: (rows,) labels.
    """
    change, weight = np.asarray(shift, dtype=float), np.asarray(weights, dtype=float)
    labels, index = np.unique(np.asarray(documents), return_inverse=True)
    gained, lost = (float(weight[change == sign].sum()) for sign in (1, -1))
    value, units, kish = gained - lost, labels.size, 1 / float(weight @ weight)
    residuals = np.bincount(index, weights=weight * (change - value))
    information = max(min(int((change != 0).sum()), units) - 1, 0)
    spread, seen = gained + lost - value**2, 0.0
    if information and spread > 0:
        seen = units / (units - 1) * float(residuals @ residuals) / (spread / kish)
    believed = 1 + (change.size / units - 1) * PRIOR_CORRELATION
    effect = (information * seen + PRIOR_DOCUMENTS * believed) / (information + PRIOR_DOCUMENTS)
    return PairedProportion(gained, lost, change.size, units, kish / max(effect, 1.0))


def bits_per_byte_change(candidate: pd.DataFrame, baseline: pd.DataFrame, tail: float) -> tuple[Array, Array]:
    """Return the change of Σ nll / Σ bytes in bits, its lower and upper bound, and what each document adds to it.

    The change is that of two ratios, linearised by document; a t interval as `stats.mean_bounds` has it.
    """
    scale = math.log(2)
    sums = [rows.groupby("document")[["nll", "bytes"]].sum() for rows in (candidate, baseline)]
    totals = [float(one["nll"].sum()) / float(one["bytes"].sum()) for one in sums]
    parts = [
        ((one["nll"] - total * one["bytes"]) / float(one["bytes"].sum())).to_numpy(float)
        for one, total in zip(sums, totals, strict=True)
    ]
    residuals = (parts[0] - parts[1]) / scale
    value, units = (totals[0] - totals[1]) / scale, len(residuals)
    half = math.inf
    if units > 1:
        error = math.sqrt(units / (units - 1) * float(residuals @ residuals))
        half = float(stats.t.ppf(1 - tail, units - 1)) * error
    return np.array([value, value - half, value + half]), residuals + value / units
