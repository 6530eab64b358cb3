"""The one sentence: never green unless everything that was measured holds, in a whole run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ctxeval.analysis.headline import headline
from ctxeval.report.conclusion import Conclusion, conclusion
from tests.analysis.synthetic_cells import frame, needle_cells, perplexity_cells

LENGTHS = (4096, 8192, 16384)
FINISHED = {"finished": "2026-01-01"}


def judge(
    recall: dict[str, float],
    excess: dict[str, float],
    documents: int = 48,
    manifest: dict[str, Any] = FINISHED,
    probes: str = "np",
) -> Conclusion:
    """Judge a run of scalings that beyond the native window (8192) have this recall and excess loss (nats)."""
    scales = ("none", *recall)
    generator = np.random.default_rng(0)

    def hit(scale: str, length: int) -> float:
        return 1.0 if scale == "none" or length <= 8192 else recall[scale]

    def loss(scale: str, length: int) -> float:
        return 0.0 if scale == "none" or length <= 8192 else excess[scale]

    needles = needle_cells(generator, hit, scales, LENGTHS, documents, correlation=0) if "n" in probes else []
    losses = perplexity_cells(generator, loss, scales, LENGTHS, documents, spread=0.0) if "p" in probes else []
    cells = frame(needles, losses)
    return conclusion(cells, manifest, headline(cells, native_window=8192, lengths=LENGTHS, scalings=scales))


def test_what_works_is_said_with_what_does_not() -> None:
    found = judge({"yarn": 1.0, "pi": 0.0}, {"yarn": -0.02, "pi": 1.0})
    assert found == Conclusion("good", "yarn ×4 works up to 16K; pi ×4 (by 16K) is broken.")
    both = judge({"yarn": 1.0, "ntk": 1.0}, {"yarn": -0.02, "ntk": -0.02})
    assert both == Conclusion("good", "yarn ×4 and ntk ×4 work up to 16K.")


def test_a_blind_spot_is_named() -> None:
    found = judge({"yarn": 0.0}, {"yarn": -0.02})
    assert found.tone == "bad"
    said = "Does not work up to 16K: yarn ×4 (by 16K) is broken; perplexity alone would have passed yarn ×4 at 16K."
    assert found.sentence == said


def test_what_is_undecided_is_neither() -> None:
    found = judge({"yarn": 0.85}, {"yarn": -0.02}, documents=4)
    assert found == Conclusion("open", "Not shown to work up to 16K: yarn ×4 is undecided.")


@pytest.mark.parametrize(
    ("manifest", "why"),
    [
        ({}, "the run is not finished"),
        ({"finished": "x", "planned_rows": 3000}, "the run lost 120 of its 3000 rows"),
    ],
)
def test_a_run_that_is_not_whole_is_never_green(manifest: dict[str, Any], why: str) -> None:
    found = judge({"yarn": 1.0}, {"yarn": -0.02}, manifest=manifest)
    assert found.tone == "open"
    assert found.sentence == f"Not shown to work up to 16K: yarn ×4: recall and perplexity hold up to 16K; {why}."


def test_a_packed_plan_that_contradicts_the_exact_one_is_never_green() -> None:
    generator = np.random.default_rng(0)
    packed = needle_cells(generator, lambda s, n: 1.0, ("none", "yarn"), LENGTHS, 24, plan="packed", n_needles=10)
    exact = needle_cells(generator, lambda s, n: 0.3, ("yarn",), (4096,), 24)
    losses = perplexity_cells(generator, lambda s, n: 0.0, ("none", "yarn"), LENGTHS, 24)
    cells = frame(packed, exact, losses)
    summary = headline(cells, native_window=8192, lengths=LENGTHS, scalings=("none", "yarn"))
    found = conclusion(cells, FINISHED, summary)
    assert found.tone == "open" and "the packed plan cannot be trusted here" in found.sentence


@pytest.mark.parametrize(("probes", "missing"), [("p", "retrieval"), ("n", "perplexity")])
def test_one_probe_alone_is_never_green(probes: str, missing: str) -> None:
    found = judge({"yarn": 1.0}, {"yarn": -0.02}, probes=probes)
    assert found.tone == "open" and f"{missing} was not measured" in found.sentence


def test_a_task_without_signal_gives_no_verdict() -> None:
    cells = frame(needle_cells(np.random.default_rng(0), lambda s, n: 0.0, ("none", "yarn"), LENGTHS, 16))
    summary = headline(cells, native_window=8192, lengths=LENGTHS, scalings=("none", "yarn"))
    found = conclusion(cells, FINISHED, summary)
    assert found.tone == "open" and found.sentence.startswith("No verdict: the unpatched model hardly finds")


def test_nothing_measured_is_said() -> None:
    cells = frame(needle_cells(np.random.default_rng(0), lambda s, n: 1.0, ("none",), LENGTHS, 2, status="oom"))
    cells["correct"] = None
    summary = headline(cells, native_window=8192, lengths=LENGTHS, scalings=("none",))
    assert conclusion(cells, FINISHED, summary) == Conclusion("open", "Nothing was measured.")


def test_a_length_that_was_not_measured_keeps_it_open() -> None:
    cells = frame(
        needle_cells(np.random.default_rng(0), lambda s, n: 1.0, ("none", "yarn"), LENGTHS[:2], 48, correlation=0),
        perplexity_cells(np.random.default_rng(0), lambda s, n: 0.0, ("none", "yarn"), LENGTHS[:2], 48),
    )
    summary = headline(cells, native_window=8192, lengths=LENGTHS, scalings=("none", "yarn"))
    assert conclusion(cells, FINISHED, summary).tone == "open"
