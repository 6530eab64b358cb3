"""The headline in the terminal at 80 columns, as Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import math

import pytest
from rich.console import Console

from ctxeval.analysis.stats import Estimate
from ctxeval.report.tables import csv_table, json_table, markdown_tables, terminal_tables
from ctxeval.report.text import half_width, markdown_cell, number, percent, percent_range, scale_label
from tests.report.conftest import MakeRun

GOLDEN = """\
Recall ↑, % (95 % interval below)
Scaling          4K      8K     10K     12K    16K    24K    32K  Holds to
none (base)     100     100      0!      0!     0!     0!     0!        8K
             87–100  87–100    0–13    0–13   0–13   0–13   0–13
pi ×4            0!      0!      0!      0!     0!     0!     0!      none
               0–13    0–13    0–13    0–13   0–13   0–13   0–13
ntk ×4          100     100     100     100     0!     0!     0!       12K
             87–100  87–100  87–100  87–100   0–13   0–13   0–13
yarn ×4         100     100     100     100     0!     0!     0!       12K
             87–100  87–100  87–100  87–100   0–13   0–13   0–13
Perplexity ratio to the unpatched native window ↓ (95 % below)
Scaling         4K     8K    10K    12K    16K    24K    32K  Holds to
none (base)   1.00   1.00  >1e3!  >1e3!  >1e3!  >1e3!  >1e3!        8K
             ±0.00  ±0.00
pi ×4        1.65!  1.65!  1.65!  1.65!  1.65!  1.65!  1.65!      none
             ±0.00  ±0.00  ±0.00  ±0.00  ±0.00  ±0.00  ±0.00
ntk ×4        0.98   0.98   0.98   0.98   0.98   0.98   0.98       32K
             ±0.00  ±0.00  ±0.00  ±0.00  ±0.00  ±0.00  ±0.00
yarn ×4       0.98   0.98   0.98   0.98   0.98   0.98   0.98       32K
             ±0.00  ±0.00  ±0.00  ±0.00  ±0.00  ±0.00  ±0.00
"""


def drawn(make_run: MakeRun, **options: object) -> str:
    console = Console(width=80, file=io.StringIO(), color_system=None)
    for table in terminal_tables(make_run(**options).headline()):
        console.print(table)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "".join(line.rstrip() + "\n" for line in text.splitlines())


def test_seven_lengths_fit_80_columns(make_run: MakeRun) -> None:
    assert drawn(make_run) == GOLDEN
    assert max(map(len, GOLDEN.splitlines())) <= 80


def test_more_lengths_go_into_another_block(make_run: MakeRun) -> None:
    text = drawn(make_run, probes="n", lengths=[4096 * step for step in range(1, 10)])
    headers = [line.split() for line in text.splitlines() if line.startswith("Scaling")]
    assert [header[1:-2] for header in headers] == [["4K", "8K", "12K", "16K", "20K", "24K", "28K"], ["32K", "36K"]]
    assert max(map(len, text.splitlines())) <= 80


def test_a_single_length_and_a_missing_probe(make_run: MakeRun) -> None:
    needles = drawn(make_run, probes="n", lengths=(8192,))
    assert "Recall" in needles and "Perplexity" not in needles and "none (base)" in needles
    losses = drawn(make_run, probes="p", lengths=(8192,))
    assert "Perplexity" in losses and "Recall" not in losses


def test_a_long_label_wraps_and_numbers_do_not(make_run: MakeRun) -> None:
    run = make_run()
    run.cells["scale"] = run.cells["scale"].replace("yarn", "yarn[beta_fast=16,beta_slow=2]")
    run.manifest["resolved"]["scalings"][3]["label"] = "yarn[beta_fast=16,beta_slow=2]"
    console = Console(width=80, file=io.StringIO(), color_system=None)
    for table in terminal_tables(run.headline()):
        console.print(table)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "yarn[beta_fast" in text and "…" not in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    assert text.count("87–100") == 10


def test_markdown(make_run: MakeRun) -> None:
    lines = markdown_tables(make_run(lengths=(8192, 16384)).headline()).splitlines()
    assert lines[2] == "| Scaling | 8K | 16K | Holds to |"
    assert lines[3] == "|:--|--:|--:|--:|"
    assert lines[4] == "| none (base) | 100 (87–100) | 0 (0–13) broken | 8K |"
    assert "| none (base) | 1.00 (1.00–1.00) | >1e3 (>1e3–>1e3) broken | 8K |" in lines


def test_markdown_escapes_what_would_break_a_table() -> None:
    assert markdown_cell("a|b\nc\\d<e>\x1b[31m") == "a\\|b c\\\\d&lt;e> [31m"


def test_csv_and_json_hold_the_same_numbers(make_run: MakeRun) -> None:
    head = make_run(lengths=(8192, 16384)).headline()
    rows = list(csv.DictReader(io.StringIO(csv_table(head))))
    assert [(row["scale"], row["context_length"]) for row in rows[:3]] == [
        ("none", "8192"), ("none", "16384"), ("pi", "8192"),
    ]  # fmt: skip
    content = json.loads(json.dumps(json_table(head), allow_nan=False))
    flat = [result for row in content["rows"] for result in row["lengths"]]
    assert [float(row["recall_low"]) for row in rows] == [result["recall"]["low"] for result in flat]
    assert [row["ratio_state"] for row in rows] == [result["ratio_state"] for result in flat]
    assert content["rows"][3]["blind_spot"] == [16384]


def test_csv_leaves_the_missing_empty(make_run: MakeRun) -> None:
    rows = list(csv.DictReader(io.StringIO(csv_table(make_run(probes="n", lengths=(8192,)).headline()))))
    assert rows[0]["ratio"] == "" and rows[0]["ratio_state"] == "missing" and rows[0]["recall"] == "1.0"


@pytest.mark.parametrize(("share", "text"), [(1.0, "100"), (0.998, "99"), (0.001, "1"), (0.0, "0"), (math.nan, "–")])
def test_only_all_is_100_percent(share: float, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "1.00"), (12.34, "12.3"), (148.2, "148"), (1e9, ">1e3"), (math.nan, "–")]
)
def test_numbers_stay_short(value: float, text: str) -> None:
    assert number(value) == text


def test_intervals() -> None:
    assert percent_range(Estimate(0.5, 0.301, 0.699)) == "30–70"
    assert half_width(Estimate(1.0, 0.9, 1.15)) == "±0.15"
    assert half_width(Estimate(1.0, 0.0, math.inf)) == "±?"
    assert (scale_label("none", 1.0), scale_label("abf", math.nan), scale_label("pi", 2.5)) == (
        "none",
        "abf",
        "pi ×2.5",
    )
