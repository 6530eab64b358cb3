"""A comparison pairs the same needles and tokens, says how sure it is, and never turns absence into a figure."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ctxeval.analysis.change import Change
from ctxeval.analysis.compare import Comparison, compare_runs, side
from ctxeval.analysis.paired import PairedProportion, bits_per_byte_change
from ctxeval.analysis.stats import mean_bounds
from ctxeval.errors import UsageError
from ctxeval.results.store import Run
from tests.analysis.synthetic_runs import LENGTHS, make_run, manifest, with_cells


def flat(value: float) -> Any:
    return lambda scale, length: value


def against(baseline: Run, *candidates: Run, **options: Any) -> Comparison:
    return compare_runs(side(baseline, "yarn"), [side(one, "yarn") for one in candidates], **options)[-1]


def at(found: Comparison, metric: str, length: int = 4096) -> Change:
    (one,) = [change for change in found.changes if (change.metric, change.length) == (metric, length)]
    return one


def needles_at(cells: pd.DataFrame, length: int = 4096, scale: str = "yarn") -> Any:
    return (cells["probe"] == "needle") & (cells["scale"] == scale) & (cells["context_length"] == length)


def losses_at(cells: pd.DataFrame, length: int = 4096, scale: str = "yarn") -> Any:
    return (cells["probe"] == "perplexity") & (cells["scale"] == scale) & (cells["context_length"] == length)


@pytest.fixture
def base() -> Run:
    """Return a run of 8 documents in which every needle is found, with log-probs of -1."""
    run = make_run("base", flat(1.0), flat(0.1), documents=8)
    run.cells.loc[run.cells["probe"] == "needle", "answer_logprob"] = -1.0
    return run


def test_values_worked_by_hand(base: Run) -> None:
    cells = base.cells.copy()
    lost = (
        needles_at(cells) & (cells["depth_percent"] <= 25) & (cells["document"] < 6)
    )  # 3 of 9 depths, 6 of 8 documents
    cells.loc[lost, "correct"] = False
    cells.loc[lost, "answer_logprob"] = -5.0
    cells.loc[losses_at(cells), "nll"] += 0.2 * cells.loc[losses_at(cells), "n_tokens"]
    found = against(base, with_cells(base, cells))

    recall = at(found, "recall")
    assert (recall.baseline, recall.candidate) == pytest.approx((1.0, 0.75))
    assert recall.value == pytest.approx(-0.25) and recall.low < -0.25 < recall.high < 0
    assert (recall.pairs, recall.documents, recall.differ, recall.missing) == (72, 8, 18, 0)
    assert recall.p_value == pytest.approx(2 / 2**6) and recall.state == "worse"

    logprob = at(found, "answer log-prob")
    assert (logprob.baseline, logprob.candidate, logprob.value) == pytest.approx((-1.0, -2.0, -1.0))
    totals = [3 * -4.0 / 9] * 6 + [0.0] * 2
    assert (logprob.low, logprob.high) == pytest.approx(mean_bounds(totals, [1.0] * 8, 0.025)[1:])

    loss = at(found, "perplexity")
    assert loss.value == loss.low == loss.high == pytest.approx(math.exp(0.2)) and loss.candidate_nan == 0
    assert loss.candidate / loss.baseline == pytest.approx(loss.value)
    assert loss.p_value == pytest.approx(2 / 2**8) and loss.state == "worse"
    assert at(found, "perplexity", 1024).value == 1.0 and at(found, "recall", 1024).value == 0.0
    assert found.verdict == "worse" and found.tests == 9
    assert [one.state for one in found.changes[:3]] == ["worse"] * 3 and found.changes[0].metric == "recall"


def test_depths_weigh_the_same_however_many_rows_they_have(base: Run) -> None:
    drop = needles_at(base.cells) & (base.cells["depth_percent"] == 0) & (base.cells["document"] > 0)
    thin = with_cells(base, base.cells[~drop].reset_index(drop=True))
    cells = thin.cells.copy()
    cells.loc[needles_at(cells) & (cells["depth_percent"] == 0), "correct"] = False
    recall = at(against(thin, with_cells(thin, cells)), "recall")
    assert (recall.pairs, recall.differ) == (65, 1) and recall.value == pytest.approx(-1 / 9)


def test_two_scalings_of_one_run_and_several_candidates() -> None:
    run = make_run(
        "run", lambda scale, length: 0.9 if scale == "yarn" else 0.2, flat(0.0), scales=("none", "pi", "yarn")
    )
    one, other = compare_runs(side(run, "none"), [side(run, "yarn"), side(run, "none")])
    assert (one.verdict, other.verdict) == ("better", "identical")
    assert one.tests == other.tests == 12  # recall and perplexity at 3 lengths, for 2 candidates: one family
    assert at(one, "recall").p_adjusted >= at(one, "recall").p_value


def test_worse_here_and_better_there() -> None:
    base = make_run("base", flat(0.6), correlation=0.0)
    other = make_run("other", lambda scale, length: 0.95 if length > 2048 else 0.2, correlation=0.0, seed=1)
    found = against(base, other)
    assert found.verdict == "mixed"
    assert [one.length for one in found.having("worse")] == [2048, 1024] or [
        one.length for one in found.having("worse")
    ] == [1024, 2048]
    assert [one.length for one in found.having("better")] == [4096]
    states = [one.state for one in found.changes]
    assert states == sorted(states, key=("worse", "missing", "open", "better").index)


def test_what_has_no_result_is_no_miss_and_is_counted(base: Run) -> None:
    cells = base.cells.copy()
    out = needles_at(cells) & (cells["document"] == 3)
    cells.loc[out, "status"] = "oom"
    cells.loc[out, "correct"] = pd.NA
    cells = cells[~(needles_at(cells) & (cells["document"] == 4))].reset_index(drop=True)
    cells.loc[losses_at(cells) & (cells["document"] == 0), ["status", "nll"]] = ["oom", math.nan]
    found = against(base, with_cells(base, cells))
    recall, loss = at(found, "recall"), at(found, "perplexity")
    assert (recall.value, recall.pairs, recall.missing, recall.documents) == (0.0, 54, 18, 6)
    assert (loss.value, loss.pairs, loss.missing) == (1.0, 7, 1)
    found = against(with_cells(base, cells), base)  # whichever side lacks them
    assert (at(found, "recall").missing, at(found, "perplexity").missing) == (18, 1)


def test_what_emits_nan_is_worse(base: Run) -> None:
    cells = base.cells.copy()
    out = needles_at(cells) & (cells["document"] < 6)
    cells.loc[out, "status"] = "nan"
    cells.loc[out, "correct"] = pd.NA
    cells.loc[losses_at(cells) & (cells["document"] == 0), ["status", "nll"]] = ["nan", math.nan]
    found = against(base, with_cells(base, cells))
    recall, loss = at(found, "recall"), at(found, "perplexity")
    assert (recall.value, recall.candidate_nan, recall.missing, recall.state) == (-0.75, 54, 0, "worse")
    assert (loss.state, loss.candidate_nan) == ("worse", 1) and math.isnan(loss.value)
    assert found.changes[0].state == "worse" and found.verdict == "worse"
    back = against(with_cells(base, cells), base)
    loss = at(back, "perplexity")  # nothing is known of that document
    assert (loss.state, loss.baseline_nan, loss.pairs, loss.missing) == ("open", 1, 7, 0)
    both = against(with_cells(base, cells), with_cells(base, cells))
    assert at(both, "perplexity").state == "missing"


def test_a_length_or_a_probe_that_one_side_lacks_is_shown_as_missing(base: Run) -> None:
    cells = base.cells[~losses_at(base.cells) & ~needles_at(base.cells)].reset_index(drop=True)
    found = against(base, with_cells(base, cells))
    assert [(one.metric, one.length, one.missing) for one in found.having("missing")] == [
        ("recall", 4096, 72),
        ("perplexity", 4096, 8),
    ]
    assert found.tests == 6
    nothing = base.cells[base.cells["scale"] == "none"].reset_index(drop=True)
    assert against(base, with_cells(base, nothing)).verdict == "nothing to compare"


def test_few_documents_decide_nothing() -> None:
    base, other = make_run("base", flat(1.0), documents=5), make_run("other", flat(0.0), documents=5)
    found = against(base, other)
    assert found.verdict == "open" and not found.decidable
    found = against(make_run("base", flat(1.0), documents=6), make_run("other", flat(0.0), documents=6))
    assert found.verdict == "worse" and found.decidable


def test_significance_never_contradicts_the_interval() -> None:
    change = Change("recall", 4096, value=-0.1, low=-0.3, high=0.02, p_value=0.001)
    assert change.judged(0.001) == "open"
    assert Change("recall", 4096, value=-0.1, low=-0.3, high=-0.02).judged(0.051) == "open"
    assert Change("recall", 4096, value=-0.1, low=-0.3, high=-0.02).judged(0.05) == "worse"
    assert Change("perplexity", 4096, value=1.1, low=1.05, high=1.2).judged(0.01) == "worse"
    assert Change("perplexity", 4096, value=0.9, low=0.8, high=0.95).judged(0.01) == "better"


def test_unlike_runs_are_refused_with_the_difference(base: Run) -> None:
    other = Run(base.path, manifest(documents=8, seed=1), base.cells)
    with pytest.raises(UsageError, match="base@yarn is unlike base@yarn: seed 0 → 1.*--allow-mismatch"):
        against(base, other)
    assert at(against(base, other, allow_mismatch=True), "recall").pairs == 72


def test_allow_mismatch_compares_the_lengths_that_both_have(base: Run) -> None:
    longer = make_run("longer", flat(1.0), flat(0.1), documents=8, lengths=(2048, 4096, 8192))
    found = against(base, longer, allow_mismatch=True)
    assert {one.length for one in found.changes} == {2048, 4096}
    assert [one.name for one in found.likeness.refused] == ["lengths"]


def test_another_tokenizer_is_compared_in_bits_per_byte(base: Run) -> None:
    cells = base.cells.copy()
    mine = losses_at(cells)
    cells.loc[mine, "bytes"] = 1024  # half the bytes in as many tokens
    cells["needle_id"] = cells["needle_id"].where(cells["needle_id"].isna(), "x" + cells["needle_id"].astype(str))
    about = {**copy.deepcopy(base.manifest), "tokenizer": {"sha256": "other"}}
    found = against(base, Run(base.path, about, cells))
    change = at(found, "bits per byte")
    loss = base.cells[losses_at(base.cells)]["nll"].sum() / math.log(2)
    assert change.baseline == pytest.approx(loss / (8 * 2048)) and change.candidate == pytest.approx(loss / (8 * 1024))
    assert change.value == pytest.approx(change.candidate - change.baseline) and change.state == "worse"
    assert not [one for one in found.changes if one.metric == "perplexity"]
    assert at(found, "recall").pairs == 72 and at(found, "recall").missing == 0  # paired by document and depth


def test_unknown_tokenizers_are_told_from_the_text(base: Run) -> None:
    old = {key: value for key, value in base.manifest.items() if key != "tokenizer"}
    assert at(against(base, Run(base.path, old, base.cells)), "perplexity").value == 1.0
    cells = base.cells.copy()
    cells.loc[losses_at(cells) & (cells["document"] == 0), "bytes"] += 1
    assert at(against(base, Run(base.path, old, cells)), "bits per byte").pairs == 8


def test_bits_per_byte_of_equal_documents_is_a_t_interval() -> None:
    generator = np.random.default_rng(0)
    one, other = (
        pd.DataFrame({"document": range(8), "nll": generator.normal(100, 5, 8), "bytes": 50.0}) for _ in range(2)
    )
    bounds, parts = bits_per_byte_change(one, other, 0.025)
    shift = (one["nll"] - other["nll"]) / math.log(2)
    assert bounds == pytest.approx(mean_bounds(shift, one["bytes"], 0.025))
    assert parts.sum() == pytest.approx(bounds[0])


def test_a_paired_proportion_without_disagreement_has_width() -> None:
    share = PairedProportion(0.0, 0.0, 72, 8, 72.0)
    low, high = share.bounds(0.025)
    assert -0.15 < low < 0 < high < 0.15 and low == -high
    assert share.bounds(0.025, growth=4.0)[0] > low
    assert PairedProportion(0.0, 1.0, 8, 8, 8.0).bounds(0.025)[0] == -1.0


def test_sides() -> None:
    run = make_run("runs/a", flat(1.0), scales=("none", "pi", "yarn"), documents=2)
    assert side(run, "pi").name == "runs/a@pi" and side(run, "pi").scaling["factor"] == 4.0
    assert side(make_run("one", flat(1.0), documents=2)).scale == "yarn"
    assert side(make_run("one", flat(1.0), documents=2, scales=("none",))).scale == "none"
    with pytest.raises(UsageError, match="runs/a has the scalings none, pi, yarn. name one: runs/a@pi"):
        side(run)
    with pytest.raises(UsageError, match="unknown scaling of runs/a 'yarm'. Did you mean 'yarn'"):
        side(run, "yarm")
    with pytest.raises(UsageError, match="no rows"):
        side(with_cells(run, run.cells[:0]))
    with pytest.raises(UsageError, match="does not say what was asked for"):
        side(Run(run.path, {"identity": {}}, run.cells))
    assert side(run, "pi").lengths == LENGTHS
