"""`--min-recall` and `--max-ratio`: the real commands on the bundled model, every exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctxeval.cli.main import run_command

Invoke = Callable[..., Any]
# Two lengths, so that a run takes seconds; eight documents, which a gate asks for at least.
LENGTHS = (
    "-m",
    "demo",
    "--dtype",
    "fp32",
    "--device",
    "cpu",
    "--corpus",
    "demo",
    "--len",
    "384",
    "--lengths",
    "256,384",
)
GRID = (*LENGTHS, "--depths", "3", "-q")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of both probes: YaRN finds the needles, PI without fine-tuning does not."""
    folder = tmp_path_factory.mktemp("judge") / "run"
    assert run_command(["run", *GRID, "--scale", "none,pi,yarn", "--docs", "12", "-o", str(folder)]) == 0
    return folder


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


def test_needle(invoke: Invoke) -> None:
    done = invoke("needle", *GRID, "--scale", "yarn", "--docs", "8", "--min-recall", "0.3")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[-1] == "PASS 2 of 2 checks (exit 0)"
    assert sum(line.startswith("PASS  recall at") for line in lines) == 2
    assert "scaling yarn · policy --min-recall 0.3 · confidence 0.95" in lines
    assert any("Recall" in line for line in lines[: lines.index(lines[-1])])


def test_ppl(invoke: Invoke) -> None:
    done = invoke("ppl", *LENGTHS, "--scale", "pi", "--docs", "8", "--max-ratio", "1.05", "--format", "json")
    assert done.code == 1 and "headline" in json.loads(done.out)
    done = invoke("ppl", *LENGTHS, "--scale", "yarn", "--docs", "3", "--max-ratio", "1.05", "--format", "csv")
    assert done.code == 4 and done.out.startswith("scale,factor,")


def test_both_and_several_scalings(invoke: Invoke, run: Path) -> None:
    """What the options ask is no part of the run: a finished one is judged again without measuring."""
    before = (run / "cells.jsonl").read_bytes()
    done = invoke("run", "--resume", run, "--min-recall", "0.3", "--max-ratio", "1.3", "--format", "json")
    assert done.code == 1 and json.loads(done.out)["headline"]
    tables = done.err[done.err.index("scaling pi ·") :]
    assert tables.index("FAIL") < tables.index("scaling yarn ·") < tables.index("PASS 4 of 4 checks (exit 0)")
    done = invoke("run", "--resume", run, "--max-ratio", "5", "-q", "--format", "csv")
    assert (done.code, done.err) == (0, "")
    assert (run / "cells.jsonl").read_bytes() == before


def test_undecided_is_4_unless_one_fails(invoke: Invoke, run: Path) -> None:
    """At the point estimate nothing can be decided: YaRN alone is open, PI beside it fails."""
    cells = json.loads(invoke("report", run, "--format", "json").out)["headline"]["rows"]
    yarn = next(row for row in cells if row["scale"] == "yarn")
    bar = str(min(one["recall"]["value"] for one in yarn["lengths"]) - 0.01)
    done = invoke("run", "--resume", run, "--min-recall", bar)
    assert done.code == 1 and "INCONCLUSIVE" in done.out and done.out.count("policy --min-recall") == 2


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--min-recall", "1.5", "--min-recall 1.5"),
        ("--min-recall", "0", "--min-recall 0"),
        ("--min-recall", "nan", "--min-recall nan"),
        ("--max-ratio", "-1", "--max-ratio -1"),
        ("--max-ratio", "inf", "--max-ratio inf"),
        ("--max-ratio", "nan", "--max-ratio nan"),
    ],
)
def test_bad_values(invoke: Invoke, tmp_path: Path, option: str, value: str, said: str) -> None:
    done = invoke("run", *GRID, "--scale", "yarn", "-o", tmp_path / "run", option, value)
    assert done.code == 2 and said in done.err and done.err.count("\n") == 1 and not done.out
    assert not (tmp_path / "run").exists()


def test_each_command_has_its_own(invoke: Invoke) -> None:
    for command, option in (("needle", "--max-ratio"), ("ppl", "--min-recall")):
        done = invoke(command, *LENGTHS, option, "0.5")
        assert done.code == 2 and option in done.err
