"""States and verdicts against a known truth, by the code that judges one run; `test_simulation` has thousands."""

from __future__ import annotations

import numpy as np
import pytest

from ctxeval.analysis.headline import headline
from ctxeval.analysis.onset import RECALL_BROKEN, RECALL_HOLDS
from ctxeval.analysis.stats import ClusterProportion, cluster_proportion, scaled_difference
from tests.analysis.synthetic_cells import frame, needle_cells, perplexity_cells, probability

DEPTHS = 9
RUNS = 400


def draw(generator: np.random.Generator, mean: float, correlation: float, documents: int) -> ClusterProportion:
    rates = probability(generator, mean, correlation, documents)
    hits = generator.random((documents, DEPTHS)) < rates[:, None]
    found = cluster_proportion(hits.ravel(), np.ones(hits.size), np.repeat(np.arange(documents), DEPTHS))
    assert found is not None
    return found


@pytest.mark.parametrize("documents", [8, 16, 24])
@pytest.mark.parametrize("correlation", [0.0, 0.2])
@pytest.mark.parametrize("levels", [(RECALL_BROKEN, 1), (RECALL_HOLDS, 0)])
def test_a_state_at_the_bar_is_rarely_decided(documents: int, correlation: float, levels: tuple[float, int]) -> None:
    """Recall sits exactly at 0.85 R at five lengths: any `broken`, or any `holds`, is a false one."""
    generator = np.random.default_rng([documents, round(100 * correlation)])
    (rate, side), lengths, false = levels, 5, 0
    for _ in range(RUNS):
        reference = draw(generator, 0.9, correlation, documents)
        found = [draw(generator, 0.85 * 0.9, correlation, documents) for _ in range(lengths)]
        bounds = [scaled_difference(one, reference, 0.85, rate / lengths)[side] for one in found]
        false += min(bounds) < 0 if side else max(bounds) >= 0
    # Two standard errors of a share of 2.5 or 4 % in 400 runs.
    assert false / RUNS <= rate + 2 * np.sqrt(rate * (1 - rate) / RUNS)


@pytest.mark.parametrize("truth", ["retrieval first", "perplexity first", "neither"])
def test_the_wrong_order_is_rarely_named(truth: str) -> None:
    """Whole headlines of small runs: the right order is found, or none; at the bar nothing is named."""
    recall = {"retrieval first": (0.95, 0.3), "perplexity first": (0.95, 0.95), "neither": (0.95, 0.81)}[truth]
    excess = {"retrieval first": 0.0, "perplexity first": 0.2, "neither": 0.03}[truth]
    named: list[str] = []
    for seed in range(12):
        generator = np.random.default_rng(seed)
        cells = needle_cells(
            generator, lambda s, n: recall[n > 2048], ("none",), (1024, 2048, 4096), 8, depths=(0, 50, 100)
        )
        cells += perplexity_cells(generator, lambda s, n: excess * (n > 2048), ("none",), (1024, 2048, 4096), 8)
        found = headline(frame(cells), native_window=2048, lengths=(1024, 2048, 4096), scalings=("none",))
        named.append(found.rows[0].order)
    wrong = {"retrieval first", "perplexity first"} - {truth}
    assert sum(order in wrong for order in named) <= 1
    if truth == "retrieval first":
        assert named.count(truth) >= 6
