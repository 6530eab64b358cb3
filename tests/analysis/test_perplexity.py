"""Perplexity: sums first, one division; the ratio is paired by document."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from ctxeval.analysis.perplexity import finished, paired, perplexity, perplexity_rows, ratio_bounds
from tests.analysis.synthetic_cells import frame, perplexity_cells


def rows(excess: float = 0.1, documents: int = 8, spread: float = 0.02) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    cells = perplexity_cells(generator, lambda scale, length: excess, ("pi",), (1024,), documents, spread=spread)
    return finished(perplexity_rows(frame(cells)))


def test_sums_come_before_the_one_division() -> None:
    table = rows(documents=2).assign(nll=[300.0, 10.0], baseline_nll=[200.0, 20.0], n_tokens=[100, 10], bytes=[400, 50])
    found = perplexity(table)
    assert found.value == pytest.approx(math.exp(310 / 110))
    assert found.ratio.value == pytest.approx(math.exp(90 / 110))
    assert found.bits_per_byte == pytest.approx(310 / math.log(2) / 450)


def test_the_difficulty_of_the_text_cancels() -> None:
    # Documents differ by 0.3 nats, the excess by 0.002: an unpaired interval would be wide.
    found = perplexity(rows(excess=0.1, spread=0.002)).ratio
    assert found.value == pytest.approx(math.exp(0.1), rel=2e-3)
    assert found.high - found.low < 0.01
    assert found.documents == 8


def test_the_model_against_itself_is_exactly_one() -> None:
    found = perplexity(rows(excess=0.0)).ratio
    assert (found.value, found.low, found.high) == (1.0, 1.0, 1.0)


def test_one_document_bounds_nothing() -> None:
    assert ratio_bounds(rows(documents=1), 0.05) == (0.0, pytest.approx(math.exp(700)))


def test_losses_without_a_pair_give_a_perplexity_and_no_ratio() -> None:
    found = perplexity(rows().assign(baseline_nll=math.nan))
    assert math.isfinite(found.value) and not found.ratio.measured


def test_a_row_without_a_loss_is_left_out() -> None:
    cells = perplexity_cells(np.random.default_rng(0), lambda scale, length: 0.1, ("pi",), (1024,), 3)
    table = frame(cells)
    table.loc[0, ["status", "nll"]] = ["nan", math.nan]
    assert len(finished(perplexity_rows(table))) == 2
    assert len(paired(table.assign(baseline_nll=[1.0, math.nan, 1.0]))) == 1
    assert not perplexity(table.iloc[:0]).ratio.measured


def test_a_blow_up_does_not_overflow() -> None:
    assert perplexity(rows().assign(nll=1e9)).value > 1e300
