"""The side file of excerpts: capped, resumable, and never in the way of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ctxeval.errors import RunError, UsageError
from ctxeval.results.samples import HITS, MISSES, SAMPLES, Excerpt, SampleStore, load_samples
from ctxeval.results.schema import NeedleCell

TEXT = Excerpt("before é <b>", "The code of the crane is 12345.", "after\nward", "What is the code?", "The code is")


def cell(number: int, *, correct: bool | None = False, length: int = 512, scale: str = "yarn", **more: Any) -> NeedleCell:
    fields: dict[str, Any] = {"probe": "needle", "task": "needle", "control": "", "plan": "exact", "factor": 2.0}
    fields |= {"context_length": length, "depth_percent": 0.0, "document": 0, "trial": 0, "needle_id": "0.0.9"}
    fields |= {"needle_position": 9, "needle_distance": 90, "n_needles": 1, "expected": "12345", "correct": correct}
    return NeedleCell(**{**fields, "cell_id": f"c{number}", "scale": scale, **more})


def offer(folder: Path, *cells: NeedleCell) -> None:
    with SampleStore(folder) as store:
        for one in cells:
            store.offer(one, TEXT)


def test_a_few_of_each_scaling_and_length_are_kept_misses_above_all(tmp_path: Path) -> None:
    offer(tmp_path, *(cell(number, correct=number % 2 == 0) for number in range(20)), cell(20, length=1024))
    kept = load_samples(tmp_path)
    assert [one.cell_id for one in kept] == ["c0", "c1", "c3", "c5", "c20"]
    assert sum(one.correct for one in kept) == HITS and len(kept) == HITS + MISSES + 1
    assert kept[0].excerpt == TEXT and (kept[4].scale, kept[4].context_length) == ("yarn", 1024)


def test_nan_is_a_miss_and_what_has_no_answer_or_no_text_is_left_out(tmp_path: Path) -> None:
    offer(tmp_path, cell(0, status="oom", correct=None), cell(1, status="nan", correct=None))
    with SampleStore(tmp_path) as store:
        store.offer(cell(2), None)
    assert [(one.cell_id, one.correct) for one in load_samples(tmp_path)] == [("c1", False)]


def test_a_resumed_run_keeps_what_an_uninterrupted_one_does(tmp_path: Path) -> None:
    cells = [cell(number, correct=number % 3 == 0) for number in range(9)]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        folder.mkdir()
    offer(whole, *cells)
    offer(parts, *cells[:3])
    with (parts / SAMPLES).open("ab") as handle:
        handle.write(b'{"cell_id": "c3", "sca')  # killed here: the row was not appended, so it is measured again
    assert len(load_samples(parts)) == 3
    offer(parts, *cells[2:])
    assert (parts / SAMPLES).read_bytes() == (whole / SAMPLES).read_bytes()


def test_no_file_is_made_for_nothing_and_none_is_needed(tmp_path: Path) -> None:
    offer(tmp_path)
    assert load_samples(tmp_path) == [] and not (tmp_path / SAMPLES).exists()


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "[]",
        "{}",
        json.dumps({"cell_id": "a", "scale": "none", "context_length": 1, "correct": True, "excerpt": {}}),
        json.dumps({"cell_id": "a", "scale": 3, "context_length": 1, "correct": True, "excerpt": TEXT.__dict__}),
        json.dumps({"cell_id": "a", "scale": "x", "context_length": "1", "correct": True, "excerpt": TEXT.__dict__}),
    ],
)
def test_damage_is_named_with_its_line(tmp_path: Path, line: str) -> None:
    offer(tmp_path, cell(0))
    with (tmp_path / SAMPLES).open("a") as handle:
        handle.write(line + "\n")
    for read in (load_samples, SampleStore):
        with pytest.raises(UsageError, match=r"samples\.jsonl, line 2 "):
            read(tmp_path)


def test_a_file_that_cannot_be_written_ends_the_run(tmp_path: Path) -> None:
    with SampleStore(tmp_path / "gone") as store, pytest.raises(RunError, match=r"cannot write .*samples\.jsonl"):
        store.offer(cell(0), TEXT)
