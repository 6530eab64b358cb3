"""Statistics against hand-worked values and published ones."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ctxeval.analysis.formulas import wilson
from ctxeval.analysis.stats import (
    ClusterProportion,
    cluster_proportion,
    mean_bounds,
    pooled_correlation,
    scaled_difference,
    sign_flip_p,
)


def share(hits: Any, documents: Any, prior: float = 0.3) -> ClusterProportion:
    found = cluster_proportion(hits, np.ones(len(hits)), documents, prior)
    assert found is not None
    return found


def test_wilson_is_newcombe_1998_table_1() -> None:
    # 81 of 263, 15 of 148, 0 of 20 and 1 of 29: method 3.
    for hits, n, low, high in (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ):
        assert wilson(hits / n, n, 1.959964) == pytest.approx((low, high), abs=5e-5)


def test_documents_that_agree_within_are_worth_one_row_each() -> None:
    documents = np.repeat(np.arange(40), 9)
    together = share((documents % 2).tolist(), documents.tolist())
    apart = share((np.arange(360) % 2).tolist(), documents.tolist())
    assert together.value == pytest.approx(0.5) == apart.value
    assert 38 < together.effective_rows < 45
    assert apart.effective_rows > 330
    assert together.correlation == 1.0 and apart.correlation == 0.0


def test_no_interval_has_zero_width() -> None:
    for hit in (0.0, 1.0):
        estimate = share([hit] * 144, np.repeat(np.arange(16), 9).tolist()).estimate()
        assert estimate.value == hit
        assert 0.05 < estimate.high - estimate.low < 0.2
        # Exactly, although fifteen weights of 1/15 add up to less than 1.
        assert share([hit] * 15, list(range(15))).value == hit
        one = share([hit] * 3, [0, 0, 0]).estimate()
        assert one.high - one.low > 0.5


def test_weights_decide_the_value() -> None:
    found = cluster_proportion([1, 0, 0, 0], [3, 1, 1, 1], [0, 1, 2, 3])
    assert found is not None
    assert found.value == pytest.approx(0.5)
    assert found.effective_rows == pytest.approx(36 / 12)
    assert found.residuals.sum() == pytest.approx(0)


def test_nothing_is_nothing() -> None:
    assert cluster_proportion([], [], []) is None


def test_pooling_moves_the_prior_towards_what_the_run_shows() -> None:
    documents = np.repeat(np.arange(40), 9)
    apart, together = (share(hits.tolist(), documents.tolist()) for hits in (np.arange(360) % 2, documents % 2))
    silent = share([1.0] * 360, documents.tolist())
    assert pooled_correlation([silent]) == pytest.approx(0.3)
    assert pooled_correlation([apart, apart]) < 0.1
    assert pooled_correlation([together, together]) > 0.8


def test_a_difference_of_alike_shares_is_narrower_than_one_of_strangers() -> None:
    generator = np.random.default_rng(0)
    found = share((generator.random(144) < 0.6).astype(float).tolist(), np.repeat(np.arange(16), 9).tolist())
    low, high = scaled_difference(found, found, 1.0, 0.025)
    own = found.bounds(0.025)
    assert own[1] - own[0] > 0.12
    assert high - low < 0.65 * math.sqrt(2) * (own[1] - own[0])


def test_an_unrelated_difference_is_wider_than_either_share() -> None:
    first = share([1.0, 0.0] * 8, list(range(16)))
    second = share([1.0, 0.0] * 8, list(range(16, 32)))
    low, high = scaled_difference(first, second, 1.0, 0.025)
    one = first.bounds(0.025)
    assert high - low == pytest.approx(math.sqrt(2) * (one[1] - one[0]), rel=1e-6)


def test_mean_bounds_are_student_s_when_sizes_agree() -> None:
    value, low, high = mean_bounds([1.0, 2.0, 3.0, 6.0], [1, 1, 1, 1], 0.025)
    error = np.std([1, 2, 3, 6], ddof=1) / 2
    assert (value, low, high) == pytest.approx((3.0, 3 - 3.18245 * error, 3 + 3.18245 * error), rel=1e-5)


def test_mean_bounds_sum_first_and_divide_once() -> None:
    assert mean_bounds([10.0, 1.0], [100, 1], 0.025)[0] == pytest.approx(11 / 101)


def test_one_document_knows_no_spread_but_nothing_to_estimate_is_exact() -> None:
    assert mean_bounds([1.0], [4], 0.025) == (0.25, -math.inf, math.inf)
    assert mean_bounds([0.0, 0.0], [4, 4], 0.025) == (0, 0, 0)


def test_sign_flips_count_every_pattern() -> None:
    assert sign_flip_p([1, 1, 1, 1, 1]) == pytest.approx(2 / 32)
    assert sign_flip_p([1, -1]) == 1.0
    assert sign_flip_p([0, 0]) == 1.0
    assert sign_flip_p([3, 1, -1]) == pytest.approx(6 / 8)
    assert sign_flip_p([1] * 30) < 0.001
    assert 0.8 < sign_flip_p([1, -1] * 15) <= 1


@pytest.mark.parametrize(("documents", "share"), [(2, 0.0), (3, 0.0), (8, 5 / 9), (24, 21 / 25)])
def test_few_documents_do_not_prove_a_correlation(documents: int, share: float) -> None:
    names = np.repeat(np.arange(documents), 8)
    hits = np.where(np.arange(names.size) % 8 < 2 + 4 * (names % 2), 1.0, 0.0)
    found = cluster_proportion(hits, np.ones(names.size), names)
    assert found is not None
    low, high = found.bounds(0.025)
    below, above = scaled_difference(found, found, 1.0, 0.025)
    one, two = found.value - low, high - found.value
    # A share against itself correlates perfectly; how far that is believed depends on the documents.
    assert -below == pytest.approx(math.sqrt(one**2 + two**2 - 2 * share * one * two))
    assert above == pytest.approx(-below)
