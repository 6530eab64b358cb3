"""Intervals in which documents, not rows, are the units: rows of one document resemble each other."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

#: Prior of the design effect: the correlation of two rows of one document, and how many documents it is worth.
#: It is what makes an all-hit cell wider than its rows suggest; chosen by simulation (tests/analysis/test_coverage.py).
PRIOR_CORRELATION = 0.3
PRIOR_DOCUMENTS = 3.0
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


@lru_cache(maxsize=4096)
def t_quantile(tail: float, freedom: float) -> float:
    """Return the value that Student's t exceeds with a chance of `tail`."""
    return float(stats.t.ppf(1 - tail, freedom))


def share_quantile(tail: float, documents: int) -> float:
    """Return the quantile of a share over `documents`, the documents that the prior is worth counted in."""
    return t_quantile(tail, max(documents - 1, 0) + PRIOR_DOCUMENTS)


def wilson(share: Any, n: Any, quantile: float) -> tuple[Any, Any]:
    """Return the score interval of a proportion (Wilson 1927); `n` may be fractional. Never of zero width.

    `share` and `n` may be arrays of one shape; so are the bounds then.
    """
    squared = quantile * quantile
    centre = (share + squared / (2 * n)) / (1 + squared / n)
    half = quantile / (1 + squared / n) * np.sqrt(share * (1 - share) / n + squared / (4 * n * n))
    return np.maximum(0.0, centre - half), np.minimum(1.0, centre + half)


def design_effect(value: Any, hits: Any, kish: Any, squares: Any, rows: float, documents: int) -> tuple[Any, Any]:
    """Return how many times the variance of independent rows the documents show, and how much that is worth.

    The first is 0 where the second is. All but `rows` and `documents` may be arrays of one shape, a run each.

    Args:
        value: share of hits.
        hits: number of hits.
        kish: rows that the weights leave (Kish's n).
        squares: sum of the documents' squared residuals.
        rows: number of rows.
        documents: number of documents.
    """
    information = np.maximum(np.minimum(np.minimum(hits, rows - hits), documents) - 1.0, 0.0)
    informed = information > 0
    independent = np.where(informed, value * (1 - value) / kish, 1.0)
    return np.where(informed, documents / max(documents - 1, 1) * squares / independent, 0.0), information


def believed_effect(seen: Any, information: Any, others: float, prior: Any) -> Any:
    """Return the design effect seen in the data averaged with the prior one; at least 1. See `cluster_proportion`."""
    believed = 1 + others * prior
    return np.maximum(1.0, (information * seen + PRIOR_DOCUMENTS * believed) / (information + PRIOR_DOCUMENTS))


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


def recovered(
    first: Any, first_bounds: tuple[Any, Any], second: Any, second_bounds: tuple[Any, Any], factor: float, shared: Any
) -> tuple[Any, Any]:
    """Return bounds of `first − factor · second` from those of the two; all may be arrays of one shape."""
    gap = first - factor * second
    low, high = first_bounds[0], first_bounds[1]
    other_low, other_high = factor * second_bounds[0], factor * second_bounds[1]

    def reach(one: Any, two: Any) -> Any:
        return np.sqrt(np.maximum(one * one + two * two - 2 * shared * one * two, 0.0))

    below = reach(first - low, other_high - factor * second)
    above = reach(high - first, factor * second - other_low)
    return gap - below, gap + above


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


def shrunk_correlation(seen: Any, documents: int) -> Any:
    """Return a correlation over documents as far as it is believed; `seen` may be an array."""
    clipped = np.clip(seen, -1.0, 1.0)
    return np.where(clipped > 0, clipped * max(documents - 3, 0) / (documents + 1), clipped)


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
