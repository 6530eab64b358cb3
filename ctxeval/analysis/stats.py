"""Intervals in which documents, not rows, are the units: rows of one document resemble each other."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxeval.analysis.formulas import (
    PRIOR_CORRELATION,
    believed_effect,
    design_effect,
    recovered,
    share_quantile,
    shrunk_correlation,
    t_quantile,
    wilson,
)

POOLING_WEIGHT = 10.0
EXACT_SIGN_FLIPS = 14
SAMPLED_SIGN_FLIPS = 20_000

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A value with its interval; all three are nan where nothing was measured."""

    value: float
    low: float
    high: float
    rows: int = 0
    documents: int = 0

    @property
    def measured(self) -> bool:
        """Whether there is a value at all."""
        return math.isfinite(self.value)


NOTHING = Estimate(math.nan, math.nan, math.nan)


@dataclass(frozen=True, eq=False)
class ClusterProportion:
    """A weighted share of hits whose units are documents.

    `residuals` are the linearised contributions of the documents (named by `labels`) to `value`: they sum to 0, and
    D / (D − 1) · Σ residual² estimates the variance of `value`. `correlation` is that of two rows of a document, as
    seen here, and `information` says how much that is worth (0: all rows agree, or all but one).
    """

    value: float
    rows: int
    effective_rows: float
    labels: NDArray[Any]
    residuals: Array
    correlation: float = 0.0
    information: float = 0.0

    @property
    def documents(self) -> int:
        """How many documents the share rests on."""
        return len(self.residuals)

    def bounds(self, tail: float) -> tuple[float, float]:
        """Return lower and upper bound with a chance of `tail` beyond each of them."""
        low, high = wilson(self.value, self.effective_rows, share_quantile(tail, self.documents))
        return float(low), float(high)

    def estimate(self, level: float = 0.95) -> Estimate:
        """Return the share with its two-sided interval."""
        low, high = self.bounds((1 - level) / 2)
        return Estimate(self.value, low, high, self.rows, self.documents)


def cluster_proportion(
    hits: Any, weights: Any, documents: Any, prior: float = PRIOR_CORRELATION
) -> ClusterProportion | None:
    """Estimate a weighted share of hits, and the number of independent rows it is worth. `None` without rows.

    The effective number of rows is Kish's n over the design effect (Dean and Pagano 2015: Wilson on the effective
    sample size, with a t quantile). The design effect seen in the data says nothing when all rows agree and little when
    one differs, so it is averaged with a prior: (ν · seen + ν₀ · prior) / (ν + ν₀), ν = min(misses, hits, D) − 1.

    Args:
        hits: (rows,) 0 or 1.
        weights: (rows,) positive; scaled here to sum to 1.
        documents: (rows,) labels of the clusters.
        prior: correlation of two rows of a document, before looking; see `pooled_correlation`.
    """
    hit = np.asarray(hits, dtype=float)
    if not hit.size:
        return None
    weight = np.asarray(weights, dtype=float)
    weight = weight / weight.sum()
    # Weights add up to 1 only nearly: without care an all-hit cell would be 99.99… %.
    value = float(hit[0]) if hit.min() == hit.max() else float(hit @ weight)
    labels, index = np.unique(np.asarray(documents), return_inverse=True)
    residuals = np.bincount(index, weights=weight * (hit - value)).astype(float)
    rows, units = hit.size, labels.size
    kish = 1 / float(weight @ weight)
    others = rows / units - 1
    squares = float(residuals @ residuals)
    seen, information = map(float, design_effect(value, hit.sum(), kish, squares, rows, units))
    effect = float(believed_effect(seen, information, others, prior))
    correlation = float(np.clip((seen - 1) / others, 0.0, 1.0)) if others > 0 else 0.0
    return ClusterProportion(
        value, rows, kish / effect, labels, residuals, correlation, information if others > 0 else 0.0
    )


def pooled_correlation(shares: Iterable[ClusterProportion]) -> float:
    """Return the within-document correlation over all cells of a run, shrunk towards the prior.

    Cells in which all rows agree cannot show it, so they borrow it from the others.
    """
    known = list(shares)
    weight = sum(share.information for share in known) + POOLING_WEIGHT
    seen = sum(share.information * share.correlation for share in known)
    return (seen + POOLING_WEIGHT * PRIOR_CORRELATION) / weight


def scaled_difference(
    first: ClusterProportion, second: ClusterProportion, factor: float, tail: float
) -> tuple[float, float]:
    """Return bounds of `first − factor · second`, with a chance of `tail` beyond each.

    The two intervals are combined by the method of variance estimates recovery (Zou and Donner 2008, eq. 8), which
    keeps their skew near 0 and 1; the correlation is that of the documents' residuals, 0 where it cannot be seen.
    """
    shared = _correlation(first, second)
    below, above = recovered(first.value, first.bounds(tail), second.value, second.bounds(tail), factor, shared)
    return float(below), float(above)


def _correlation(first: ClusterProportion, second: ClusterProportion) -> float:
    """Return the correlation of two shares over their common documents, a positive one shrunk towards 0.

    A positive correlation narrows the bounds of a difference. Two documents always correlate perfectly, three nearly:
    believed as seen, that alone would make a scaling "broken" on two documents.
    """
    _, one, two = np.intersect1d(first.labels, second.labels, assume_unique=True, return_indices=True)
    scale = math.sqrt(float((first.residuals @ first.residuals) * (second.residuals @ second.residuals)))
    shared = float(first.residuals[one] @ second.residuals[two])
    if scale < 1e-12:
        return 0.0
    return float(shrunk_correlation(shared / scale, len(one)))


def mean_bounds(totals: Any, sizes: Any, tail: float) -> tuple[float, float, float]:
    """Return Σ totals / Σ sizes and its t bounds, a chance of `tail` beyond each; documents are the units.

    The error is that of the jackknife, which for documents of one size is the usual standard error of a mean. With a
    single document nothing is known about the spread: the bounds are infinite, unless every total is exactly 0
    (a quantity compared with itself), where there is nothing to estimate.

    Args:
        totals: (documents,) for instance nats.
        sizes: (documents,) positive, for instance tokens.
    """
    total, size = np.asarray(totals, dtype=float), np.asarray(sizes, dtype=float)
    value = float(total.sum() / size.sum())
    if not total.any():
        return value, value, value
    units = total.size
    if units < 2:
        return value, -math.inf, math.inf
    without = (total.sum() - total) / (size.sum() - size)
    error = math.sqrt((units - 1) / units * float(((without - without.mean()) ** 2).sum()))
    half = t_quantile(tail, units - 1) * error
    return value, value - half, value + half


def sign_flip_p(differences: Any, seed: int = 0) -> float:
    """Return the two-sided p-value of paired differences, one a document, under random signs (Fisher 1935).

    All sign patterns are counted up to 14 non-zero differences; beyond that 20,000 are drawn with `seed`.
    """
    array = np.asarray(differences, dtype=float)
    array = array[array != 0]
    if not array.size:
        return 1.0
    observed = abs(array.sum()) - 1e-12
    if array.size <= EXACT_SIGN_FLIPS:
        signs = np.array(list(product((-1.0, 1.0), repeat=array.size)))
        return float((np.abs(signs @ array) >= observed).mean())
    signs = np.random.default_rng(seed).choice((-1.0, 1.0), size=(SAMPLED_SIGN_FLIPS, array.size))
    return float(((np.abs(signs @ array) >= observed).sum() + 1) / (SAMPLED_SIGN_FLIPS + 1))
