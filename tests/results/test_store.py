"""The run folder survives torn writes, refuses what does not fit, and is written by one process at a time."""

from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ctxeval.errors import RunError, UsageError
from ctxeval.results.files import write_whole
from ctxeval.results.schema import NeedleCell, PerplexityCell
from ctxeval.results.store import CELLS, MANIFEST, RunStore, load_run

MANIFEST_A: dict[str, Any] = {"identity": {"seed": 0, "lengths": (1024, 2048)}, "started": "now"}


def needle(name: str, **columns: Any) -> NeedleCell:
    fields: dict[str, Any] = {
        "cell_id": name,
        "probe": "needle",
        "task": "needle",
        "control": "",
        "plan": "exact",
        "scale": "none",
        "factor": 1.0,
        "context_length": 1024,
        "depth_percent": 50.0,
        "document": 0,
        "trial": 0,
        "needle_id": name,
        "needle_position": 500,
        "needle_distance": 500,
        "n_needles": 1,
        "expected": "12345",
        "correct": True,
    }
    return NeedleCell(**{**fields, **columns})


def perplexity(name: str, nll: float) -> PerplexityCell:
    fields: dict[str, Any] = {"probe": "perplexity", "task": "t", "control": "", "plan": "exact", "scale": "pi"}
    numbers: dict[str, Any] = {"factor": 2.0, "context_length": 1024, "depth_percent": math.nan, "document": 0, "trial": 0}
    own: dict[str, Any] = {"protocol": "tail", "window": 8, "stride": 0, "n_tokens": 4, "bytes": 9, "nll": nll}
    return PerplexityCell(cell_id=name, **fields, **numbers, **own)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of two cells."""
    path = tmp_path / "deep" / "run"
    with RunStore.create(path, MANIFEST_A) as store:
        store.append([needle("a"), perplexity("b", math.nan)])
    return path


def test_what_is_appended_is_loaded(folder: Path) -> None:
    run = load_run(folder)
    assert run.manifest["identity"] == {"seed": 0, "lengths": [1024, 2048]}
    assert list(run.cells["cell_id"]) == ["a", "b"]
    assert bool(run.cells.loc[0, "correct"]) is True
    assert run.cells.loc[1, ["depth_percent", "nll", "needle_distance"]].isna().all()
    assert run.cells["nll"].dtype == float


def test_nan_is_written_as_null(folder: Path) -> None:
    line = (folder / CELLS).read_text().splitlines()[1]
    assert '"nll":null' in line and "NaN" not in line


def test_an_empty_run_has_all_columns(tmp_path: Path) -> None:
    RunStore.create(tmp_path / "run", MANIFEST_A).close()
    cells = load_run(tmp_path / "run").cells
    assert cells.empty and {"correct", "nll", "cell_id"} <= set(cells.columns)


def test_create_refuses_a_folder_with_something_in_it(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"run is not empty\. .*--resume"):
        RunStore.create(folder, MANIFEST_A)


def test_create_names_the_folder_it_cannot_make(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="file is taken by a file"):
        RunStore.create(tmp_path / "file", MANIFEST_A)
    with pytest.raises(UsageError, match="cannot write output folder .*file/run"):
        RunStore.create(tmp_path / "file" / "run", MANIFEST_A)


def test_resume_cuts_off_a_torn_line_and_goes_on(folder: Path) -> None:
    with (folder / CELLS).open("ab") as handle:
        handle.write(b'{"schema_version":1,"cell' + b"x" * 5000)  # longer than the line that will follow
    assert len(load_run(folder).cells) == 2
    with RunStore.resume(folder, MANIFEST_A) as store:
        assert store.ids == {"a", "b"}
        store.append([needle("c")])
        assert store.ids == {"a", "b", "c"}
    assert list(load_run(folder).cells["cell_id"]) == ["a", "b", "c"]
    assert b"x" * 9 not in (folder / CELLS).read_bytes()


def test_a_last_line_without_its_end_is_torn_even_if_it_parses(folder: Path) -> None:
    content = (folder / CELLS).read_bytes()
    (folder / CELLS).write_bytes(content[:-1])
    with RunStore.resume(folder, MANIFEST_A) as store:
        assert store.ids == {"a"}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (b"{]\n", "line 1 is not JSON"),
        (b"[1]\n", "line 1 is not a row"),
        (b"\n", "line 1 is not JSON"),
        (b"\xff\n", "line 1 is not JSON"),
        (b'{"schema_version":NaN}\n', "line 1 is not JSON"),
        (b'{"schema_version":99}\n', "line 1: row of schema version 99"),
    ],
)
def test_damage_inside_the_file_is_named_by_its_line(folder: Path, damage: bytes, message: str) -> None:
    (folder / CELLS).write_bytes(damage + (folder / CELLS).read_bytes())
    for read in (lambda: load_run(folder), lambda: RunStore.resume(folder, MANIFEST_A)):
        with pytest.raises(UsageError, match=message) as caught:
            read()
        assert "\n" not in str(caught.value)


def test_a_repeated_cell_in_the_file_is_damage(folder: Path) -> None:
    lines = (folder / CELLS).read_bytes().splitlines(keepends=True)
    (folder / CELLS).write_bytes(b"".join([*lines, lines[0]]))
    with pytest.raises(UsageError, match="line 3 repeats cell a"):
        load_run(folder)


def test_a_cell_that_ran_out_of_memory_is_measured_again_and_its_last_row_counts(folder: Path) -> None:
    with RunStore.resume(folder, MANIFEST_A) as store:
        store.append([needle("c", status="oom", correct=None), needle("d")])
        with pytest.raises(RunError, match="cell c is measured twice"):  # within a session once is enough
            store.append([needle("c")])
    assert load_run(folder).done == {"a", "b", "d"}
    for status, correct in (("oom", None), ("ok", False)):
        with RunStore.resume(folder, MANIFEST_A) as store:
            assert store.ids == {"a", "b", "d"}
            store.append([needle("c", status=status, correct=correct)])
        cells = load_run(folder).cells
        assert list(cells["cell_id"]) == ["a", "b", "d", "c"]
        assert list(cells["status"])[3] == status
    assert load_run(folder).cells["correct"][3] == False  # noqa: E712 - numpy's own
    assert load_run(folder).done == {"a", "b", "c", "d"}
    with (folder / CELLS).open("ab") as handle:
        handle.write((folder / CELLS).read_bytes().splitlines(keepends=True)[-1])
    with pytest.raises(UsageError, match="line 7 repeats cell c"):
        load_run(folder)


@pytest.mark.parametrize("status", ["nan", "error", "skipped"])
def test_other_rows_without_a_result_stay_what_they_are(status: Any, folder: Path) -> None:
    with RunStore.resume(folder, MANIFEST_A) as store:
        store.append([needle("c", status=status, correct=None)])
    with RunStore.resume(folder, MANIFEST_A) as store:
        assert "c" in store.ids
    (folder / CELLS).write_bytes((folder / CELLS).read_bytes() + (folder / CELLS).read_bytes().splitlines(True)[-1])
    with pytest.raises(UsageError, match="line 4 repeats cell c"):
        load_run(folder)


def test_resume_shows_how_the_runs_differ(folder: Path) -> None:
    other = {"identity": {"seed": 1, "lengths": [1024, 2048], "model": "x"}}
    with pytest.raises(UsageError) as caught:
        RunStore.resume(folder, other)
    assert 'model: null there, "x" asked for; seed: 0 there, 1 asked for' in str(caught.value)
    assert "lengths" not in str(caught.value)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*run\.json"):
        load_run(tmp_path)
    (tmp_path / MANIFEST).write_text("[]")
    with pytest.raises(UsageError, match="is not the manifest of a run"):
        load_run(tmp_path)
    (tmp_path / MANIFEST).write_text("{")
    with pytest.raises(UsageError, match="is not JSON"):
        RunStore.resume(tmp_path, MANIFEST_A)
    (tmp_path / MANIFEST).write_text(json.dumps(MANIFEST_A))
    with pytest.raises(UsageError, match=r"cells\.jsonl"):
        load_run(tmp_path)
    with pytest.raises(UsageError, match=r"cannot open .*cells\.jsonl"):
        RunStore.resume(tmp_path, MANIFEST_A)


def test_only_one_process_writes(folder: Path) -> None:
    code = (
        "import sys; from ctxeval.results.store import RunStore; from ctxeval.errors import UsageError\n"
        "try: RunStore.resume(sys.argv[1], {'identity': {'seed': 0, 'lengths': [1024, 2048]}})\n"
        "except UsageError as error: print(error)\n"
        "else: print('opened')\n"
    )

    def other() -> str:
        return subprocess.run(
            [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True
        ).stdout

    with RunStore.resume(folder, MANIFEST_A):
        assert "being written by another process" in other()
    assert other() == "opened\n"


def test_no_cell_is_measured_twice(folder: Path) -> None:
    with RunStore.resume(folder, MANIFEST_A) as store:
        for cells in ([needle("a")], [needle("c"), needle("c")]):
            with pytest.raises(RunError, match="measured twice"):
                store.append(cells)
    assert len(load_run(folder).cells) == 2


def test_a_full_disk_is_a_run_error_and_leaves_whole_lines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with RunStore.resume(folder, MANIFEST_A) as store:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            patch.setattr("ctxeval.results.store.SYNC_SECONDS", 0.0)
            with pytest.raises(RunError, match="No space left on device"):
                store.append([needle("c")])
            with pytest.raises(RunError, match="No space left on device"):
                store.write_manifest({**MANIFEST_A, "finished": "later"})
        assert store.ids == {"a", "b"}
        store.append([needle("c")])
    assert list(load_run(folder).cells["cell_id"]) == ["a", "b", "c"]
    assert sorted(path.name for path in folder.iterdir()) == [CELLS, MANIFEST]
    assert "finished" not in load_run(folder).manifest


def test_rows_reach_the_disk_in_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    clock = iter((0.0, 0.4, 1.1, 1.1, 1.2, 1.2))
    monkeypatch.setattr("ctxeval.results.store.time.monotonic", lambda: next(clock))
    with RunStore.resume(folder, MANIFEST_A) as store:
        store.append([needle("c")])
        assert synced == []
        store.append([needle("d")])
        assert len(synced) == 1
        assert list(load_run(folder).cells["cell_id"]) == ["a", "b", "c", "d"]
    assert len(synced) == 2


def test_the_manifest_is_replaced_as_a_whole(folder: Path) -> None:
    with RunStore.resume(folder, MANIFEST_A) as store:
        store.write_manifest({**MANIFEST_A, "finished": "later", "loss": math.inf})
    assert load_run(folder).manifest["finished"] == "later"
    assert load_run(folder).manifest["loss"] is None


def test_write_whole_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"cannot write .*gone/x\.md"):
        write_whole(tmp_path / "gone" / "x.md", b"")


def test_reading_a_run_imports_no_torch() -> None:
    code = (
        "import sys, ctxeval, ctxeval.results.store, ctxeval.analysis.headline, ctxeval.report.terminal\n"
        "import ctxeval.report.artifacts, ctxeval.report.pictures\n"
        "print([name for name in ('torch', 'transformers', 'matplotlib') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("correct", 1),
        ("status", "OK"),
        ("plan", "other"),
        ("control", None),
        ("context_length", "1024"),
        ("context_length", 0),
        ("document", None),
        ("needle_distance", "far"),
        ("document", 0.5),
        ("depth_percent", 101),
        ("answer_logprob", 1.0),
        ("cell_id", []),
        ("factor", None),
    ],
)
def test_a_value_that_its_column_cannot_have(column: str, value: Any, folder: Path) -> None:
    lines = (folder / CELLS).read_text().splitlines(keepends=True)
    (folder / CELLS).write_text(json.dumps({**json.loads(lines[0]), column: value}) + "\n" + lines[1])
    with pytest.raises(UsageError, match=rf"line 1: {column} is "):
        load_run(folder)


@pytest.mark.parametrize(("column", "value"), [("nll", '"12"'), ("nll", "1e400"), ("nll", "-1"), ("n_tokens", "0")])
def test_a_loss_that_cannot_be(column: str, value: str, folder: Path) -> None:
    first, second = (folder / CELLS).read_text().splitlines(keepends=True)
    changed = {**json.loads(second), column: "HERE"}
    (folder / CELLS).write_text(first + json.dumps(changed).replace('"HERE"', value) + "\n")
    with pytest.raises(UsageError, match=rf"line 2: {column} is "):
        load_run(folder)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"context_length": 512}, "is of length 512, which was not asked for"),
        ({"scale": "ntk"}, "is of scaling 'ntk', which was not asked for"),
        ({"scale": "pi"}, "of pi has factor 1, the run has 2"),
        ({"needle_id": "a"}, "is there twice under other ids"),
    ],
)
def test_rows_that_are_not_of_this_run(row: dict[str, Any], said: str, tmp_path: Path) -> None:
    manifest = {**MANIFEST_A, "resolved": {"scalings": [{"label": "pi", "factor": 2.0}]}}
    with RunStore.create(tmp_path / "run", manifest) as store:
        store.append([needle("a"), needle("c", **row)])
    with pytest.raises(UsageError, match=said):
        load_run(tmp_path / "run")


def test_a_manifest_of_another_schema(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**manifest, "schema_version": 9}))
    with pytest.raises(UsageError, match="run.json of schema version 9"):
        load_run(folder)


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("resolved", {"native_window": 1024}),
        ("resolved", {"documents": 0}),
        ("resolved", {"lengths": [256, 512]}),
        ("resolved", {"target": 512}),
        ("resolved", {"depths": [50.0]}),
        ("spec", {"length": 512}),
    ],
    ids=str,
)
def test_a_manifest_that_contradicts_itself_is_refused(tmp_path: Path, part: str, changes: dict[str, Any]) -> None:
    """Fewer lengths, or another window, in `resolved` would be fewer or other checks of a gate: a wrong green."""
    published = Path(__file__).parents[2] / "results/demo"
    manifest = json.loads((published / "run.json").read_text())
    manifest[part] |= changes
    (tmp_path / "run.json").write_text(json.dumps(manifest))
    (tmp_path / "cells.jsonl").write_bytes((published / "cells.jsonl").read_bytes())
    with pytest.raises(UsageError, match="run.json has two"):
        load_run(tmp_path)
