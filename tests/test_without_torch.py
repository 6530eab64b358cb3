"""What runs no model works where torch and its friends are not installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from ctxeval.cli.main import app
from tests.cli.test_gate import LAX, STRICT, make_run

MISSING = ("torch", "transformers", "accelerate", "datasets", "tokenizers", "safetensors", "gguf", "huggingface_hub")
#: These load a model, or read its configuration.
MEASURING = {"demo", "needle", "ppl", "run", "verify", "export"}
#: Command → the command lines that must work without torch, each behind its exit code.
LINES: dict[str, list[tuple[int, str]]] = {
    "report": [(0, f"report run --format {format} -o report.{format}") for format in ("table", "md", "csv", "json")]
    + [(0, "report run --format html -o report.html"), (0, "report run --format model-card")],
    "gate": [
        (0, "gate run --policy lax.yaml"),
        (1, "gate run --policy strict.yaml --format json"),
        (0, "gate run --policy lax.yaml --format junit"),
    ],
    "plan": [(0, "plan --policy smoke --native-window 256 --len 512")],
    "compare": [(0, "compare run@none run@yarn")],
    "rope": [(0, "rope --theta 10000 --dim 64 --native-window 4096 --scale pi,yarn --len 16k")],
    "baseline": [(0, "baseline run -o baseline.json")],
    "tasks": [(0, "tasks"), (0, "tasks needle")],
}
OTHERS = [(0, "--version"), (0, "--help"), (0, "run --help"), (2, "run --lenght 1k")]

#: Runs command lines in one process in which nothing of `missing` can be imported, and prints their exit codes.
SCRIPT = """
import contextlib, io, json, sys
missing, lines = json.loads(sys.argv[1])
class Blocker:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.split(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker)
from ctxeval.cli.main import run_command
for line in lines:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = run_command(line)
    print(code, len(out.getvalue()))
"""


def codes(folder: Path, missing: tuple[str, ...], lines: list[str]) -> tuple[list[int], str]:
    command = [sys.executable, "-c", SCRIPT, json.dumps([missing, [line.split() for line in lines]])]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return [int(line.split()[0]) for line in done.stdout.splitlines()], done.stderr


def test_every_command_that_runs_no_model_works_without_torch(tmp_path: Path) -> None:
    assert {command.name for command in app.registered_commands} == MEASURING | set(LINES)
    make_run(tmp_path / "run")
    (tmp_path / "lax.yaml").write_text(LAX, encoding="utf-8")
    (tmp_path / "strict.yaml").write_text(STRICT, encoding="utf-8")
    wanted = [one for lines in LINES.values() for one in lines] + OTHERS
    found, err = codes(tmp_path, MISSING, [line for _, line in wanted])
    assert found == [code for code, _ in wanted], err
    assert (tmp_path / "report.csv").read_text().startswith("scale,")


def test_that_check_can_fail(tmp_path: Path) -> None:
    """A command that needs what is missing fails as a run does, without a traceback."""
    found, err = codes(tmp_path, ("yaml",), ["tasks"])
    assert found == [3]
    assert "unexpected ModuleNotFoundError" in err and "Traceback" not in err
