"""The headline of whole runs, also where a probe, a length or the reference is missing."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest

from ctxeval.analysis.agreement import Agreement, plan_agreement
from ctxeval.analysis.headline import Headline, from_manifest, headline
from tests.analysis.synthetic_cells import frame, needle_cells, perplexity_cells

LENGTHS = (1024, 2048, 4096, 8192)
SCALES = ("yarn", "none")


def truth(scale: str, length: int) -> float:
    return 0.97 if length <= 2048 else 0.3


def excess(scale: str, length: int) -> float:
    return 0.0 if length <= 2048 else -0.02


def needles(rate: float | None = None, seed: int = 1) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    chosen = truth if rate is None else lambda scale, length: rate
    return frame(needle_cells(generator, chosen, SCALES, LENGTHS, 16, correlation=0.05))


def losses() -> pd.DataFrame:
    return frame(perplexity_cells(np.random.default_rng(2), excess, SCALES, LENGTHS, 8))


def summarise(cells: pd.DataFrame) -> Headline:
    return headline(cells, native_window=2048, lengths=LENGTHS, scalings=SCALES)


def test_both_probes() -> None:
    found = summarise(pd.concat([needles(), losses()], ignore_index=True))
    assert [row.scale for row in found.rows] == ["none", "yarn"]
    assert found.reference.value == pytest.approx(0.97, abs=0.03)
    assert found.reference.rows == 2 * 9 * 16 and found.reference.documents == 16
    yarn = found.rows[1]
    assert (yarn.order, yarn.blind_spot, yarn.factor) == ("retrieval first", (4096, 8192), 4.0)
    assert (yarn.recall_through, yarn.ratio_through, yarn.effective_length) == (2048, 8192, 2048)
    assert yarn.verdict == "retrieval first: recall breaks in (2K, 4K], perplexity holds through 8K"
    assert yarn.lengths[2].recall.rows == 144 and yarn.lengths[2].perplexity.ratio.documents == 8
    assert yarn.lengths[2].perplexity.value == pytest.approx(math.exp(3), rel=0.5)


def test_needles_only() -> None:
    yarn = summarise(needles()).rows[1]
    assert (yarn.order, yarn.blind_spot) == ("retrieval only", ())
    assert yarn.verdict == "perplexity not measured: recall breaks in (2K, 4K]"
    assert not yarn.lengths[0].perplexity.ratio.measured


def test_perplexity_only() -> None:
    found = summarise(losses())
    assert not found.reference.measured
    assert found.rows[1].verdict == "retrieval not measured: perplexity holds through 8K"


def test_nothing_at_all() -> None:
    found = summarise(losses().iloc[:0])
    assert found.rows[0].verdict == "nothing measured"


def test_no_signal_gives_no_verdict() -> None:
    found = summarise(pd.concat([needles(rate=0.05), losses()], ignore_index=True))
    assert not found.signal
    assert found.rows[1].order == "no signal" and found.rows[1].blind_spot == ()


def test_a_control_as_good_as_the_reference_is_no_signal() -> None:
    control = frame(needle_cells(np.random.default_rng(3), truth, ("none",), (2048,), 16, control="no-needle"))
    assert not summarise(pd.concat([needles(), control], ignore_index=True)).signal
    assert summarise(needles()).signal


def healthy() -> pd.DataFrame:
    """Return the cells of a run in which both probes hold at every length."""
    ratios = frame(perplexity_cells(np.random.default_rng(2), lambda *_: -0.02, SCALES, LENGTHS, 16))
    return pd.concat([needles(rate=0.99), ratios], ignore_index=True)


def lose(cells: pd.DataFrame, status: str, length: int, documents: int, scale: str = "yarn") -> pd.DataFrame:
    lost = (cells["scale"] == scale) & (cells["context_length"] == length) & (cells["document"] < documents)
    cells.loc[lost, ["status", "correct", "nll"]] = [status, None, math.nan]
    return cells


def test_nothing_lost_holds() -> None:
    row = summarise(healthy()).rows[1]
    assert row.verdict == "neither breaks: recall holds through 8K, perplexity holds through 8K"
    assert (row.recall_through, row.ratio_through, row.effective_length) == (8192, 8192, 8192)


def test_rows_without_a_result_are_counted_at_their_length_and_keep_it_from_holding() -> None:
    row = summarise(lose(healthy(), "oom", 8192, 4)).rows[1]
    assert [(one.recall_missing, one.ratio_missing) for one in row.lengths] == [(0, 0)] * 3 + [(4 * 9, 4)]
    assert row.lengths[3].recall.rows == 12 * 9 and row.lengths[3].recall_nan == row.lengths[3].ratio_nan == 0
    assert (row.lengths[3].recall_state, row.lengths[3].ratio_state) == ("undecided", "undecided")
    assert (row.order, row.recall_through, row.effective_length) == ("not resolved", 4096, 4096)


def test_a_model_that_emits_nan_is_broken_there() -> None:
    row = summarise(lose(healthy(), "nan", 8192, 8)).rows[1]
    last = row.lengths[3]
    assert (last.recall_nan, last.ratio_nan, last.recall_missing, last.ratio_missing) == (8 * 9, 8, 0, 0)
    assert last.recall.value == pytest.approx(0.48, abs=0.03) and math.isnan(last.perplexity.value)
    assert row.order == "both"
    assert row.verdict.endswith("recall breaks in (4K, 8K], perplexity breaks in (4K, 8K]")
    # A single loss that is NaN breaks the ratio; a single needle of 144 does not break recall.
    one = lose(healthy(), "nan", 8192, 1)
    spared = (one["status"] == "nan") & (one["depth_percent"] > 0)
    one.loc[spared, ["status", "correct"]] = ["ok", True]
    assert summarise(one).rows[1].order == "perplexity first"


def test_the_unpatched_model_is_not_excused_by_its_own_nan() -> None:
    found = summarise(lose(healthy(), "nan", 2048, 16, scale="none"))
    assert found.reference.value > 0.95 and found.reference_missing == 16 * 9
    assert found.rows[0].lengths[1].recall_state == "broken"


def test_a_length_that_was_asked_for_and_not_measured_is_named() -> None:
    cells = healthy()
    row = summarise(cells[cells["context_length"] < 8192]).rows[1]
    assert (row.order, row.recall_through, row.ratio_through) == ("not resolved", 4096, 4096)
    assert row.verdict == (
        "order not resolved: recall holds through 4K, not measured at 8K, "
        "perplexity holds through 4K, not measured at 8K"
    )
    row = summarise(cells[cells["context_length"] != 1024]).rows[1]
    assert row.verdict.startswith("order not resolved: recall undecided, not measured at 1K")
    assert (row.recall_through, row.effective_length) == (None, None)


def test_a_loss_without_a_baseline_is_missing() -> None:
    cells = healthy()
    alone = (cells["probe"] == "perplexity") & (cells["context_length"] == 8192) & (cells["document"] < 2)
    cells.loc[alone, "baseline_nll"] = math.nan
    last = summarise(cells).rows[1].lengths[3]
    assert (last.ratio_missing, last.ratio_state, last.perplexity.ratio.documents) == (2, "undecided", 14)


def test_no_effective_length_where_there_is_nothing_to_compare_with() -> None:
    nothing = summarise(needles(rate=0.0))
    assert not nothing.signal and [row.effective_length for row in nothing.rows] == [None, None]
    cells = needles()
    alone = summarise(cells[cells["scale"] == "yarn"])
    assert not alone.reference.measured and alone.rows[1].effective_length is None


def test_the_manifest_gives_the_grid() -> None:
    resolved = {"native_window": 2048, "lengths": [1024, 2048], "scalings": [{"label": "yarn"}]}
    found = from_manifest(needles(), json.loads(json.dumps({"resolved": resolved})))
    assert found.lengths == (1024, 2048) and [row.scale for row in found.rows] == ["yarn"]


def packed_and_exact(packed_rate: float) -> pd.DataFrame:
    both = []
    for plan, rate in (("packed", packed_rate), ("exact", 1.0)):
        generator = np.random.default_rng(4)
        both += needle_cells(generator, lambda s, n, r=rate: r, ("yarn",), (4096,), 12, correlation=0, plan=plan)  # type: ignore[misc]
    return frame(both)


def test_packed_and_exact_rows_are_paired_by_needle() -> None:
    same = plan_agreement(packed_and_exact(1.0))
    assert same is not None and (same.same.value, same.same.rows, same.p_value) == (1.0, 108, 1.0)
    assert not same.differs
    worse = plan_agreement(packed_and_exact(0.5))
    assert worse is not None and worse.differs and worse.packed < 0.7 < worse.exact
    assert plan_agreement(needles()) is None


def few(documents: int, rate: float) -> Agreement:
    cells = packed_and_exact(rate)
    found = plan_agreement(cells[cells["document"] < documents])
    assert found is not None
    return found


def test_few_documents_cannot_tell_and_a_contradiction_is_still_seen() -> None:
    calm, wild = few(5, 1.0), few(5, 0.0)
    assert not calm.conclusive and not calm.contradicts and not calm.differs
    assert not wild.conclusive and wild.contradicts and not wild.differs
    # Most rows agree, but every one that differs does so in one direction.
    tilted = few(5, 0.7)
    assert tilted.same.value > 0.5 and tilted.contradicts
    # One row a document and all five disagree: no test can tell, and yet.
    cells = packed_and_exact(0.0)
    single = plan_agreement(cells[(cells["document"] < 5) & (cells["depth_percent"] == 0)])
    assert single is not None and single.row_p_value > 0.05 and single.contradicts
    assert few(6, 0.0).conclusive and few(6, 0.0).differs and not few(6, 0.0).contradicts


def test_packed_rows_are_the_data_and_exact_ones_the_check() -> None:
    found = headline(packed_and_exact(0.5), native_window=2048, lengths=(4096,), scalings=("yarn",))
    assert found.plan == "packed"
    assert found.rows[0].lengths[0].recall.rows == 108 and found.rows[0].lengths[0].recall.value < 0.7
