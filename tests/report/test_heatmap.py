"""Heatmaps: orientation, colours, few trials, missing cells, the native window."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ctxeval.report.heatmap import grids, terminal_heatmap
from ctxeval.results.store import Run
from tests.report.conftest import NATIVE, MakeRun

GOLDEN = """\
yarn ×4
  depth   4K     8K │  12K    16K
    0 %   (0)   100 │  100      –
   50 %  100    100 │  100      –
  100 %  100    100 │  100      –
recall, %; 4–16 trials a cell; (in brackets: under 5); │ native window 8K
"""


@pytest.fixture
def run(make_run: MakeRun) -> Run:
    made = make_run(probes="n", lengths=(4096, 8192, 12288, 16384))
    cells, own = made.cells, made.cells["scale"] == "yarn"
    corner = own & (cells["context_length"] == 4096) & (cells["depth_percent"] == 0)
    cells.loc[corner, "correct"] = False
    cells.loc[corner & (cells["document"] >= 4), ["status", "correct"]] = ["error", None]
    cells.loc[own & (cells["context_length"] == 16384), ["status", "correct"]] = ["oom", None]
    return made


def test_depth_0_is_at_the_top_and_the_window_is_marked(run: Run) -> None:
    console = Console(width=80, file=io.StringIO(), color_system=None)
    console.print(terminal_heatmap(grids(run.cells, ["yarn"])[0], NATIVE), end="")
    assert "".join(line.rstrip() + "\n" for line in console.file.getvalue().splitlines()) == GOLDEN  # type: ignore[attr-defined]


def bars(make_run: MakeRun, lengths: tuple[int, ...], native: int) -> list[str]:
    """Return the header of each block."""
    drawn = terminal_heatmap(grids(make_run(probes="n", lengths=lengths).cells, ["none"])[0], native).plain
    return [line for line in drawn.splitlines() if line.startswith("  depth")]


def test_the_bar_stands_where_the_window_ends_and_nowhere_else(make_run: MakeRun) -> None:
    lengths = tuple(1024 * step for step in range(1, 15))
    first, second = bars(make_run, lengths, 12288)
    assert "│" not in first and second.rstrip().endswith("12K │  13K    14K")
    first, second = bars(make_run, lengths, 11264)
    assert first.endswith("11K │") and "│" not in second
    assert "│" not in bars(make_run, (1024, 2048), 4096)[0] and bars(make_run, (1024, 2048), 2048)[0].endswith("2K │")


def test_colour_changes_nothing_but_colour(run: Run) -> None:
    plain, coloured = (
        Console(width=80, file=io.StringIO(), color_system=system, force_terminal=system is not None)
        for system in (None, "truecolor")
    )
    text = terminal_heatmap(grids(run.cells, ["yarn"])[0], NATIVE)
    plain.print(text)
    coloured.print(text)
    assert "\x1b[" not in plain.file.getvalue() and "48;2;12;215;159m" in coloured.file.getvalue()  # type: ignore[attr-defined]
    spans = {text.plain[span.start : span.end].strip(): str(span.style) for span in text.spans}
    assert spans["100"] == "#000000 on #0cd79f" and spans["(0)"] == "dim" and spans["–"] == "dim"


def test_another_palette_changes_colours_only(run: Run) -> None:
    grid = grids(run.cells, ["yarn"])[0]
    one, other = terminal_heatmap(grid, NATIVE), terminal_heatmap(grid, NATIVE, "cividis")
    assert one.plain == other.plain and "#000000 on #fee838" in {str(span.style) for span in other.spans}


def test_baseline_first_and_scalings_without_needles_left_out(run: Run, make_run: MakeRun) -> None:
    assert [grid.label for grid in grids(run.cells, ["yarn", "none", "abf"])] == ["none", "yarn ×4"]
    assert grids(make_run(probes="p").cells, ["none"]) == []
