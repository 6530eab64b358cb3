"""A gate passes what credibly keeps the policy, fails what credibly does not, and is never green by absence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t

from ctxeval.analysis.completeness import doubt_of
from ctxeval.analysis.evidence import ratio_evidence
from ctxeval.analysis.gate import Gate, choose_scaling, gate, gate_run
from ctxeval.analysis.headline import headline
from ctxeval.analysis.perplexity import ratio_bounds
from ctxeval.analysis.question import Grid
from ctxeval.errors import ExitCode, UsageError
from ctxeval.policy import parse_policy
from tests.analysis.synthetic_cells import DEPTHS, Truth, frame, needle_cells, perplexity_cells, probability

NATIVE = 2048
LENGTHS = (1024, 2048, 4096, 8192)
SCALES = ("none", "yarn")
GRID = Grid(target=8192, lengths=LENGTHS, depths=DEPTHS)
FLAT = {"recall": [{"lengths": "8k", "floor": 0.8}]}


def needles(truth: Truth, documents: int = 24, seed: int = 0, **columns: Any) -> pd.DataFrame:
    return frame(needle_cells(np.random.default_rng(seed), truth, SCALES, LENGTHS, documents, **columns))


def losses(excess: Truth, documents: int = 16, seed: int = 0) -> pd.DataFrame:
    return frame(perplexity_cells(np.random.default_rng(seed), excess, SCALES, LENGTHS, documents))


def whole(recall: float, excess: float, documents: int = 24, **columns: Any) -> pd.DataFrame:
    """Return a run in which yarn has this recall and this excess loss beyond the native window, and is good in it."""
    hits = needles(lambda scale, length: 0.97 if length <= NATIVE else recall, documents, **columns)
    return pd.concat([hits, losses(lambda scale, length: 0.0 if length <= NATIVE else excess)], ignore_index=True)


def check(policy: dict[str, Any], cells: pd.DataFrame, *, scale: str = "yarn", grid: Grid = GRID, **more: Any) -> Gate:
    summary = headline(cells, native_window=NATIVE, lengths=grid.lengths, scalings=SCALES)
    return gate(parse_policy(policy, "p.yaml"), cells, summary, scale, grid, **more)


def states(found: Gate) -> list[str]:
    return [one.state for one in found.checks]


def only(found: Gate) -> Any:
    (one,) = found.checks
    return one


@pytest.mark.parametrize(("floor", "verdict"), [(0.5, "pass"), (0.88, "inconclusive"), (0.99, "fail")])
def test_a_recall_floor(floor: float, verdict: str) -> None:
    cells = needles(lambda scale, length: 0.9)
    one = only(check({"recall": [{"lengths": "8k", "floor": floor}]}, cells))
    assert one.state == verdict
    assert one.documents == 24 and one.rows == 24 * 9
    assert (one.low >= floor) == (verdict == "pass") and (one.high < floor) == (verdict == "fail")
    assert (one.more_documents is not None) == (verdict == "inconclusive")


@pytest.mark.parametrize(("ceiling", "verdict"), [(1.2, "pass"), (1.105, "inconclusive"), (1.02, "fail")])
def test_a_ratio_ceiling(ceiling: float, verdict: str) -> None:
    cells = losses(lambda scale, length: 0.1)
    one = only(check({"perplexity": [{"lengths": "8k", "max_ratio": ceiling}]}, cells))
    assert one.state == verdict
    assert (one.high <= ceiling) == (verdict == "pass") and (one.low > ceiling) == (verdict == "fail")


def test_the_ratio_of_a_model_to_itself_is_exactly_1() -> None:
    one = only(check({"perplexity": [{"lengths": "8k", "max_ratio": 1.0}]}, losses(lambda scale, length: 0.0)))
    assert (one.state, one.low, one.high) == ("pass", 1.0, 1.0)


def test_as_many_more_documents_as_it_says_do_decide() -> None:
    def asked(documents: int) -> Any:
        cells = needles(lambda scale, length: 1.0, documents, correlation=0)
        return only(check({"recall": [{"lengths": "8k", "floor": 0.9}]}, cells))

    few = asked(8)
    assert few.state == "inconclusive" and few.more_documents > 0
    assert asked(8 + few.more_documents).state == "pass"
    assert asked(8 + few.more_documents - 1).state == "inconclusive"


def test_a_value_at_its_bar_is_never_decided() -> None:
    cells = needles(lambda scale, length: 1.0, 8, depths=(0, 50), correlation=0)
    cells.loc[(cells["depth_percent"] == 50) & (cells["document"] < 4), "correct"] = False
    one = only(check({"recall": [{"lengths": "8k", "floor": 0.75}]}, cells, grid=Grid(8192, LENGTHS, (0.0, 50.0))))
    assert one.value == 0.75 and one.state == "inconclusive" and one.more_documents is None


def test_lengths_are_chosen_by_range_name_and_value() -> None:
    cells = needles(lambda scale, length: 1.0)

    def lengths(span: Any) -> list[int]:
        return [one.length for one in check({"recall": [{"lengths": span, "floor": 0.5}]}, cells).checks]

    assert lengths("..4k") == [1024, 2048, 4096]
    assert lengths("native..target") == [2048, 4096, 8192]
    assert lengths("4k..") == [4096, 8192]
    assert lengths(["1k", "target"]) == [1024, 8192]


def test_depths_are_chosen() -> None:
    cells = needles(lambda scale, length: 1.0)
    cells.loc[cells["depth_percent"] >= 50, "correct"] = False
    found = check({"recall": [{"lengths": "8k", "floor": 0.5, "depths": depths} for depths in ("..40", "60..")]}, cells)
    assert states(found) == ["pass", "fail"]
    assert found.checks[0].rows == 24 * 4


@pytest.mark.parametrize(
    ("rule", "lengths", "wanted"),
    [
        ({"recall": [{"lengths": "16k", "floor": 0.5}]}, (16384,), "no needle rows of yarn at 16K"),
        ({"recall": [{"lengths": "8k..16k", "floor": 0.5}]}, (8192, 16384), "no needle rows of yarn at 16K"),
        ({"recall": [{"lengths": "16k..", "floor": 0.5}]}, (16384,), "no needle rows of yarn at 16K"),
        ({"recall": [{"lengths": "8k", "floor": 0.5, "depths": "30..31"}]}, (8192,), "no depth between 30 and 31"),
        ({"recall": [{"lengths": "8k", "floor": 0.5, "depths": [0, 33]}]}, (8192,), "no depth 33 %"),
        ({"perplexity": [{"lengths": "16k", "max_ratio": 1.1}]}, (16384,), "no perplexity rows of yarn at 16K"),
        ({"min_effective_length": "16k"}, (*LENGTHS, 16384), "no needle rows of yarn at 16K"),
        ({"no_blind_spot_up_to": "16k"}, (*LENGTHS, 16384), "no needle rows of yarn at 16K"),
    ],
)
def test_what_the_run_does_not_have_never_passes(rule: dict[str, Any], lengths: tuple[int, ...], wanted: str) -> None:
    found = check(rule, whole(1.0, 0.0, correlation=0))
    assert tuple(one.length for one in found.checks) == lengths
    assert (found.verdict, found.exit_code) == ("inconclusive", ExitCode.INCONCLUSIVE)
    assert wanted in found.checks[-1].note


def test_a_probe_that_was_not_run() -> None:
    rules = {"perplexity": [{"lengths": "8k", "max_ratio": 1.1}], "no_blind_spot_up_to": "2k"}
    found = check(rules, needles(lambda scale, length: 1.0))
    assert set(states(found)) == {"inconclusive"}
    assert {one.note for one in found.checks} == {"the run has no perplexity rows of yarn at all"}
    other = check(FLAT, losses(lambda scale, length: 0.0))
    assert only(other).note == "the run has no needle rows of yarn at all"


@pytest.mark.parametrize("probe", ["needle", "perplexity"])
@pytest.mark.parametrize(("status", "state", "cause"), [("nan", "fail", "nan"), ("oom", "inconclusive", "missing")])
def test_rows_without_a_result(probe: str, status: str, state: str, cause: str) -> None:
    cells = whole(1.0, 0.0, correlation=0)
    policy = {"recall": [{"lengths": "8k", "floor": 0.5}], "perplexity": [{"lengths": "8k", "max_ratio": 1.2}]}
    assert states(check(policy, cells)) == ["pass", "pass"]
    row = cells.index[(cells["probe"] == probe) & (cells["scale"] == "yarn") & (cells["context_length"] == 8192)][0]
    cells.loc[row, ["status", "correct", "nll"]] = [status, pd.NA, math.nan]
    found = check(policy, cells)
    mine, other = found.checks if probe == "needle" else found.checks[::-1]
    assert (mine.state, mine.cause, other.state) == (state, cause, "pass")
    assert dict(mine.lost) == ({"oom": 1} if status == "oom" else {})
    # The same row at a length that no rule asks for concerns nobody.
    assert states(check({"recall": [{"lengths": "4k", "floor": 0.5}]}, cells)) == ["pass"]


def test_all_rows_lost() -> None:
    cells = needles(lambda scale, length: 1.0)
    cells.loc[cells["context_length"] == 8192, ["status", "correct"]] = ["oom", pd.NA]
    one = only(check(FLAT, cells))
    assert (one.state, one.cause, dict(one.lost)) == ("inconclusive", "missing", {"oom": 24 * 9})


def test_a_loss_without_a_baseline() -> None:
    policy = {"perplexity": [{"lengths": "8k", "max_ratio": 1.2}]}
    cells = losses(lambda scale, length: 0.01)
    row = cells.index[(cells["scale"] == "yarn") & (cells["context_length"] == 8192)][0]
    cells.loc[row, "baseline_nll"] = math.nan
    assert only(check(policy, cells)).cause == "missing"


def test_what_is_left_can_fail() -> None:
    cells = needles(lambda scale, length: 0.1)
    cells.loc[cells.index[-1], ["status", "correct"]] = ["oom", pd.NA]
    assert only(check(FLAT, cells)).state == "fail"


def test_rows_that_are_not_there() -> None:
    cells = needles(lambda scale, length: 1.0, correlation=0)
    mine = (cells["scale"] == "yarn") & (cells["context_length"] == 8192)
    assert only(check(FLAT, cells)).state == "pass"
    # One that the other scaling has; a depth that neither has; documents that neither has.
    torn = only(check(FLAT, cells.drop(cells.index[mine][-1])))
    assert (torn.cause, dict(torn.lost)) == ("missing", {"absent": 1})
    assert only(check(FLAT, cells[cells["depth_percent"] != 50])).cause == "missing"
    assert only(check(FLAT, cells, grid=Grid(8192, LENGTHS, DEPTHS, contexts=25))).missing == 1
    # Two depths of one document on one sentence are one needle: nothing is absent.
    merged = cells[(cells["document"] != 3) | (cells["depth_percent"] != 50)]
    assert only(check(FLAT, merged, grid=Grid(8192, LENGTHS, DEPTHS, contexts=24))).state == "pass"
    loss = {"perplexity": [{"lengths": "8k", "max_ratio": 1.2}]}
    assert only(check(loss, losses(lambda scale, length: 0.0), grid=Grid(8192, LENGTHS, losses=18))).missing == 2


def test_few_documents() -> None:
    one = only(check({**FLAT, "min_documents": 30}, needles(lambda scale, length: 0.1)))
    assert (one.state, one.cause, one.more_documents) == ("inconclusive", "few", 6)


def test_an_unfinished_run_can_fail_but_not_pass() -> None:
    good, bad = (needles(lambda scale, length, rate=rate: rate) for rate in (1.0, 0.1))  # type: ignore[misc]
    one = only(check(FLAT, good, doubt="the run is not finished"))
    assert (one.state, one.note) == ("inconclusive", "the run is not finished")
    assert only(check(FLAT, bad, doubt="the run is not finished")).state == "fail"


def test_packed_needles_that_the_exact_ones_contradict() -> None:
    packed = needles(lambda scale, length: 1.0, correlation=0, plan="packed")
    exact = needles(lambda scale, length: 0.0, correlation=0, plan="exact")
    assert only(check(FLAT, packed)).state == "pass"
    one = only(check(FLAT, pd.concat([packed, exact], ignore_index=True)))
    assert one.state == "inconclusive" and "disagree" in one.note


def test_effective_length() -> None:
    policy = {"min_effective_length": "3k"}
    found = check(policy, whole(1.0, 0.0, correlation=0))
    # 4K is measured and says more than 3K; 8K is not needed.
    assert [one.length for one in found.checks] == [1024, 2048, 4096] and found.verdict == "pass"
    assert check(policy, whole(0.3, 0.0)).verdict == "fail"
    assert states(check(policy, whole(0.83, 0.0)))[-1] == "inconclusive"


def test_a_reference_that_finds_nothing_gives_no_verdict() -> None:
    found = check({"min_effective_length": "4k"}, needles(lambda scale, length: 0.05))
    assert {(one.state, one.note[:9]) for one in found.checks} == {("inconclusive", "no signal")}


def test_no_reference() -> None:
    cells = needles(lambda scale, length: 1.0)
    found = check({"min_effective_length": "4k"}, cells[cells["scale"] == "yarn"])
    assert "'none' to compare with" in found.checks[0].note and found.verdict == "inconclusive"


@pytest.mark.parametrize(
    ("recall", "excess", "verdict"),
    [(0.3, 0.0, "fail"), (1.0, 0.0, "pass"), (0.3, 1.0, "pass"), (1.0, 1.0, "pass"), (0.83, 0.0, "inconclusive")],
)
def test_blind_spot(recall: float, excess: float, verdict: str) -> None:
    found = check({"no_blind_spot_up_to": "4k"}, whole(recall, excess, correlation=0.05))
    assert [one.length for one in found.checks] == [1024, 2048, 4096]
    assert found.checks[-1].state == verdict


def test_a_blind_spot_needs_both_probes_to_be_sure() -> None:
    policy = {"no_blind_spot_up_to": "4k"}
    at_the_limit = check(policy, whole(0.3, math.log(1.05))).checks[-1]
    assert (at_the_limit.state, at_the_limit.cause) == ("inconclusive", "undecided")
    cells = whole(0.3, 0.0)
    row = cells.index[(cells["probe"] == "perplexity") & (cells["scale"] == "yarn") & (cells["context_length"] == 4096)]
    cells.loc[row[0], ["status", "nll"]] = ["oom", math.nan]
    lost = check(policy, cells).checks[-1]
    assert (lost.state, lost.cause, dict(lost.lost)) == ("inconclusive", "missing", {"oom": 1})


def test_a_ratio_of_four_times_the_documents_has_half_the_interval() -> None:
    cells = losses(lambda scale, length: 0.1)
    mine = cells[(cells["scale"] == "yarn") & (cells["context_length"] == 8192)]
    found = ratio_evidence(mine)
    now, then = (np.diff(np.log(found.bounds(0.025, growth)))[0] for growth in (1.0, 4.0))
    assert now / then == pytest.approx(2 * t.ppf(0.975, 15) / t.ppf(0.975, 63))
    assert found.bounds(0.025, 1.0) == pytest.approx(ratio_bounds(mine, 0.025))


def test_short_context() -> None:
    policy = {"short_context": {"min_recall_share": 0.85, "max_ratio": 1.05}}
    found = check(policy, whole(0.1, 1.0))
    assert [one.length for one in found.checks] == [1024, 1024, 2048, 2048] and found.verdict == "pass"
    hurt = needles(lambda scale, length: 0.95 if scale == "none" else 0.5)
    cells = pd.concat([hurt, losses(lambda scale, length: 0.1)], ignore_index=True)
    assert states(check(policy, cells)) == ["fail"] * 4


def test_a_fail_outweighs_what_is_open() -> None:
    cells = needles(lambda scale, length: 0.3)
    found = check({"recall": [{"lengths": [length], "floor": 0.8} for length in ("16k", "8k")]}, cells)
    assert states(found) == ["inconclusive", "fail"] and found.exit_code == ExitCode.GATE_FAILED


def test_choice_of_the_scaling() -> None:
    assert choose_scaling(["none", "yarn"], None) == "yarn"
    assert choose_scaling(["none"], None) == "none"
    assert choose_scaling(["none", "pi", "yarn"], "pi") == "pi"
    with pytest.raises(UsageError, match="none, pi, yarn. say which one ships with --scale"):
        choose_scaling(["none", "pi", "yarn"], None)
    with pytest.raises(UsageError, match="unknown scaling of this run 'yarm'. Did you mean 'yarn'"):
        choose_scaling(["none", "yarn"], "yarm")


@pytest.mark.parametrize("broken", [{}, {"resolved": None}, {"resolved": {"lengths": ["x"], "scalings": []}}])
def test_a_manifest_that_does_not_say_the_grid(broken: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="does not say what was asked for"):
        gate_run(parse_policy(FLAT, "p"), needles(lambda scale, length: 1.0), broken)


def test_a_run_without_rows() -> None:
    with pytest.raises(UsageError, match="no rows"):
        gate_run(parse_policy(FLAT, "p"), needles(lambda scale, length: 1.0).iloc[:0], {})


#: Rows to draw hits into, by the number of documents: making rows takes longer than judging them.
ROWS = {
    documents: frame(needle_cells(np.random.default_rng(0), lambda *_: 0.0, ("yarn",), (4096, 8192), documents))
    for documents in (8, 16, 24)
}


def shares(rates: Sequence[float], floor: float, documents: int, correlation: float, runs: int) -> tuple[float, float]:
    """Return how often a gate passes and fails on runs of one scaling with these true recalls at 4K (and 8K)."""
    lengths = (4096, 8192)[: len(rates)]
    policy = parse_policy({"recall": [{"lengths": "4k..", "floor": floor}]}, "p")
    summary = headline(losses(lambda scale, length: 0.0), native_window=NATIVE, lengths=lengths, scalings=SCALES)
    rows, verdicts = ROWS[documents][ROWS[documents]["context_length"].isin(lengths)], []
    for seed in range(runs):
        generator = np.random.default_rng([seed, documents, round(100 * correlation)])
        drawn = [probability(generator, rate, correlation, documents) for rate in rates]
        hits = [generator.random((documents, len(DEPTHS))) < one[:, None] for one in drawn]
        cells = rows.assign(correct=np.concatenate([one.ravel() for one in hits]))
        verdicts.append(gate(policy, cells, summary, "yarn", Grid(lengths[-1], lengths, DEPTHS)).verdict)
    return verdicts.count("pass") / runs, verdicts.count("fail") / runs


@pytest.mark.parametrize(("documents", "correlation"), [(16, 0.1), (24, 0.3)])
def test_a_model_at_the_floor_rarely_passes_and_rarely_fails(documents: int, correlation: float) -> None:
    """One check only: with more of them, a pass needs all and a fail is tested at a stricter level."""
    passed, failed = shares((0.85,), 0.85, documents, correlation, 200)
    assert passed <= 0.05 and failed <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("floor", [0.8, 0.9])
@pytest.mark.parametrize("documents", [8, 16, 24])
@pytest.mark.parametrize("correlation", [0.0, 0.3])
def test_two_lengths_of_which_one_is_at_the_floor(documents: int, correlation: float, floor: float) -> None:
    """4K is far above the floor, so that the gate passes wherever 8K does: the most likely false pass."""
    passed, failed = shares((1.0, floor), floor, documents, correlation, 400)
    print(f"floor {floor}, {documents} documents, correlation {correlation}: passed {passed:.1%}, failed {failed:.1%}")
    assert passed <= 0.05 and failed <= 0.05


def test_that_is_not_bought_by_never_deciding() -> None:
    passed, _ = shares((1.0, 0.95), 0.8, 24, 0.1, 60)
    _, failed = shares((1.0, 0.55), 0.8, 24, 0.1, 60)
    assert passed >= 0.8 and failed >= 0.8


def test_a_finished_run_that_does_not_say_how_many_rows_it_has_is_never_green() -> None:
    """Without `planned_rows` nothing tells a whole file from one that was cut."""
    finished = {"finished": "x", "planned_rows": 9}
    assert doubt_of(finished, 9) == ""
    assert doubt_of({"finished": "x"}, 9).startswith("the run does not say how many rows it should have: `ctxeval run")
    assert doubt_of(finished, 8).startswith("the run lost 1 of its 9 rows")
    assert doubt_of({"planned_rows": 9}, 9) == "the run is not finished"
