"""A committed baseline says what the run says, survives a formatter, and is refused once its content was changed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ctxeval.analysis.compare import compare_runs, side
from ctxeval.errors import UsageError
from ctxeval.results.baseline import FORMAT, baseline_json, content_hash, load_baseline
from ctxeval.results.store import Run, load_run
from tests.analysis.synthetic_runs import make_run, with_cells

RESULTS = Path(__file__).resolve().parents[2] / "results"


@pytest.fixture
def run() -> Run:
    run = make_run("run", lambda *_: 0.8, lambda *_: 0.1, documents=6)
    run.manifest["spec"]["model"] = {"name_or_path": "/some/place"}
    run.cells.loc[run.cells["probe"] == "needle", "answer_logprob"] = -0.1234567890123456789
    run.cells["got"] = "secret"
    run.cells.loc[3, ["status", "correct", "answer_logprob"]] = ["nan", pd.NA, math.nan]
    run.cells.loc[len(run.cells) - 1, ["status", "nll"]] = ["oom", math.nan]
    return run


@pytest.fixture
def file(run: Run, tmp_path: Path) -> Path:
    path = tmp_path / "base.json"
    path.write_text(baseline_json(run), encoding="utf-8")
    return path


def same(one: Run, other: Run, reference: Run) -> bool:
    """Tell whether comparing with either gives the same figures, to the last bit."""
    found = [compare_runs(side(base, "none"), [side(reference, "yarn")])[0].changes for base in (one, other)]
    return repr(found[0]) == repr(found[1])


def test_comparing_with_a_baseline_is_comparing_with_its_run(run: Run, file: Path) -> None:
    loaded = load_baseline(file)
    assert same(run, loaded, run)
    assert loaded.path == file and loaded.manifest["identity"] == run.manifest["identity"]
    assert loaded.cells["status"].value_counts().to_dict() == run.cells["status"].value_counts().to_dict()
    assert loaded.cells.dtypes[["correct", "nll", "context_length"]].tolist() == ["boolean", "float64", "int64"]


def test_controls_and_model_output_stay_out(run: Run, file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert "secret" not in text and "place" not in text
    control = run.cells.assign(control=run.cells["control"].where(run.cells.index > 0, "no-needle"))
    assert len(load_cells(with_cells(run, control))) == len(run.cells) - 1


def load_cells(run: Run) -> list[Any]:
    content = json.loads(baseline_json(run))
    return [*content["needle"], *content["perplexity"]]


#: What formatters do to JSON, as text to text.
FORMATTERS: dict[str, Callable[[str], str]] = {
    "one line": lambda text: json.dumps(json.loads(text), separators=(",", ":")),
    "indented and sorted": lambda text: json.dumps(json.loads(text), indent=4, sort_keys=True),
    "escaped": lambda text: json.dumps(json.loads(text), ensure_ascii=True),
    "unescaped, other line ends": lambda text: json.dumps(json.loads(text), indent=1, ensure_ascii=False).replace(
        "\n", "\r\n"
    ),
    "whole floats without a point": lambda text: text.replace(".0,", ",").replace(".0]", "]"),
    "other digits of the same number": lambda text: text.replace("-0.12345678901234568", "-0.1234567890123456800"),
    "whole numbers with one": lambda text: text.replace("1024,", "1024.0,"),
}


@pytest.mark.parametrize("formatter", FORMATTERS)
def test_formatting_changes_nothing(file: Path, run: Run, formatter: str) -> None:
    text = file.read_text(encoding="utf-8")
    formatted = FORMATTERS[formatter](text)
    assert formatted != text
    file.write_text(formatted, encoding="utf-8")
    assert same(run, load_baseline(file), run)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("true", "false"),
        ('"ok"', '"oom"'),
        ('"seed": 0', '"seed": 1'),
        (FORMAT, FORMAT + "1"),
    ],
)
def test_a_change_of_content_is_refused(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(UsageError, match="was changed since it was written|has the format"):
        load_baseline(file)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is not JSON"),
        ('{"format": NaN}', "is not JSON"),
        ("[]", "is not a baseline"),
        ("{}", "is not a baseline"),
        ('{"identity": {}}', "is not a baseline"),
        ('{"format": "ctxeval baseline 2"}', "has the format 'ctxeval baseline 2'"),
    ],
)
def test_what_is_no_baseline(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UsageError, match=words):
        load_baseline(path)


@pytest.mark.parametrize("damage", [{"needle": [["yarn"]]}, {"columns": {}}, {"manifest": 3}, {"needle": 7}])
def test_rows_that_cannot_be_read_though_the_hash_is_right(file: Path, damage: dict[str, Any]) -> None:
    content = {**json.loads(file.read_text(encoding="utf-8")), **damage}
    content["sha256"] = content_hash(content)
    file.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(UsageError, match="rows that cannot be read"):
        load_baseline(file)


def test_an_unfinished_run_is_no_baseline(run: Run) -> None:
    with pytest.raises(UsageError, match="run is not finished"):
        baseline_json(Run(run.path, {**run.manifest, "finished": None}, run.cells))
    with pytest.raises(UsageError, match="run is not finished"):
        baseline_json(with_cells(run, run.cells[:0]))


def test_the_committed_baseline_is_that_of_the_demo_run() -> None:
    path = RESULTS / "baselines" / "demo.json"
    assert path.stat().st_size < 200_000
    demo = load_run(RESULTS / "demo")
    assert load_baseline(path).manifest["identity"] == demo.manifest["identity"], "write it again: ctxeval baseline"
    assert same(demo, load_baseline(path), demo)
