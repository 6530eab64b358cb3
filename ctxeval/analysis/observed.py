"""What a run that was measured shows of its model and documents, for planning the next one."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from ctxeval.analysis.headline import Headline
from ctxeval.analysis.perplexity import paired, perplexity_rows
from ctxeval.analysis.recall import asked, document_correlation, scored
from ctxeval.analysis.trial_runs import Assumptions


def observed(cells: pd.DataFrame, summary: Headline, scale: str) -> Assumptions:
    """Return R, the correlation of a document's needles, and the spread of the log ratio; where not seen, the default.

    The correlation is the one that intervals use: all cells together, few of them shrunk towards the prior. The spread
    is the root mean square over lengths of the standard deviation over documents, in nats a token.
    """
    default = Assumptions()
    hits = scored(asked(cells))
    usable = hits[hits["status"] == "ok"]
    losses = paired(perplexity_rows(cells))
    losses = losses[losses["scale"] == scale]
    excess = (losses["nll"] - losses["baseline_nll"]) / losses["n_tokens"]
    variance = excess.groupby(losses["context_length"]).var()
    spread = math.sqrt(float(variance[variance > 0].mean())) if (variance > 0).any() else math.nan
    reference = summary.reference.value
    return Assumptions(
        reference=reference if np.isfinite(reference) and reference > 0 else default.reference,
        correlation=document_correlation(usable) if len(usable) else default.correlation,
        spread=spread if math.isfinite(spread) else default.spread,
    )


def needles_a_document(cells: pd.DataFrame, scale: str) -> dict[int, float]:
    """Return the needles a document at each length (tokens), of `scale`, or of `none` where it was not measured."""
    rows = asked(cells)
    found: dict[int, float] = {}
    for label in ("none", scale):
        own = rows[rows["scale"] == label].groupby("context_length")
        for length, group in own:
            found[int(str(length))] = len(group) / rows["document"].nunique()
    return found
