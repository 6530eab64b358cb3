"""States, onsets, order and blind spot."""

from __future__ import annotations

import math
from typing import cast

import numpy as np
import pytest

from ctxeval.analysis.onset import (
    Onset,
    State,
    blind_spot,
    holds_through,
    length_label,
    onset,
    order,
    ratio_states,
    recall_states,
)
from ctxeval.analysis.perplexity import perplexity_rows
from ctxeval.analysis.recall import asked, scored
from tests.analysis.synthetic_cells import Truth, frame, needle_cells, perplexity_cells

LENGTHS = (1024, 2048, 4096, 8192)
NAMES = {"h": "holds", "b": "broken", "u": "undecided", "-": "missing"}


def states(code: str) -> dict[int, State]:
    return {length: cast(State, NAMES[letter]) for length, letter in zip(LENGTHS, code, strict=False)}


@pytest.mark.parametrize(
    ("recall", "ratio", "expected"),
    [
        ("hhbb", "hhhh", "retrieval first"),
        ("hhbb", "hhhb", "retrieval first"),
        ("hhhh", "hhbb", "perplexity first"),
        ("hhhb", "hhbb", "perplexity first"),
        ("hbhh", "hhbh", "retrieval first"),
        ("hhbh", "hbhh", "perplexity first"),
        ("hhbb", "hhbb", "both"),
        ("bbbb", "bbbb", "both"),
        ("hhhh", "hhhh", "neither"),
        ("hhub", "hhub", "not resolved"),
        ("hhub", "hhhb", "not resolved"),
        ("hhuu", "hhhh", "not resolved"),
        ("uubu", "uuuu", "not resolved"),
        ("hhbb", "----", "retrieval only"),
        ("----", "hhhh", "perplexity only"),
        ("----", "----", "nothing measured"),
        ("hhb-", "hhh-", "retrieval first"),
        ("hhh-", "hhh-", "not resolved"),
        ("h-hh", "h-hh", "not resolved"),
        ("h-bb", "h-bb", "not resolved"),
        ("hb--", "hb--", "both"),
        ("hhh-", "hhhh", "not resolved"),
    ],
)
def test_order(recall: str, ratio: str, expected: str) -> None:
    assert order(states(recall), states(ratio)) == expected


def test_without_a_signal_there_is_no_verdict() -> None:
    assert order(states("bbbb"), states("hhhh"), signal=False) == "no signal"
    assert order(states("----"), states("hhhh"), signal=False) == "perplexity only"


@pytest.mark.parametrize(
    ("code", "expected", "text"),
    [
        ("hhbb", Onset(2048, 4096), "(2K, 4K]"),
        ("hubb", Onset(1024, 4096), "(1K, 4K]"),
        ("bbbb", Onset(None, 1024), "≤ 1K"),
        ("ubhb", Onset(None, 2048), "≤ 2K"),
        ("hhuh", Onset(8192, None), "not broken"),
    ],
)
def test_onset(code: str, expected: Onset, text: str) -> None:
    assert onset(states(code)) == expected
    assert str(onset(states(code))) == text


@pytest.mark.parametrize(
    ("code", "through"),
    [("hhbh", 2048), ("h-hb", 1024), ("-hhh", None), ("hhh-", 4096), ("uhhh", None), ("hhhh", 8192)],
)
def test_holds_through(code: str, through: int | None) -> None:
    assert holds_through(states(code)) == through


def test_the_blind_spot_keeps_its_gaps() -> None:
    assert blind_spot(states("bubh"), states("hhhh")) == (1024, 4096)
    assert blind_spot(states("bbbb"), states("bu-b")) == ()


def test_lengths_are_written_short_where_that_is_exact() -> None:
    assert [length_label(length) for length in (512, 1024, 2560, 16384, 5000)] == ["512", "1K", "2.5K", "16K", "5000"]


def recall_letters(truth: Truth, documents: int = 16, scale: str = "yarn") -> str:
    generator = np.random.default_rng(1)
    rows = scored(asked(frame(needle_cells(generator, truth, ("none", "yarn"), LENGTHS, documents, correlation=0.05))))
    found = recall_states(rows[rows["scale"] == scale], rows, LENGTHS, 2048)
    return "".join(found[length][0] for length in LENGTHS)


