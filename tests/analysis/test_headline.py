"""The headline of whole runs, also where a probe, a length or the reference is missing."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest

from ctxeval.analysis.agreement import plan_agreement
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


def test_rows_without_a_result_are_counted_at_their_length() -> None:
    cells = pd.concat([needles(), losses()], ignore_index=True)
    lost = (cells["scale"] == "yarn") & (cells["context_length"] == 8192) & (cells["document"] < 4)
    cells.loc[lost, ["status", "correct", "nll"]] = ["nan", None, math.nan]
    row = summarise(cells).rows[1]
    assert [result.missing for result in row.lengths] == [0, 0, 0, 4 * 9 + 4]
    assert row.lengths[3].recall.rows == 12 * 9


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


def test_packed_rows_are_the_data_and_exact_ones_the_check() -> None:
    found = headline(packed_and_exact(0.5), native_window=2048, lengths=(4096,), scalings=("yarn",))
    assert found.plan == "packed"
    assert found.rows[0].lengths[0].recall.rows == 108 and found.rows[0].lengths[0].recall.value < 0.7
