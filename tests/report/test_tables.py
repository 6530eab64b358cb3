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
from ctxeval.report.text import (
    LEGEND,
    half_width,
    markdown_cell,
    number,
    number_range,
    percent,
    percent_range,
    protocol_line,
    scale_label,
)
from ctxeval.results.store import Run
from tests.report.conftest import MakeRun

GOLDEN = """\
Recall ↑, % (95 % interval below)
Scaling          4K      8K     10K     12K    16K    24K    32K  Holds to
none (base)     100     100      0!      0!     0!     0!     0!        8K
             87–100  87–100    0–13    0–13   0–13   0–13   0–13
pi ×4            0!      0!      0!      0!     0!     0!     0!       <4K
               0–13    0–13    0–13    0–13   0–13   0–13   0–13
ntk ×4          100     100     100     100     0!     0!     0!       12K
             87–100  87–100  87–100  87–100   0–13   0–13   0–13
yarn ×4         100     100     100     100     0!     0!     0!       12K
             87–100  87–100  87–100  87–100   0–13   0–13   0–13
Perplexity ratio to the unpatched native window ↓ (95 % below)
Scaling         4K     8K    10K    12K    16K    24K    32K  Holds to
none (base)   1.00   1.00  >1e3!  >1e3!  >1e3!  >1e3!  >1e3!        8K
             ±0.00  ±0.00
pi ×4        1.65!  1.65!  1.65!  1.65!  1.65!  1.65!  1.65!       <4K
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
    assert lines[4] == "| none (base) | 100 (87–100) | 0 (0–13) ! | 8K |"
    assert "| none (base) | 1.00 (1.00–1.00) | >1e3 (>1e3–>1e3) ! | 8K |" in lines
    assert lines[-2:] == ["", LEGEND] and len(LEGEND) <= 80


def with_gaps(make_run: MakeRun) -> Run:
    """Return a run of yarn at 8K without three needles and four losses, and at 16K with three and four NaN."""
    run = make_run(lengths=(8192, 16384))
    cells = run.cells
    for status, length in (("oom", 8192), ("nan", 16384)):
        here = (cells["scale"] == "yarn") & (cells["context_length"] == length)
        needle = here & (cells["document"] == 0) & (cells["probe"] == "needle")
        loss = here & (cells["document"] < 4) & (cells["probe"] == "perplexity")
        cells.loc[needle | loss, ["status", "correct", "nll"]] = [status, None, math.nan]
    return run


def test_what_is_missing_is_marked_in_every_form(make_run: MakeRun) -> None:
    head = with_gaps(make_run).headline()
    lines = [line for line in markdown_tables(head).splitlines() if line.startswith("| yarn")]
    assert lines[0].startswith("| yarn ×4 | 100 (86–100) ?† | 0 (0–13) !† |")
    assert lines[1].startswith("| yarn ×4 | 0.98 (0.98–0.99) ?† | NaN !† |")
    console = Console(width=80, file=io.StringIO(), color_system=None)
    for table in terminal_tables(head):
        console.print(table)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(cell in text for cell in ("100?†", "0!†", "0.98?†", "NaN!†"))
    rows = [row for row in csv.DictReader(io.StringIO(csv_table(head))) if row["scale"] == "yarn"]
    names = ("recall_nan", "recall_missing", "ratio_nan", "ratio_missing")
    assert [[row[name] for name in names] for row in rows] == [["0", "3", "0", "4"], ["3", "0", "4", "0"]]
    assert (rows[1]["ratio"], rows[1]["ratio_state"]) == ("", "broken")


def test_a_run_whose_losses_are_all_nan_has_its_table(make_run: MakeRun) -> None:
    run = make_run(probes="p", lengths=(8192,))
    run.cells[["status", "nll"]] = ["nan", math.nan]
    text = markdown_tables(run.headline())
    assert "Perplexity ratio" in text and text.count("| NaN !† | &lt;8K |") == 4


def test_marks_do_not_widen_the_table(make_run: MakeRun) -> None:
    run = make_run()
    run.cells.loc[run.cells["document"] == 0, ["status", "correct", "nll"]] = ["oom", None, math.nan]
    console = Console(width=80, file=io.StringIO(), color_system=None)
    for table in terminal_tables(run.headline()):
        console.print(table)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert ">1e3!†" in text and "…" not in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80


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


def test_intervals_are_rounded_outwards() -> None:
    assert number_range(Estimate(1.03, 1.01, 1.0501)) == "1.01–1.06"
    assert number_range(Estimate(1.03, 1.0099, 1.05)) == "1.00–1.05"
    assert number_range(Estimate(50.0, 12.39, 123.1)) == "12.3–124"
    assert number_range(Estimate(9.0, 8.0, 9.999)) == "8.00–10.0"
    assert number_range(Estimate(1.0, 0.0, math.inf)) == "0.00–∞"
    assert half_width(Estimate(1.03, 1.01, 1.0501)) == "±0.03"


def test_intervals() -> None:
    assert percent_range(Estimate(0.5, 0.301, 0.699)) == "30–70"
    assert half_width(Estimate(1.0, 0.9, 1.15)) == "±0.15"
    assert half_width(Estimate(1.0, 0.0, math.inf)) == "±?"
    assert half_width(Estimate(1.0, 0.0, math.inf, rows=1, documents=1)) == ""
    assert (scale_label("none", 1.0), scale_label("abf", math.nan), scale_label("pi", 2.5)) == (
        "none",
        "abf",
        "pi ×2.5",
    )


@pytest.mark.parametrize(
    ("probes", "losses", "measured", "text"),
    [
        (["needle", "perplexity"], 8, 16, "16 documents, 8 for perplexity ·"),
        (["needle", "perplexity"], 8, 3, "3 of 16 documents, 8 for perplexity ·"),
        (["needle", "perplexity"], 16, 16, "exact plan · 16 documents ·"),
        (["needle"], 8, 16, "task needle · exact plan · 16 documents"),
        (["perplexity"], 8, 8, "8 documents · perplexity: tail"),
    ],
)
def test_both_counts_of_documents_are_said(probes: list[str], losses: int, measured: int, text: str) -> None:
    resolved = {"documents": 16, "perplexity_documents": losses, "task": "needle", "protocol": "tail"}
    assert text in protocol_line({"spec": {"probes": probes}, "resolved": resolved}, "exact", measured)
