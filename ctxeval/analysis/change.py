"""What changed at one length, from paired rows: recall, perplexity (or bits per byte) and answer log-prob."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from ctxeval.analysis.paired import (
    LOSS,
    Pairs,
    bits_per_byte_change,
    cell_weights,
    pair,
    pair_needles,
    paired_proportion,
)
from ctxeval.analysis.perplexity import finished
from ctxeval.analysis.recall import recall, scored
from ctxeval.analysis.stats import mean_bounds

Metric = Literal["recall", "perplexity", "bits per byte", "answer log-prob"]
State = Literal["worse", "missing", "open", "better"]
METRICS: tuple[Metric, ...] = ("recall", "perplexity", "bits per byte", "answer log-prob")
#: Where more is worse, 1; where less is worse, -1.
HARM: Mapping[Metric, int] = {"recall": -1, "perplexity": 1, "bits per byte": 1, "answer log-prob": -1}
ALPHA = 0.05


@dataclass(frozen=True)
class Change:
    """A candidate against a baseline at one length (tokens), over the `pairs` of which both have a result.

    `value` with its 95 % interval is candidate − baseline (recall: shares of 0 to 1; answer log-prob: nats), or for
    perplexity candidate / baseline. `differ` counts the pairs that are not equal. `p_value` is that of this line alone,
    `p_adjusted` that in the whole table. `state` is better or worse where the adjusted one is at most 5 % and the
    interval leaves out "no change", else `open`; or `missing` without pairs. NaN losses of the candidate alone are
    `worse`; NaN answers are misses. `missing` counts the rows that only one side has, or without a result.
    """

    metric: Metric
    length: int
    baseline: float = math.nan
    candidate: float = math.nan
    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    pairs: int = 0
    documents: int = 0
    differ: int = 0
    baseline_nan: int = 0
    candidate_nan: int = 0
    missing: int = 0
    p_value: float = math.nan
    p_adjusted: float = math.nan
    state: State = "missing"

    @property
    def unchanged(self) -> float:
        """The value that means no change."""
        return 1.0 if self.metric == "perplexity" else 0.0

    @property
    def harm(self) -> float:
        """How far it went the wrong way, in the metric's own terms; NaN losses are the worst."""
        return HARM[self.metric] * (self.value - self.unchanged) if math.isfinite(self.value) else math.inf

    def judged(self, p_adjusted: float) -> State:
        """Return the state at this adjusted p-value."""
        if not math.isfinite(self.value):
            return self.state
        if p_adjusted > ALPHA or self.low <= self.unchanged <= self.high:
            return "open"
        return "worse" if self.harm > 0 else "better"


#: A change, and what each document adds to it (nothing where there are no pairs).
Contribution = tuple[Change, pd.Series]
_NOTHING = pd.Series(dtype=float)


def needle_changes(
    candidate: pd.DataFrame, baseline: pd.DataFrame, length: int, same_needles: bool
) -> list[Contribution]:
    """Return the changes of recall and of the answer's log-prob at a length."""
    pairs = pair_needles(candidate, baseline, same_needles)
    about: dict[str, Any] = {
        "length": length,
        "baseline_nan": int((pairs.baseline["status"] == "nan").sum()),
        "candidate_nan": int((pairs.candidate["status"] == "nan").sum()),
    }
    one, other = scored(pairs.candidate), scored(pairs.baseline)
    both = one.index.intersection(other.index)
    one, other = one.loc[both], other.loc[both]
    lost = pairs.unpaired + len(pairs.candidate) - len(both)
    found, known = recall(one), recall(other)
    if found is None or known is None:
        return [(Change("recall", missing=lost, **about), _NOTHING)]
    shift = one["hit"] - other["hit"]
    weights = cell_weights(one)
    share = paired_proportion(shift, weights, one["document"])
    low, high = share.bounds(ALPHA / 2)
    change = Change(
        "recall",
        baseline=known.value,
        candidate=found.value,
        value=found.value - known.value,
        low=low,
        high=high,
        pairs=share.rows,
        documents=share.documents,
        differ=int((shift != 0).sum()),
        missing=lost,
        **about,
    )
    total = (shift * weights).groupby(one["document"]).sum()
    return [(change, total), *_logprob(one, other, about, lost)]


def _logprob(one: pd.DataFrame, other: pd.DataFrame, about: dict[str, Any], lost: int) -> list[Contribution]:
    known = np.isfinite(one["answer_logprob"]) & np.isfinite(other["answer_logprob"])
    one, other = one[known], other[known]
    if one.empty:
        return []
    weights = cell_weights(one)
    shift = (one["answer_logprob"] - other["answer_logprob"]) * weights
    totals, sizes = (part.groupby(one["document"]).sum() for part in (shift, weights))
    value, low, high = mean_bounds(totals, sizes, ALPHA / 2)
    change = Change(
        "answer log-prob",
        baseline=float((other["answer_logprob"] * weights).sum()),
        candidate=float((one["answer_logprob"] * weights).sum()),
        value=value,
        low=low,
        high=high,
        pairs=len(one),
        documents=int(one["document"].nunique()),
        differ=int((shift != 0).sum()),
        missing=lost + int((~known).sum()),
        **about,
    )
    return [(change, shift.groupby(one["document"]).sum())]


def loss_change(candidate: pd.DataFrame, baseline: pd.DataFrame, length: int, same_text: bool) -> Contribution:
    """Return the change of perplexity at a length, or that of bits per byte where the tokens are not the same."""
    pairs = pair(candidate, baseline, LOSS)
    endless = [(rows["status"] == "nan") | np.isinf(rows["nll"]) for rows in (pairs.candidate, pairs.baseline)]
    one, other = (rows.loc[finished(rows[~one]).index] for rows, one in zip(_sides(pairs), endless, strict=True))
    both = one.index.intersection(other.index)
    one, other = one.loc[both], other.loc[both]
    alike = same_text and all((one[name] == other[name]).all() for name in ("n_tokens", "bytes"))
    about: dict[str, Any] = {
        "metric": "perplexity" if alike else "bits per byte",
        "length": length,
        "candidate_nan": int(endless[0].sum()),
        "baseline_nan": int(endless[1].sum()),
        "missing": pairs.unpaired + len(pairs.candidate) - len(both) - int((endless[0] | endless[1]).sum()),
    }
    if about["candidate_nan"]:
        return Change(**about, state="missing" if about["baseline_nan"] else "worse"), _NOTHING
    if one.empty:
        return Change(**about), _NOTHING
    shift = (one["nll"] - other["nll"]).groupby(one["document"]).sum()
    about |= {"pairs": len(one), "documents": len(shift), "differ": int((one["nll"] != other["nll"]).sum())}
    if alike:
        tokens = one["n_tokens"].groupby(one["document"]).sum()
        values = [math.exp(min(value, 700.0)) for value in mean_bounds(shift, tokens, ALPHA / 2)]
        levels = [math.exp(min(float(rows["nll"].sum()) / float(tokens.sum()), 700.0)) for rows in (other, one)]
    else:
        bounds, parts = bits_per_byte_change(one, other, ALPHA / 2)
        values, shift = [float(bound) for bound in bounds], pd.Series(parts, shift.index)
        levels = [float(rows["nll"].sum()) / float(rows["bytes"].sum()) / math.log(2) for rows in (other, one)]
    return Change(
        **about, baseline=levels[0], candidate=levels[1], value=values[0], low=values[1], high=values[2]
    ), shift


def _sides(pairs: Pairs) -> tuple[pd.DataFrame, pd.DataFrame]:
    return pairs.candidate, pairs.baseline
