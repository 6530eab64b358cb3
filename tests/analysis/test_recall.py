"""Recall: equal weight for every depth, failed rows missing and never wrong, packed rows before exact ones."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from ctxeval.analysis.recall import (
    asked,
    control_rate,
    distance_edges,
    document_correlation,
    failures,
    incomplete,
    main_plan,
    recall,
    recall_by_distance,
    recall_table,
    reference_rows,
    scored,
)
from tests.analysis.synthetic_cells import frame, needle_cells


def cells(rate: float = 1.0, **columns: object) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    return frame(needle_cells(generator, lambda scale, length: rate, ("none",), (1024,), 4, depths=(0, 50), **columns))  # type: ignore[arg-type]


def test_every_depth_weighs_the_same_however_many_rows_it_has() -> None:
    rows = scored(asked(cells()))
    rows.loc[rows["depth_percent"] == 50, "hit"] = 0.0
    few = rows[(rows["depth_percent"] == 50) | (rows["document"] == 0)]
    found = recall(few)
    assert found is not None and found.rows == 5
    assert found.value == pytest.approx(0.5)


def test_failed_rows_are_missing_and_not_wrong() -> None:
    table = cells()
    table.loc[[0, 1, 2], "status"] = ["skipped", "oom", "error"]
    table.loc[[0, 1, 2], "correct"] = None
    found = recall(scored(asked(table)))
    assert found is not None
    assert (found.value, found.rows) == (1.0, 5)
    assert failures(table) == {"error": 1, "oom": 1, "skipped": 1}
    assert incomplete(table) == {1024} and incomplete(cells()) == set()
    counts = recall_table(table).set_index("depth_percent")
    assert counts["n"].to_dict() == {0: 2, 50: 3} and counts["missing"].to_dict() == {0: 2, 50: 1}


def test_an_answer_that_is_not_a_number_is_a_miss_but_no_reference() -> None:
    table = cells()
    table.loc[[0, 1, 2, 3], ["status", "correct"]] = ["nan", None]
    found = recall(scored(asked(table)))
    assert found is not None
    assert (found.value, found.rows) == (0.5, 8)
    assert incomplete(table) == set() and failures(table) == {"nan": 4}
    assert reference_rows(scored(asked(table)), 1024)["hit"].tolist() == [1.0] * 4


def test_a_cell_without_any_result_stays_in_the_table() -> None:
    table = cells()
    table.loc[table["depth_percent"] == 0, ["status", "correct"]] = ["oom", None]
    row = recall_table(table).set_index("depth_percent").loc[0]
    assert math.isnan(row["recall"]) and (row["n"], row["missing"]) == (0, 4)


def test_controls_are_no_measurements() -> None:
    both = pd.concat([cells(), cells(rate=0.0, control="no-needle")])
    found = recall(scored(asked(both)))
    assert found is not None and found.value == 1.0
    assert (control_rate(both).value, control_rate(both).rows) == (0.0, 8)
    # NaN is no proof that nothing is found without a needle.
    leaky = cells(control="no-needle")
    leaky.loc[leaky["document"] > 0, ["status", "correct"]] = ["nan", None]
    assert (control_rate(leaky).value, control_rate(leaky).rows) == (1.0, 2)
    assert not control_rate(cells()).measured


def test_packed_rows_come_first_and_exact_ones_stand_in() -> None:
    both = pd.concat([cells(rate=1.0, plan="packed"), cells(rate=0.0)])
    assert main_plan(both) == "packed" and main_plan(cells()) == "exact"
    assert set(asked(both)["plan"]) == {"packed"} and set(asked(both, "exact")["plan"]) == {"exact"}


def test_the_reference_is_the_unpatched_model_from_half_its_window_to_all_of_it() -> None:
    generator = np.random.default_rng(0)
    lengths = (512, 1024, 2048, 2049)
    rows = scored(frame(needle_cells(generator, lambda scale, length: 1.0, ("none", "pi"), lengths, 2)))
    found = reference_rows(rows, 2048)
    assert set(found["context_length"]) == {1024, 2048} and set(found["scale"]) == {"none"}


def test_distance_bins_hold_every_needle_once() -> None:
    rows = scored(cells())
    edges = distance_edges(rows["needle_distance"], 512)
    assert edges == (0, 128, 256, 384, 512, 768, 1024)
    bins = recall_by_distance(rows, edges)
    assert [found.recall.rows for found in bins] == [0, 0, 0, 0, 4, 4]
    assert not bins[0].recall.measured and bins[5].recall.value == 1.0
    assert distance_edges(rows["needle_distance"].iloc[:0], 512)[-1] == 512


def test_documents_that_hit_or_miss_as_a_whole_are_seen() -> None:
    generator = np.random.default_rng(0)
    loose = needle_cells(generator, lambda scale, length: 0.5, ("none", "pi"), (512, 1024), 16, correlation=0)
    tight = needle_cells(generator, lambda scale, length: 0.5, ("none", "pi"), (512, 1024), 16, correlation=0.9)
    assert document_correlation(scored(frame(loose))) < 0.15
    assert document_correlation(scored(frame(tight))) > 0.5
