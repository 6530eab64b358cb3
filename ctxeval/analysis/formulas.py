"""The formulas of `analysis.stats`, for one run or for many at a time: all but the numbers named may be arrays."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from scipy import stats

#: Prior of the design effect: the correlation of two rows of one document, and how many documents it is worth.
#: It is what makes an all-hit cell wider than its rows suggest; chosen by simulation (docs/statistics.md).
PRIOR_CORRELATION = 0.3
PRIOR_DOCUMENTS = 3.0


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


def shrunk_correlation(seen: Any, documents: int) -> Any:
    """Return a correlation over documents as far as it is believed; `seen` may be an array."""
    clipped = np.clip(seen, -1.0, 1.0)
    return np.where(clipped > 0, clipped * max(documents - 3, 0) / (documents + 1), clipped)
