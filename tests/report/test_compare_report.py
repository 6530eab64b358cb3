"""How a comparison reads: the width of a terminal, numbers rounded outwards, a verdict in one sentence."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from ctxeval.analysis.change import Change, Metric, State
from ctxeval.analysis.compare import Comparison, Side, side
from ctxeval.analysis.likeness import Difference, Likeness
from ctxeval.report.compare import (
    change_text,
    compare_csv,
    compare_json,
    compare_lines,
    compare_markdown,
    p_text,
    verdict_line,
)
from ctxeval.results.store import Run
from tests.analysis.synthetic_runs import make_run

EVIL = "<script>|x\n`\x1b[31m"


@pytest.fixture(scope="module")
def sides() -> tuple[Side, Side]:
    run = make_run("runs/a", lambda *_: 1.0, documents=2)
    return side(run, "none"), side(run, "yarn")


def change(metric: Metric, value: float, low: float, high: float, state: State, **more: Any) -> Change:
    fields = {"length": 4096, "baseline": 0.9, "candidate": 0.8, "pairs": 72, "documents": 8, "differ": 3, **more}
    return Change(metric, value=value, low=low, high=high, state=state, p_value=0.01, p_adjusted=0.02, **fields)


DROP = change("recall", -0.234, -0.356, -0.101, "worse")
SAME = change("recall", 0.0, -0.049, 0.049, "open", length=2048, differ=0)
GAIN = change("perplexity", 0.872, 0.8512, 0.8991, "better", baseline=14.04, candidate=12.2)
LOST = Change("perplexity", 1024, missing=5)
NAN = Change("perplexity", 1024, candidate_nan=2, state="worse")


def compared(sides: tuple[Side, Side], *changes: Change, likeness: Likeness | None = None) -> Comparison:
    return Comparison(*sides, likeness or Likeness(), changes, len(changes))


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (DROP, "-23 (-36 to -10)"),
        (SAME, "+0 (-5 to +5)"),
        (GAIN, "×0.87 (0.85–0.90)"),
        (LOST, "–"),
        (change("answer log-prob", -1.234, -2.001, -0.5, "worse"), "-1.23 (-2.01 to -0.50)"),
        (change("answer log-prob", 18.5, 14.66, 22.31, "better"), "+18.5 (+14.6 to +22.4)"),
        (change("answer log-prob", 1.0, -math.inf, math.inf, "open"), "+1.0 (-∞ to ∞)"),
        (change("bits per byte", 0.0321, 0.0301, 0.0349, "worse"), "+0.032 (+0.030 to +0.035)"),
    ],
)
def test_a_change_is_rounded_outwards(one: Change, text: str) -> None:
    assert change_text(one) == text


def test_p_values_are_never_0() -> None:
    assert [p_text(p) for p in (1e-9, 0.0012, 0.0499, 0.25, 1.0, math.nan)] == [
        "<0.001",
        "0.001",
        "0.050",
        "0.25",
        "1.00",
        "–",
    ]


def test_the_table_fits_80_columns(sides: tuple[Side, Side]) -> None:
    wide = (
        change("answer log-prob", -13.5, -999.9, -1.2, "missing", baseline=-12.34, candidate=-26.59, missing=3),
        change("bits per byte", 0.1234, -0.0311, 0.2509, "better", baseline=1.234, candidate=1.357),
        change("perplexity", 1300.0, 1001, 2000, "worse", baseline=14.0, candidate=1e5, length=131072),
    )
    flags = Likeness(flagged=(Difference("tokenizer", "a" * 60, "b" * 60),))
    lines = compare_lines(compared(sides, DROP, SAME, GAIN, LOST, NAN, *wide, likeness=flags))
    assert max(map(len, lines)) <= 80
    (row,) = [line for line in lines if line.startswith("worse   recall")]
    assert row.split() == ["worse", "recall,", "%", "4K", "90", "80", "-23", "(-36", "to", "-10)", "0.020"]
    rows = [line for line in lines if " perplexity " in line and " 1K " in line]
    assert [line.split()[-3:] for line in rows] == [["–†", "–", "–"], ["NaN†", "–", "–"]]
    assert [line for line in lines if "-26.59†" in line]


def test_verdicts(sides: tuple[Side, Side]) -> None:
    broken = "perplexity at 1K (NaN)"
    drop = "recall at 4K (-23 points, 95 % interval -36 to -10, p 0.020)"
    gain = "perplexity at 4K (×0.87, 95 % interval 0.85–0.90, p 0.020)"
    for changes, wanted in (
        ((DROP, SAME), f"worse: runs/a@yarn is significantly worse than runs/a@none in {drop}; nowhere better"),
        ((GAIN,), f"better: runs/a@yarn is significantly better than runs/a@none in {gain}; nowhere worse"),
        ((DROP, GAIN), f"mixed: runs/a@yarn against runs/a@none is worse in {drop}; better in {gain}"),
        (
            (NAN,),
            f"worse: runs/a@yarn is significantly worse than runs/a@none in {broken}; nowhere better",
        ),
        ((SAME,), "identical: runs/a@yarn and runs/a@none agree in all 72 pairs, as if nothing was changed"),
        ((LOST,), "nothing to compare: runs/a@yarn and runs/a@none have no measurement in common"),
    ):
        assert verdict_line(compared(sides, *changes)) == wanted
    near = change("recall", -0.01, -0.049, 0.02, "open")
    line = verdict_line(compared(sides, near, LOST))
    assert line.startswith("open: no significant difference between runs/a@yarn and runs/a@none; 5 points of recall")
    assert line.endswith("1 comparisons lack results")
    few = verdict_line(compared(sides, change("recall", -0.01, -0.05, 0.02, "open", documents=3)))
    assert few == "open: 3 of at least 6 documents needed to tell runs/a@yarn from runs/a@none"


def test_several_lengths_are_named_with_the_largest_change(sides: tuple[Side, Side]) -> None:
    small = change("recall", -0.1, -0.2, -0.01, "worse", length=1024)
    logprob = change("answer log-prob", -1.0, -2.0, -0.5, "worse")
    line = verdict_line(compared(sides, DROP, small, logprob))
    assert "in recall at 1K, 4K (-23 points at 4K, 95 % interval -36 to -10, p 0.020); nowhere" in line
    assert "answer log-prob at 4K (-1.00 nats" in verdict_line(compared(sides, logprob))


def test_machine_formats(sides: tuple[Side, Side]) -> None:
    found = compared(sides, DROP, LOST)
    lines = compare_csv([found]).splitlines()
    assert len(lines) == 3 and lines[1].startswith("runs/a@none,runs/a@yarn,recall,4096,worse,0.9,0.8,-0.234,-0.356,")
    assert lines[2].startswith("runs/a@none,runs/a@yarn,perplexity,1024,missing,,,,,,,,0,0,0,5,")
    report = json.loads(json.dumps(compare_json(found), allow_nan=False))
    assert report["changes"][1]["value"] is None and report["verdict"] == "worse" and report["tests"] == 2
    assert report["sentence"] == verdict_line(found)


def test_names_from_outside_are_harmless() -> None:
    run = make_run("runs/a", lambda *_: 1.0, documents=2)
    run.manifest["model"] = {"name": EVIL}
    evil = side(Run(run.path / EVIL, run.manifest, run.cells), "yarn")
    unlike = Likeness(refused=(Difference("corpus", EVIL, "x"),), flagged=(Difference("dtype", "y", EVIL),))
    found = Comparison(evil, evil, unlike, (DROP,), 1)
    assert "\x1b" not in "".join(compare_lines(found))
    text = compare_markdown(found)
    assert "<script>" not in text and "\x1b" not in text and "&lt;script>\\|x" in text
    assert "--allow-mismatch" in text
