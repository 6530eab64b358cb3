"""What a run shows of one quantity, with bounds at any confidence, now and as more documents would have them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy import stats

from ctxeval.analysis.paired import LOSS, cell_weights, pair_needles, paired_proportion
from ctxeval.analysis.perplexity import finished, paired
from ctxeval.analysis.recall import alike, failures, recall, scored
from ctxeval.analysis.stats import ClusterProportion, mean_bounds, scaled_difference

#: (tail, growth) → lower and upper bound with a chance of `tail` beyond each, had the run `growth` times the documents.
Bounds = Callable[[float, float], tuple[float, float]]


@dataclass(frozen=True, eq=False)
class Evidence:
    """A value with its bounds. Of the rows asked for, `nan` are NaN and `missing` have no result (or are not there).

    `lost` counts the missing ones by what became of them, for instance `oom`.
    """

    value: float
    rows: int
    documents: int
    bounds: Bounds
    nan: int = 0
    missing: int = 0
    lost: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _Grown(ClusterProportion):
    units: int = 0

    @property
    def documents(self) -> int:
        return self.units


def grown(share: ClusterProportion, growth: float) -> ClusterProportion:
    """Return the share as `growth` times the documents would have it, value and resemblance staying what they are."""
    return _Grown(
        value=share.value,
        rows=round(share.rows * growth),
        effective_rows=share.effective_rows * growth,
        labels=share.labels,
        residuals=share.residuals,
        correlation=share.correlation,
        information=share.information,
        units=max(round(share.documents * growth), 1),
    )


def _undecided(tail: float, growth: float) -> tuple[float, float]:
    return -math.inf, math.inf


def _lost(missing: int, *groups: pd.DataFrame) -> dict[str, int]:
    """Count the missing rows by status; `absent` are those that are not there, or `ok` without a value."""
    counts: Counter[str] = Counter()
    for rows in groups:
        counts.update({status: count for status, count in failures(rows).items() if status != "nan"})
    counts["absent"] = missing - counts.total()
    return {status: count for status, count in counts.items() if count > 0}


def recall_evidence(asked: pd.DataFrame, prior: float, absent: int = 0) -> Evidence:
    """Return recall over the needle rows asked for; `absent` counts rows that the run should have and has not."""
    hits = scored(asked)
    nan, missing = int((asked["status"] == "nan").sum()), len(asked) - len(hits) + absent
    share, lost = recall(hits, prior), _lost(missing, asked)
    if share is None:
        return Evidence(math.nan, 0, 0, _undecided, nan, missing, lost)
    return Evidence(
        share.value,
        share.rows,
        share.documents,
        lambda tail, growth: grown(share, growth).bounds(tail),
        nan,
        missing,
        lost,
    )


def margin_evidence(
    asked: pd.DataFrame, reference: pd.DataFrame, factor: float, prior: float, absent: int = 0
) -> Evidence:
    """Return recall minus `factor` times that of the reference rows, on the documents and depths that both have.

    NaN rows of the reference count as missing: as misses they would lower the bar.
    """
    hits, known_rows = scored(asked), scored(reference)
    known_rows = known_rows[known_rows["status"] == "ok"]
    nan = int((asked["status"] == "nan").sum())
    missing = len(asked) - len(hits) + len(reference) - len(known_rows) + absent
    same = alike(known_rows, hits["document"], hits["depth_percent"])
    here = alike(hits, same["document"], same["depth_percent"])
    found, known, lost = recall(here, prior), recall(same, prior), _lost(missing, asked, reference)
    if found is None or known is None:
        return Evidence(math.nan, 0, 0, _undecided, nan, missing, lost)
    return Evidence(
        found.value - factor * known.value,
        found.rows,
        found.documents,
        lambda tail, growth: scaled_difference(grown(found, growth), grown(known, growth), factor, tail),
        nan,
        missing,
        lost,
    )


def ratio_evidence(asked: pd.DataFrame, absent: int = 0) -> Evidence:
    """Return the perplexity ratio over the rows asked for, a t interval over documents on the logarithm."""
    endless = (asked["status"] == "nan") | np.isinf(asked["nll"]) | np.isinf(asked["baseline_nll"])
    pairs = paired(asked[~endless])
    nan, missing = int(endless.sum()), len(asked) - int(endless.sum()) - len(pairs) + absent
    lost = _lost(missing, asked[~endless])
    if pairs.empty:
        return Evidence(math.nan, 0, 0, _undecided, nan, missing, lost)
    excess = (pairs["nll"] - pairs["baseline_nll"]).groupby(pairs["document"]).sum()
    tokens = pairs["n_tokens"].groupby(pairs["document"]).sum()
    units = len(excess)
    value, _, high = mean_bounds(excess, tokens, 0.25)
    unit_error = (high - value) / float(stats.t.ppf(0.75, units - 1)) if units > 1 else high - value

    def bounds(tail: float, growth: float) -> tuple[float, float]:
        if units < 2:
            return _exp(value - unit_error), _exp(value + unit_error)
        half = float(stats.t.ppf(1 - tail, max(units * growth - 1, 1))) * unit_error / math.sqrt(growth)
        return _exp(value - half), _exp(value + half)

    return Evidence(_exp(value), len(pairs), units, bounds, nan, missing, lost)


def change_evidence(asked: pd.DataFrame, baseline: pd.DataFrame, same_needles: bool, absent: int = 0) -> Evidence:
    """Return recall minus that of the baseline's rows, over the needles that both answered.

    What only one of them has is missing, and so are NaN rows of the baseline: as misses they would lower the bar.
    """
    pairs = pair_needles(asked, baseline, same_needles)
    one, other = scored(pairs.candidate), scored(pairs.baseline)
    both = one.index.intersection(other.index[other["status"] == "ok"])
    one, other = one.loc[both], other.loc[both]
    nan = int((asked["status"] == "nan").sum())
    missing = len(pairs.candidate) - len(both) + max(pairs.unpaired, absent)
    lost = _lost(missing, pairs.candidate, pairs.baseline)
    if one.empty:
        return Evidence(math.nan, 0, 0, _undecided, nan, missing, lost)
    share = paired_proportion(one["hit"] - other["hit"], cell_weights(one), one["document"])
    return Evidence(share.value, share.rows, share.documents, share.bounds, nan, missing, lost)


def ratio_to_baseline(asked: pd.DataFrame, baseline: pd.DataFrame, absent: int = 0) -> Evidence:
    """Return the ratio of perplexity to that of the baseline's rows, on the documents that both have."""
    known = finished(baseline)
    known = known[np.isfinite(known["nll"])].set_index(LOSS)["nll"]
    there = pd.MultiIndex.from_frame(asked[LOSS])
    extra = len(baseline) - int(pd.MultiIndex.from_frame(baseline[LOSS]).isin(there).sum())
    return ratio_evidence(asked.assign(baseline_nll=known.reindex(there).to_numpy()), max(extra, absent))


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))
