"""Perplexity and its ratio to the unpatched model on the same tokens, from perplexity rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ctxeval.analysis.stats import NOTHING, Estimate, mean_bounds


@dataclass(frozen=True)
class Perplexity:
    """Perplexity at one length. `ratio` = exp((Σ nll − Σ baseline_nll) / Σ n_tokens); below 1 the context helps."""

    value: float
    bits_per_byte: float
    ratio: Estimate


NO_PERPLEXITY = Perplexity(math.nan, math.nan, NOTHING)


def perplexity_rows(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the perplexity measurements proper (no controls), whatever became of them."""
    return cells[(cells["probe"] == "perplexity") & (cells["control"] == "")]


def finished(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the perplexity rows that have a loss (nats, sum)."""
    return rows[(rows["status"] == "ok") & rows["nll"].notna() & (rows["n_tokens"] > 0)]


def paired(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the finished perplexity rows that have a baseline: only those give a ratio."""
    return finished(rows[rows["baseline_nll"].notna()])


def perplexity(rows: pd.DataFrame, level: float = 0.95) -> Perplexity:
    """Estimate perplexity from the finished rows of one scale and length. Sums first, one division at the end."""
    if rows.empty:
        return NO_PERPLEXITY
    nll, tokens = float(rows["nll"].sum()), float(rows["n_tokens"].sum())
    size = float(rows["bytes"].sum())
    bits = nll / math.log(2) / size if size > 0 else math.nan
    low, high = ratio_bounds(rows, (1 - level) / 2)
    pairs = paired(rows)
    if pairs.empty:
        return Perplexity(_exp(nll / tokens), bits, NOTHING)
    value = _exp(float((pairs["nll"] - pairs["baseline_nll"]).sum()) / float(pairs["n_tokens"].sum()))
    ratio = Estimate(value, low, high, len(pairs), int(pairs["document"].nunique()))
    return Perplexity(_exp(nll / tokens), bits, ratio)


def ratio_bounds(rows: pd.DataFrame, tail: float) -> tuple[float, float]:
    """Return bounds of the perplexity ratio with a chance of `tail` beyond each; nan where no row is paired.

    A t interval on the paired log ratio, documents being the units: the difficulty of the text cancels in each.
    """
    pairs = paired(rows)
    if pairs.empty:
        return math.nan, math.nan
    excess = (pairs["nll"] - pairs["baseline_nll"]).groupby(pairs["document"]).sum()
    tokens = pairs["n_tokens"].groupby(pairs["document"]).sum()
    _, low, high = mean_bounds(excess, tokens, tail)
    return _exp(low), _exp(high)


def _exp(value: float) -> float:
    # A broken model's mean loss stays far below 700 nats; an infinite bound must not raise.
    return float(np.exp(np.clip(value, -math.inf, 700.0)))
