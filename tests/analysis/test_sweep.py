"""The verdict under other thresholds, and how it is written."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ctxeval.analysis.headline import headline
from ctxeval.analysis.onset import Onset
from ctxeval.analysis.sweep import EPSILONS, FLOORS, sweep
from ctxeval.report.sweep import json_sweep, markdown_sweep
from tests.analysis.synthetic_cells import frame, needle_cells, perplexity_cells

LENGTHS = (1024, 2048, 4096)
MANIFEST: dict[str, Any] = {
    "resolved": {"native_window": 2048, "lengths": list(LENGTHS), "scalings": [{"label": "none"}, {"label": "yarn"}]}
}


@pytest.fixture(scope="module")
def cells() -> pd.DataFrame:
    """YaRN at 4096: recall 0.7 where R is 0.98, ratio exp(0.07), both sharply known."""
    generator = np.random.default_rng(0)

    def recall(scale: str, length: int) -> float:
        return 0.7 if (scale, length) == ("yarn", 4096) else 0.98

    def excess(scale: str, length: int) -> float:
        return 0.07 if (scale, length) == ("yarn", 4096) else 0.0

    needles = needle_cells(generator, recall, ("none", "yarn"), LENGTHS, 60, correlation=0.02)
    return frame(needles, perplexity_cells(generator, excess, ("none", "yarn"), LENGTHS, 24, spread=0.01))


def test_onsets_and_blind_spot_follow_the_thresholds(cells: pd.DataFrame) -> None:
    rows = sweep(cells, MANIFEST)
    assert len(rows) == 2 * len(EPSILONS) * len(FLOORS)
    at = {(row.scale, row.epsilon, row.floor): row for row in rows}
    for epsilon in EPSILONS:
        broken = epsilon <= 0.05
        for floor in FLOORS:
            row = at["yarn", epsilon, floor]
            assert row.ratio_onset == Onset(2048 if broken else 4096, 4096 if broken else None)
            assert row.recall_onset.by == (4096 if floor >= 0.85 else None)
            assert row.blind_spot == ((4096,) if floor >= 0.85 and not broken else ())
            assert row.order == {(True, True): "both", (True, False): "retrieval first"}.get(
                (floor >= 0.85, broken), row.order
            )
    assert not any(row.blind_spot for row in rows if row.scale == "none")


def test_the_middle_is_the_headline(cells: pd.DataFrame) -> None:
    head = headline(cells, native_window=2048, lengths=LENGTHS, scalings=("none", "yarn"))
    for row, one in zip(head.rows, sweep(cells, MANIFEST, epsilons=(0.05,), floors=(0.85,)), strict=True):
        assert (row.scale, row.recall_onset, row.ratio_onset, row.blind_spot, row.order) == (
            *(one.scale, one.recall_onset, one.ratio_onset, one.blind_spot, one.order),
        )


def test_markdown_and_json(cells: pd.DataFrame) -> None:
    head = headline(cells, native_window=2048, lengths=LENGTHS, scalings=("none", "yarn"))
    rows = sweep(cells, MANIFEST, summary=head)
    text = markdown_sweep(rows, head)
    assert "| yarn ×4 | (2K, 4K] | (2K, 4K] | (2K, 4K] | not broken | not broken |" in text
    assert "| yarn ×4 | 0.85 R | nowhere | nowhere | nowhere | 4K | 4K |" in text
    assert "| none | 0.85 R" not in text
    first = json.loads(json.dumps(json_sweep(rows)))[0]
    assert first["recall_onset"] == {"after": 4096, "by": None} and first["floor"] == 0.5 and first["epsilon"] == 0.01


def test_one_probe_alone(cells: pd.DataFrame) -> None:
    needles = cells[cells["probe"] == "needle"]
    head = headline(needles, native_window=2048, lengths=LENGTHS, scalings=("none", "yarn"))
    text = markdown_sweep(sweep(needles, MANIFEST, summary=head), head)
    assert "Where recall breaks" in text and "perplexity" not in text.lower()
