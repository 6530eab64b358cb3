"""Sign-flips of a whole table: each test as it would be alone, and one false claim in 5 % of tables."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

from ctxeval.analysis.flips import sign_flip_family
from ctxeval.analysis.stats import sign_flip_p


def test_raw_p_values_are_those_of_single_tests() -> None:
    table = np.random.default_rng(0).normal(0.5, 1, size=(10, 4))
    table[3, 1] = table[7, 1] = 0
    raw, adjusted = sign_flip_family(table)
    assert raw == pytest.approx([sign_flip_p(column) for column in table.T], abs=1e-12)
    assert (adjusted >= raw).all()
    alone = [sign_flip_family(column[:, None]) for column in table.T]
    assert all(one[0] == one[1] for one in alone)


def test_one_pair_a_document_is_mcnemars_exact_test() -> None:
    column = np.array([1.0] * 9 + [-1.0] * 2 + [0.0] * 5)
    raw, _ = sign_flip_family(column[:, None])
    assert raw[0] == pytest.approx(binomtest(2, 11).pvalue, abs=1e-12)


def test_many_documents_are_sampled() -> None:
    table = np.random.default_rng(1).normal(0.4, 1, size=(24, 3))
    raw, adjusted = sign_flip_family(table)
    assert raw == pytest.approx([sign_flip_p(column, seed=5) for column in table.T], abs=0.01)
    assert (raw > 0).all() and (adjusted >= raw).all()


def test_no_sampled_p_value_is_0() -> None:
    raw, adjusted = sign_flip_family(np.full((40, 2), 1.0))
    assert list(raw) == list(adjusted) == [1 / 20_001] * 2


def test_nothing_and_no_difference() -> None:
    raw, adjusted = sign_flip_family(np.zeros((6, 2)))
    assert list(raw) == list(adjusted) == [1.0, 1.0]


def test_units_do_not_matter() -> None:
    table = np.random.default_rng(2).normal(0.5, 1, size=(9, 3))
    scaled = sign_flip_family(table * np.array([1.0, 1000.0, 1e-6]))
    for one, other in zip(sign_flip_family(table), scaled, strict=True):
        assert one == pytest.approx(other)


def test_a_table_of_many_lengths_can_be_significant_with_eight_documents() -> None:
    """Holm's smallest p-value would be 15 · 2 / 256 = 0.12, whatever the effect."""
    table = np.abs(np.random.default_rng(3).normal(2, 0.5, size=(8, 15)))
    _, adjusted = sign_flip_family(table)
    assert adjusted.max() < 0.05


@pytest.mark.parametrize("documents", [8, 12])
def test_false_claims_in_a_table_of_correlated_tests(documents: int) -> None:
    """15 tests a table, 10 of them of no effect: 5 % of tables may claim one of those; power is not nil."""
    generator, tables, false, found = np.random.default_rng(4), 1000, 0, 0
    for _ in range(tables):
        shared = generator.standard_t(4, size=(documents, 1))
        table = shared + generator.normal(size=(documents, 15)) * (generator.random((documents, 15)) < 0.7)
        table[:, 10:] += 3
        _, adjusted = sign_flip_family(table)
        false += bool((adjusted[:10] <= 0.05).any())
        found += bool((adjusted[10:] <= 0.05).any())
    print(f"{documents} documents: {false / tables:.3f} of tables claim falsely, {found / tables:.3f} rightly")
    assert false / tables <= 0.06  # 5 % and two standard errors of a thousand tables
    assert found / tables >= 0.8
