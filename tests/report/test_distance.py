"""Recall by distance: the bins, the three forms of the table, and its width."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from ctxeval.report.distance import DistanceRow, csv_distance, distance_rows, markdown_distance, terminal_distance
from ctxeval.results.schema import Cell, NeedleCell
from tests.analysis.synthetic_cells import frame, needle_cells

NATIVE = 1024


def rows(hit_to: int = 1024, longest: int = 4096) -> tuple[DistanceRow, ...]:
    """Two scalings on four documents, a needle every 300 tokens; those up to `hit_to` tokens away are found."""
    cells: list[Cell] = []
    for scale in ("none", "yarn"):
        for cell in needle_cells(np.random.default_rng(0), lambda *_: 1.0, [scale], [longest], 4, depths=[0.0]):
            assert isinstance(cell, NeedleCell)
            for distance in range(100, longest, 300):
                name = f"{cell.cell_id}-{distance}"
                cells.append(replace(cell, cell_id=name, needle_distance=distance, correct=distance <= hit_to))
    return distance_rows(frame(cells), ["none", "yarn", "absent"], NATIVE)


def test_a_needle_is_in_the_bin_of_its_distance() -> None:
    table = rows()
    assert [row.scale for row in table] == ["none", "yarn"]
    shares = {(one.low, one.high): one.recall for one in table[0].bins}
    assert shares[(0, 256)].value == 1.0
    assert shares[(1024, 1536)].value == 0.0
    assert sum(one.recall.rows for one in table[0].bins) == 4 * len(range(100, 4096, 300))


def test_every_form_says_the_same() -> None:
    table = rows()
    lines = list(csv.DictReader(io.StringIO(csv_distance(table))))
    assert len(lines) == 2 * len(table[0].bins)
    first = next(line for line in lines if line["scale"] == "yarn" and line["distance_above"] == "0.0")
    assert float(first["recall"]) == 1.0 and int(first["rows"]) == table[1].bins[0].recall.rows
    text = markdown_distance(table)
    assert "| yarn | 100 [" in text and f"({first['rows']})" in text


@pytest.mark.parametrize("longest", [1024, 4096, 20000])
def test_it_fits_eighty_columns_and_wraps_no_number(longest: int) -> None:
    console = Console(width=80, record=True, file=io.StringIO(), color_system=None)
    blocks = terminal_distance(rows(longest=longest))
    for block in blocks:
        console.print(block)
    printed = console.export_text().splitlines()
    assert max(map(len, printed)) <= 80
    assert "…" not in "".join(printed)


def test_nothing_scored_gives_no_table() -> None:
    assert markdown_distance(()) == "" and terminal_distance(()) == []
