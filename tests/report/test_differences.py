"""Several runs in one report: side by side, compared where they are alike, and said where they are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ctxeval.report.differences import differences, markdown_differences, run_labels
from ctxeval.report.html import Content, html_report
from ctxeval.results.store import Run
from tests.report.conftest import MakeRun
from tests.report.pages import Page

LENGTHS = (8192, 16384)


@pytest.fixture
def pair(make_run: MakeRun) -> list[Run]:
    """Return a run, and one whose yarn finds nothing at 8K."""
    first, second = (replace(make_run(lengths=LENGTHS), path=Path(f"/somewhere/{name}")) for name in ("old", "new"))
    cells = second.cells
    worse = (cells["scale"] == "yarn") & (cells["probe"] == "needle") & (cells["context_length"] == 8192)
    cells.loc[worse, "correct"] = False
    for run in (first, second):
        run.cells["answer_logprob"] = np.where(run.cells["correct"].fillna(value=False), -0.1, -9.0)
    return [first, second]


def test_what_got_worse_is_named_by_folders_not_paths(pair: list[Run]) -> None:
    found = differences(pair)
    assert [one.title for one in found] == [f"new against old: {scale}" for scale in ("pi", "ntk", "yarn")]
    yarn = found[2]
    assert yarn.sentence.startswith("worse: new is significantly worse than old in recall at 8K (-100")
    assert yarn.lines[0][:4] == ("recall, %", "8K", "100", "0") and yarn.lines[0][-1] == "worse"
    assert found[0].sentence.startswith("identical: ")
    assert "somewhere" not in markdown_differences(found)


def test_unlike_runs_are_not_compared(pair: list[Run]) -> None:
    pair[0].manifest["identity"] = {"seed": 0, "corpus": {"name": "a"}}
    pair[1].manifest["identity"] = {"seed": 1, "corpus": {"name": "a"}}
    (one,) = differences(pair)
    assert one.sentence.startswith("Not compared, for they differ in ") and "seed 0 → 1" in one.sentence
    assert not one.lines


def test_runs_without_a_common_scaling_are_not_compared(pair: list[Run]) -> None:
    pair[0].manifest["resolved"]["scalings"] = [{"label": "pi"}]
    pair[1].manifest["resolved"]["scalings"] = [{"label": "yarn"}]
    (one,) = differences(pair)
    assert one.sentence == "Not compared, for they have no scaling in common."


def test_runs_of_one_name_are_told_apart(make_run: Callable[..., Run]) -> None:
    run = make_run(probes="p", lengths=(8192,))
    runs = [replace(run, path=Path(path)) for path in ("/a/x", "/b/x", "/b/y")]
    assert run_labels(runs) == ["x (1)", "x (2)", "y"]


def test_the_page_begins_with_both_side_by_side(pair: list[Run]) -> None:
    for run in pair:
        run.manifest["resolved"]["scalings"] = [{"label": "none"}, {"label": "yarn"}]
    contents = [Content(run, run.headline()) for run in pair]
    page = Page(html_report(contents, differences=differences(pair)))
    text = page.text
    assert text.index("Comparison of 2 runs") < text.index("yarn ×4 · old") < text.index("yarn ×4 · new")
    assert text.index("yarn ×4 · new") < text.index("new against old: yarn") < text.index("How it was measured")
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids)) and {"run-1", "run-2"} <= set(ids)


def test_unlike_grids_stand_side_by_side_all_the_same(make_run: MakeRun) -> None:
    from ctxeval.report.overview import probe_blocks

    one, other = (make_run(probes="p", lengths=lengths) for lengths in ((8192,), (8192, 16384)))
    (block,) = probe_blocks({"a": one.headline(), "b": other.headline()})
    assert block.header == ("Scaling", "8K", "16K", "Holds to")
    rows = {label: [cell.value for cell in cells] for label, cells, _ in block.rows}
    assert rows["none (base) · a"][1] == "–" and rows["none (base) · b"][1] != "–"
