"""Heatmaps: orientation, colours, few trials, missing cells, the native window."""

from __future__ import annotations

import io
import struct

import pytest
from rich.console import Console

from ctxeval.report.heatmap import PALETTE, colour, grids, terminal_heatmap
from ctxeval.report.pictures import curves_png, heatmap_png
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
    assert spans["100"] == "black on #0cd79f" and spans["(0)"] == "dim" and spans["–"] == "dim"


def test_the_palette_is_met_at_0_50_and_100() -> None:
    assert [colour(share) for share in (0, 0.5, 1)] == [code.lower() for code in PALETTE]
    assert colour(0.25) == "#ee8054"


def test_baseline_first_and_scalings_without_needles_left_out(run: Run, make_run: MakeRun) -> None:
    assert [grid.label for grid in grids(run.cells, ["yarn", "none", "abf"])] == ["none", "yarn ×4"]
    assert grids(make_run(probes="p").cells, ["none"]) == []


def size(png: bytes) -> tuple[int, int]:
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def test_pictures_are_drawn_and_repeat_byte_for_byte(run: Run) -> None:
    # A name with markup and mathematics in it must neither fail nor be read as such.
    run.manifest["model"]["name"] = "a$b_{$ [red]"
    panels = grids(run.cells, ["none", "yarn"])
    one = heatmap_png(panels, NATIVE, run.manifest, "exact")
    assert one == heatmap_png(panels, NATIVE, run.manifest, "exact")
    wide, high = size(one)
    assert wide > high > 300


def test_curves_of_a_run_with_blow_ups(make_run: MakeRun) -> None:
    run = make_run(lengths=(8192, 16384))
    assert size(curves_png(run.headline(), run.manifest))[0] > 900