def test_recall_is_judged_against_the_unpatched_model_and_not_against_itself() -> None:
    # A patch that finds nothing anywhere is broken everywhere: its own short contexts are no reference.
    assert recall_letters(lambda scale, length: 0.97 if scale == "none" else 0.0) == "bbbb"
    assert recall_letters(lambda scale, length: 0.97 if length <= 2048 else 0.5) == "hhbb"


def test_a_weak_reference_asks_for_less() -> None:
    # 0.55 is broken against R = 0.97 and holds against R = 0.4.
    assert recall_letters(lambda scale, length: 0.97 if scale == "none" else 0.55) == "bbbb"
    assert recall_letters(lambda scale, length: 0.4 if scale == "none" else 0.55, documents=40) == "hhhh"


def test_near_the_bar_or_with_few_documents_nothing_is_decided() -> None:
    assert recall_letters(lambda scale, length: 0.97 if scale == "none" else 0.82) == "uuuu"
    assert recall_letters(lambda scale, length: 0.97, documents=2) == "uuuu"


def test_without_a_reference_recall_is_undecided_and_unmeasured_lengths_are_missing() -> None:
    generator = np.random.default_rng(1)
    rows = scored(asked(frame(needle_cells(generator, lambda scale, length: 1.0, ("yarn",), (1024,), 16))))
    assert recall_states(rows, rows, LENGTHS, 2048) == states("u---")


def test_the_reference_is_taken_on_the_same_documents() -> None:
    generator = np.random.default_rng(1)
    # The unpatched model finds nothing in documents 16 to 31; yarn was run on 0 to 15 only.
    rows = scored(asked(frame(needle_cells(generator, lambda scale, length: 1.0, ("none", "yarn"), LENGTHS, 32))))
    rows.loc[(rows["scale"] == "none") & (rows["document"] >= 16), "hit"] = 0.0
    own = rows[(rows["scale"] == "yarn") & (rows["document"] < 16)].assign(hit=0.6)
    own["hit"] = (own["depth_percent"] < 60).astype(float)
    assert recall_states(own, rows, LENGTHS, 2048) == states("bbbb")


def test_what_is_left_of_a_length_can_break_and_cannot_hold() -> None:
    generator = np.random.default_rng(1)
    truth: Truth = lambda scale, length: 0.97 if length <= 4096 else 0.3  # noqa: E731
    rows = scored(asked(frame(needle_cells(generator, truth, ("none", "yarn"), LENGTHS, 16, correlation=0.05))))
    own = rows[rows["scale"] == "yarn"]
    assert recall_states(own, rows, LENGTHS, 2048) == states("hhhb")
    assert recall_states(own, rows, LENGTHS, 2048, incomplete={4096, 8192}) == states("hhub")


@pytest.mark.parametrize(("status", "code"), [("nan", "bb-"), ("oom", "ub-"), ("error", "ub-"), ("skipped", "ub-")])
def test_one_loss_without_a_result_keeps_the_ratio_from_holding(status: str, code: str) -> None:
    generator = np.random.default_rng(1)
    excess = {1024: -0.02, 2048: 0.3}
    table = frame(perplexity_cells(generator, lambda scale, length: excess[length], ("pi",), LENGTHS[:2], 8))
    assert ratio_states(perplexity_rows(table), LENGTHS[:3]) == states("hb-")
    table.loc[table["document"] == 0, ["status", "nll"]] = [status, math.nan]
    assert ratio_states(perplexity_rows(table), LENGTHS[:3]) == states(code)


def test_a_loss_without_a_baseline_is_missing() -> None:
    generator = np.random.default_rng(1)
    table = frame(perplexity_cells(generator, lambda scale, length: -0.02, ("pi",), LENGTHS[:3], 8))
    table.loc[(table["context_length"] == 2048) & (table["document"] == 0), "baseline_nll"] = math.nan
    table.loc[table["context_length"] == 4096, "baseline_nll"] = math.nan
    assert ratio_states(perplexity_rows(table), LENGTHS) == states("hu--")


def test_ratio_states() -> None:
    generator = np.random.default_rng(1)
    excess = {1024: -0.02, 2048: 0.049, 4096: 0.3, 8192: 0.0}
    table = frame(perplexity_cells(generator, lambda scale, length: excess[length], ("pi",), LENGTHS[:3], 8))
    assert ratio_states(perplexity_rows(table), LENGTHS) == states("hub-")
    assert ratio_states(perplexity_rows(table), LENGTHS, epsilon=0.5) == states("hhh-")
