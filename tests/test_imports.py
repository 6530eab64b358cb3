"""What runs no model must not wait for torch: `import ctxeval`, --help, --version, tasks and report."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ctxeval.results.schema import NeedleCell
from ctxeval.results.store import RunStore

HEAVY = ("torch", "transformers", "datasets", "accelerate")

#: Runs command lines one after the other and prints, after each, which of the suspects have been imported by then.
SCRIPT = """
import contextlib, io, json, sys
suspects, lines = json.loads(sys.argv[1])
seen = []
def look(code):
    seen.append([code, [name for name in suspects if name in sys.modules]])
import ctxeval
look(0)
from ctxeval.cli.main import run_command
for line in lines:
    with contextlib.redirect_stdout(io.StringIO()):
        code = run_command(line)
    look(code)
print(json.dumps(seen))
"""


@pytest.fixture
def run_folder(tmp_path: Path) -> str:
    resolved = {
        "lengths": [512, 1024],
        "reference_lengths": [256, 512],
        "native_window": 512,
        "scalings": [{"label": "none", "factor": 1.0}],
        "task": "needle",
    }
    common: dict[str, Any] = {"probe": "needle", "task": "needle", "control": "", "plan": "exact", "scale": "none"}
    needle: dict[str, Any] = {"needle_id": "0.0.9", "needle_position": 9, "needle_distance": 90, "n_needles": 1}
    with RunStore.create(tmp_path / "run", {"identity": {}, "resolved": resolved}) as store:
        for name, length in (("a", 512), ("b", 1024)):
            where: dict[str, Any] = {"context_length": length, "depth_percent": 0.0, "document": 0, "trial": 0}
            cell = NeedleCell(cell_id=name, factor=1.0, expected="12345", correct=True, **common, **needle, **where)
            store.append([cell])
    return str(store.path)


def imported(suspects: tuple[str, ...], *lines: list[str]) -> list[list[Any]]:
    """Return [exit code, suspects imported so far] after `import ctxeval` and after each command line."""
    command = [sys.executable, "-c", SCRIPT, json.dumps([suspects, lines])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result: list[list[Any]] = json.loads(done.stdout)
    return result


def test_commands_that_run_no_model_import_no_torch(run_folder: str) -> None:
    lines = [["--help"], ["--version"], ["run", "--help"], ["tasks"], ["tasks", "needle"], ["run", "--nonsense"]]
    lines += [
        ["report", run_folder, "--format", format] for format in ("csv", "json", "md", "table", "model-card", "html")
    ]
    seen = imported(HEAVY, *lines)
    assert [code for code, _ in seen] == [0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0]
    assert [modules for _, modules in seen] == [[]] * len(seen)


def test_that_check_can_fail(run_folder: str) -> None:
    """Only the report needs pandas, and only the tasks need yaml: the check sees both, and sees when."""
    seen = imported(("pandas", "yaml"), ["--help"], ["tasks"], ["report", run_folder])
    assert seen == [[0, []], [0, []], [0, ["yaml"]], [0, ["pandas", "yaml"]]]
