"""The real command: every exit code, every format, and what a CI server's environment gets."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import numpy as np
import pytest

from ctxeval.results.schema import Cell
from ctxeval.results.store import RunStore
from tests.analysis.synthetic_cells import needle_cells, perplexity_cells

Invoke = Callable[..., Any]
LENGTHS = (1024, 2048, 4096)
STRICT = "recall: [{lengths: 4k, floor: 0.99}]\n"
LAX = "recall: [{lengths: 1k..4k, floor: 0.7}]\nperplexity: [{lengths: target, max_ratio: 1.1}]\n"
UNDER_POWERED = "recall: [{lengths: 4k, floor: 0.85, depths: 50}]\n"


def make_run(folder: Path, scales: tuple[str, ...] = ("none", "yarn"), probes: str = "np", **changes: Any) -> Path:
    """Write a run whose true recall is 0.9 and whose true ratio is 1.02; `changes` go into the manifest."""
    generator = np.random.default_rng(0)
    resolved = {
        "native_window": 2048,
        "target": 4096,
        "lengths": list(LENGTHS),
        "documents": 24,
        "perplexity_documents": 16,
        "plan": "exact",
        "scalings": [{"label": scale} for scale in scales],
    }
    cells: list[Cell] = []
    if "n" in probes:
        cells += needle_cells(generator, lambda *_: 0.9, scales, LENGTHS, 24, correlation=0.05)
    if "p" in probes:
        cells += perplexity_cells(generator, lambda *_: 0.02, scales, LENGTHS, 16)
    about = {"model": {"name": "smol"}, "planned_rows": len(cells), "finished": "x"}
    with RunStore.create(folder, {"identity": {}, "resolved": resolved, **about, **changes}) as store:
        store.append(cells)
    return folder


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("gate") / "run")


@pytest.fixture
def policy(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "policy.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize(
    ("text", "code", "last"),
    [
        (STRICT, 1, "FAIL 1 of 1 checks (exit 1)"),
        (LAX, 0, "PASS 4 of 4 checks (exit 0)"),
        (UNDER_POWERED, 4, "INCONCLUSIVE 1 of 1 checks (exit 4)"),
    ],
)
def test_strict_lax_and_under_powered(
    invoke: Invoke, run: Path, policy: Callable[[str], Path], text: str, code: int, last: str
) -> None:
    done = invoke("gate", run, "--policy", policy(text))
    assert (done.code, done.out.splitlines()[-1], done.err) == (code, last, "")
    assert max(map(len, done.out.splitlines())) <= 80


def test_shipped_policies_by_name(invoke: Invoke, run: Path) -> None:
    assert invoke("gate", run, "--policy", "smoke").code == 0
    assert invoke("gate", run, "--policy", "ship").out.splitlines()[-1].endswith(")")


def test_formats_and_files(invoke: Invoke, run: Path, policy: Callable[[str], Path], tmp_path: Path) -> None:
    path = policy(STRICT)
    done = invoke("gate", run, "--policy", path, "--format", "json")
    assert done.code == 1 and json.loads(done.out)["exit_code"] == 1
    done = invoke("gate", run, "--policy", path, "--format", "junit", "-o", tmp_path / "gate.xml")
    assert (done.code, done.out, done.err) == (1, "", "FAIL 1 of 1 checks (exit 1)\n")
    assert Xml.parse(tmp_path / "gate.xml").getroot().attrib["failures"] == "1"
    both = invoke("gate", run, "--policy", path, "--junit", tmp_path / "beside.xml")
    assert (both.code, both.out) == (1, invoke("gate", run, "--policy", path).out)
    assert (tmp_path / "beside.xml").read_bytes() == (tmp_path / "gate.xml").read_bytes()
    for option in ("-o", "--junit"):
        done = invoke("gate", run, "--policy", path, option, tmp_path / "nowhere" / "gate.txt")
        assert done.code == 3 and "cannot write" in done.err


@pytest.mark.parametrize("format", ["table", "json", "junit"])
def test_on_github(
    invoke: Invoke,
    run: Path,
    policy: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    format: str,
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n", encoding="utf-8")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    done = invoke("gate", run, "--policy", policy(STRICT), "--format", format)
    assert done.code == 1
    assert summary.read_text(encoding="utf-8").startswith("before\n### ctxeval gate: FAIL 1 of 1 checks (exit 1)\n")
    stream, other = (done.out, done.err) if format == "table" else (done.err, done.out)
    assert len([line for line in stream.splitlines() if line.startswith("::error title=")]) == 1
    assert "::error" not in other


def test_a_step_summary_that_cannot_be_written(
    invoke: Invoke, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    done = invoke("gate", run, "--policy", "smoke")
    assert done.code == 3 and "GITHUB_STEP_SUMMARY" in done.err


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "no policy"),
        ("confidence: 0.9\n", "asks for nothing"),
        ("recal: []\n", "Did you mean 'recall'"),
        ("recall: [{lengths: 4k, floor: .nan}]\n", "recall[0].floor is nan"),
        ("recall: [{lengths: 4k..1k, floor: 0.5}]\n", "ends before it begins"),
        ("perplexity: [{lengths: 4k, max_ratio: .inf}]\n", "max_ratio is inf"),
    ],
)
def test_a_bad_policy(invoke: Invoke, run: Path, policy: Callable[[str], Path], text: str, wanted: str) -> None:
    done = invoke("gate", run, "--policy", policy(text))
    assert done.code == 2 and wanted in done.err and done.err.count("\n") == 1 and not done.out


def test_bad_options(invoke: Invoke, run: Path, tmp_path: Path) -> None:
    for arguments, wanted in (
        ((run, "--policy", "smoke", "--format", "xml"), "unknown format 'xml'"),
        ((run, "--policy", "smoke", "--scale", "yarm"), "Did you mean 'yarn'"),
        ((run, "--policy", "smok"), "unknown policy 'smok'"),
        ((run, "--policy", "nowhere.yaml"), "cannot read the policy nowhere.yaml"),
        ((run,), "--policy"),
        ((tmp_path, "--policy", "smoke"), "run.json"),
    ):
        done = invoke("gate", *arguments)
        assert done.code == 2 and wanted in done.err and done.err.count("\n") == 1


def test_which_scaling(invoke: Invoke, tmp_path: Path) -> None:
    several = make_run(tmp_path / "several", ("none", "pi", "yarn"))
    done = invoke("gate", several, "--policy", "smoke")
    assert done.code == 2 and "none, pi, yarn" in done.err and "--scale" in done.err
    assert invoke("gate", several, "--policy", "smoke", "--scale", "pi").code == 0
    assert invoke("gate", make_run(tmp_path / "one", ("none",)), "--policy", "smoke").code == 0


def test_runs_that_are_damaged_empty_or_not_finished(
    invoke: Invoke, policy: Callable[[str], Path], tmp_path: Path
) -> None:
    empty = make_run(tmp_path / "empty", probes="")
    done = invoke("gate", empty, "--policy", "smoke")
    assert done.code == 2 and "no rows" in done.err
    foreign = make_run(tmp_path / "foreign", resolved={"lengths": "4k"})
    done = invoke("gate", foreign, "--policy", "smoke")
    assert done.code == 2 and "does not say what was asked for" in done.err
    unfinished = make_run(tmp_path / "unfinished", finished=None)
    done = invoke("gate", unfinished, "--policy", "smoke")
    assert done.code == 4 and "the run is not finished" in done.out
    without = make_run(tmp_path / "without", probes="n")
    done = invoke("gate", without, "--policy", "smoke")
    assert done.code == 4 and "no perplexity rows of yarn at all" in done.out
    cells = without / "cells.jsonl"
    cells.write_bytes(cells.read_bytes()[:-20])  # a torn last line: its cell is missing
    done = invoke("gate", without, "--policy", policy("recall: [{lengths: 4k, floor: 0.5}]\n"))
    assert done.code == 4 and "1 row has no result (1 absent)" in done.out


@pytest.mark.parametrize("lost", ["head", "tail", "document", "control"])
def test_a_finished_run_that_lost_rows_is_never_green(
    invoke: Invoke, run: Path, policy: Callable[[str], Path], tmp_path: Path, lost: str
) -> None:
    """Whichever lines are cut out of cells.jsonl, also those that no check of the policy asks for."""
    folder = shutil.copytree(run, tmp_path / "copy")
    cells = folder / "cells.jsonl"
    lines = cells.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = {
        "head": lines[1:],
        "tail": lines[:-1],
        "document": [line for line in lines if json.loads(line)["document"] != 3],
        "control": [line for line in lines if json.loads(line)["scale"] != "none"],
    }[lost]
    lax = policy(LAX)
    assert invoke("gate", folder, "--policy", lax).code == 0
    cells.write_text("".join(kept), encoding="utf-8")
    done = invoke("gate", folder, "--policy", lax)
    assert done.code == 4
    said = f"the run lost {len(lines) - len(kept)} of its {len(lines)} rows"
    assert ("row has no result" if lost == "document" else said) in " ".join(done.out.split())
    assert said in " ".join(invoke("report", folder, "--format", "md").out.split())
    # What is left still fails, and a run of before planned_rows was recorded is read as it was.
    assert invoke("gate", folder, "--policy", policy(STRICT)).code == 1
    manifest = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    del manifest["planned_rows"]
    (folder / "run.json").write_text(json.dumps(manifest), encoding="utf-8")
    assert "the run lost" not in invoke("gate", folder, "--policy", policy(LAX)).out


@pytest.mark.parametrize(("planned", "wanted"), [(100, "100 were planned"), (-1, "planned_rows -1"), ("9", "'9'")])
def test_more_rows_than_planned_are_refused(invoke: Invoke, tmp_path: Path, planned: Any, wanted: str) -> None:
    done = invoke("gate", make_run(tmp_path / "run", planned_rows=planned), "--policy", "smoke")
    assert done.code == 2 and wanted in done.err and done.err.count("\n") == 1 and not done.out


def test_a_nan_row_fails(invoke: Invoke, tmp_path: Path, policy: Callable[[str], Path]) -> None:
    folder = make_run(tmp_path / "nan")
    lines = [json.loads(line) for line in (folder / "cells.jsonl").read_text().splitlines()]
    last = next(row for row in reversed(lines) if row["probe"] == "needle")
    last.update(status="nan", correct=None)
    assert last["scale"] == "yarn" and last["context_length"] == 4096
    (folder / "cells.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    done = invoke("gate", folder, "--policy", policy("recall: [{lengths: 4k, floor: 0.5}]\n"))
    assert done.code == 1 and "1 row is NaN" in done.out
    assert not any(isinstance(value, float) and math.isnan(value) for value in last.values())


def test_no_torch(run: Path) -> None:
    code = (
        "import sys\nfrom ctxeval.cli.main import run_command\n"
        f"assert run_command(['gate', {str(run)!r}, '--policy', 'smoke']) == 0\n"
        "print([name for name in ('torch', 'transformers', 'datasets', 'accelerate') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_a_range_by_names_that_ends_before_it_begins(invoke: Invoke, run: Path, policy: Callable[[str], Path]) -> None:
    result = invoke("gate", run, "--policy", policy("recall: [{lengths: target..native, floor: 0.5}]\n"))
    assert result.code == 2 and "range target..native is 4096..2048 here" in result.err
