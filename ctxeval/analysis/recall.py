"""Recall: the share of needles found, over length, depth and distance, from needle rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from ctxeval.analysis.formulas import PRIOR_CORRELATION
from ctxeval.analysis.stats import (
    NOTHING,
    ClusterProportion,
    Estimate,
    cluster_proportion,
    pooled_correlation,
)

BASELINE = "none"
NO_NEEDLE = "no-needle"
CELL_COLUMNS = ["scale", "context_length", "depth_percent"]


@dataclass(frozen=True)
class DistanceBin:
    """Recall of the needles whose distance to the question lies in (low, high] tokens."""

    low: float
    high: float
    recall: Estimate


def main_plan(cells: pd.DataFrame) -> str:
    """Return the plan that tables are made from: `packed` where there are such needle rows, otherwise `exact`."""
    needles = cells[cells["probe"] == "needle"]
    return "packed" if (needles["plan"] == "packed").any() else "exact"


def asked(cells: pd.DataFrame, plan: str | None = None) -> pd.DataFrame:
    """Return the needle measurements proper (no controls) of a plan, whatever became of them."""
    chosen = main_plan(cells) if plan is None else plan
    return cells[(cells["probe"] == "needle") & (cells["control"] == "") & (cells["plan"] == chosen)]


def scored(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the needle rows that have a result, with `hit` (0.0 or 1.0); a row of status `nan` is a miss.

    A model that emits NaN cannot answer: without those rows the recall of the others would stand for all. Rows that
    failed otherwise are missing, neither right nor wrong.
    """
    done = rows[_has_result(rows)]
    return done.assign(hit=done["correct"].mask(done["status"] == "nan", False).astype(bool).astype(float))


def _has_result(rows: pd.DataFrame) -> pd.Series:
    return (rows["status"] == "nan") | ((rows["status"] == "ok") & rows["correct"].notna())


def incomplete(rows: pd.DataFrame) -> frozenset[int]:
    """Return the lengths, in tokens, at which a needle was asked for and has no result."""
    return frozenset(int(length) for length in rows.loc[~_has_result(rows), "context_length"].unique())


def recall(rows: pd.DataFrame, prior: float = PRIOR_CORRELATION) -> ClusterProportion | None:
    """Estimate recall from scored rows: the mean over (length, depth) cells of the mean over the rows of each.

    `depth_percent` is the depth of the grid, so every depth weighs the same however many rows it has.
    `prior` is the within-document correlation that a cell without misses (or hits) is given.
    """
    if rows.empty:
        return None
    sizes = rows.groupby(["context_length", "depth_percent"], dropna=False)["hit"].transform("size")
    return cluster_proportion(rows["hit"], 1 / sizes.astype(float), rows["document"], prior)


def document_correlation(rows: pd.DataFrame) -> float:
    """Return how alike the scored rows of one document are, over all scales and lengths (0 to 1)."""
    shares = [recall(group) for _, group in rows.groupby(["scale", "context_length"])]
    return pooled_correlation(share for share in shares if share)


def recall_table(cells: pd.DataFrame) -> pd.DataFrame:
    """Return one row a (scale, context_length, depth_percent): `recall` (0 to 1, nan if unmeasured), `n`, `missing`."""
    rows = asked(cells)
    table = rows.groupby(CELL_COLUMNS).size().to_frame("asked")
    hits = scored(rows).groupby(CELL_COLUMNS)["hit"].agg(["mean", "size"])
    table["recall"] = hits["mean"]
    table["n"] = hits["size"].reindex(table.index).fillna(0).astype(int)
    table["missing"] = table["asked"] - table["n"]
    return table.drop(columns="asked").reset_index()


def distance_edges(distances: pd.Series, native_window: int) -> tuple[float, ...]:
    """Return bin edges in tokens: quarters of the native window up to it, then halves, up to the largest distance."""
    largest = float(distances.max()) if distances.notna().any() else 0.0
    edges = [native_window * quarter / 4 for quarter in range(5)]
    while edges[-1] < largest:
        edges.append(edges[-1] + native_window / 2)
    return tuple(edges)


def recall_by_distance(rows: pd.DataFrame, edges: Sequence[float]) -> tuple[DistanceBin, ...]:
    """Return recall in each bin (edge, next edge] of `needle_distance`, in tokens; every scored row weighs the same."""
    bins = []
    for low, high in pairwise(edges):
        inside = rows[(rows["needle_distance"] > low) & (rows["needle_distance"] <= high)]
        share = cluster_proportion(inside["hit"], np.ones(len(inside)), inside["document"])
        bins.append(DistanceBin(low, high, share.estimate() if share else NOTHING))
    return tuple(bins)


def control_rate(cells: pd.DataFrame) -> Estimate:
    """Return how often the answer appears when no needle is in the context; nan where the control was not run."""
    rows = scored(cells[(cells["probe"] == "needle") & (cells["control"] == NO_NEEDLE) & (cells["status"] == "ok")])
    share = cluster_proportion(rows["hit"], np.ones(len(rows)), rows["document"])
    return share.estimate() if share else NOTHING


def reference_rows(scored_rows: pd.DataFrame, native_window: int) -> pd.DataFrame:
    """Return the scored rows of the unpatched model at lengths in [native / 2, native].

    Without those that are NaN: as misses they would lower the bar that every scaling is held to.
    """
    inside = unpatched_inside(scored_rows, native_window)
    return inside[inside["status"] == "ok"]


def unpatched_inside(rows: pd.DataFrame, native_window: int) -> pd.DataFrame:
    """Return the rows of the unpatched model at lengths in [native / 2, native], whatever became of them."""
    inside = rows["context_length"].between(native_window / 2, native_window)
    return rows[(rows["scale"] == BASELINE) & inside]


def alike(rows: pd.DataFrame, documents: Iterable[int], depths: Iterable[float]) -> pd.DataFrame:
    """Return the rows on the same documents and depths."""
    return rows[rows["document"].isin(set(documents)) & rows["depth_percent"].isin(set(depths))]


def failures(cells: pd.DataFrame) -> dict[str, int]:
    """Count the rows that have no result by status, for instance `{"oom": 3, "nan": 1}`; ok rows are left out."""
    counts = cells.loc[cells["status"] != "ok", "status"].value_counts()
    return {str(status): int(count) for status, count in sorted(counts.items())}
