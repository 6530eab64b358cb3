"""`ctxeval plan`: documents without a model, and the whole bill with one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_gate import make_run

Invoke = Callable[..., Any]
WINDOW = ("--native-window", "2048", "--len", "4k", "--scale", "yarn", "--lengths", "2k,4k")


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text("recall: [{lengths: target, floor: 0.7}]\nperplexity: [{lengths: target, max_ratio: 1.1}]\n")
    return path


def test_without_a_model(invoke: Invoke, policy: Path) -> None:
    done = invoke("plan", "--policy", policy, *WINDOW, "--margin", "0.2")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("recall at 4K") and "90 %" in line and "≥ 70 %" in line for line in lines)
    assert "all 2 checks together: " in done.out and "such a model passes with a chance of" in " ".join(lines[-2:])
    found = json.loads(invoke("plan", "--policy", policy, *WINDOW, "--margin", "0.2", "--format", "json").out)
    assert found["documents"] >= found["perplexity_documents"] >= 8 and found["cost"] is None
    assert [check["check"] for check in found["checks"]] == ["recall at 4K", "perplexity ratio at 4K"]
    packed = json.loads(invoke("plan", "--policy", policy, *WINDOW, "--packed", "--format", "json").out)
    assert 0 < packed["needles_a_document"]["2048"] < packed["needles_a_document"]["4096"] <= 10
    assert packed["documents"] > found["documents"]


def test_with_a_model(invoke: Invoke, policy: Path) -> None:
    """The bill is that of the run which the command names, and the command is one."""
    grid = ("--len", "512", "--lengths", "256,512", "--depths", "3", "--scale", "yarn", "--corpus", "demo")
    rules = ("--policy", policy, "--margin", "0.25", "--format", "json", "-q")
    done = invoke("plan", "-m", "demo", *grid, *rules)
    found = json.loads(done.out)
    assert (done.code, done.err, found["notes"]) == (0, "", [])
    assert found["cost"]["seconds"] > 0
    documents, losses = found["documents"], found["perplexity_documents"]
    assert found["command"].startswith("ctxeval run --model demo --scale yarn --len 512 --lengths 256,512 --depths 3")
    assert found["command"].endswith(f"--docs {documents}" + f" --ppl-docs {losses}" * (losses < documents))
    dry = invoke(*found["command"].split()[1:], "--dry-run")
    assert dry.code == 0
    (tokens,) = re.findall(r"([\d,]+) tokens to forward", dry.out)
    assert int(tokens.replace(",", "")) == pytest.approx(found["cost"]["tokens"], rel=0.1)


def test_never_is_said(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "never.yaml"
    path.write_text("recall: [{lengths: target, floor: 0.97}]\n")
    done = invoke("plan", "--policy", path, *WINDOW)
    assert done.code == 0 and "NEVER" in done.out and "no recall is 5 points above 97 %" in done.out


def test_from_a_run(invoke: Invoke, policy: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", resolved={**RESOLVED, "depths": [12.5 * step for step in range(9)]})
    done = invoke("plan", "--policy", policy, "--from", run, "--format", "json")
    found = json.loads(done.out)
    assert done.code == 0 and found["needles_a_document"] == {"1024": 9.0, "2048": 9.0, "4096": 9.0}
    assert found["assumed"]["reference"] == pytest.approx(0.9, abs=0.03)
    assert found["assumed"]["spread"] == pytest.approx(0.02, abs=0.006)
    assert found["assumed"]["correlation"] < 0.15
    more = json.loads(invoke("plan", "--policy", policy, "--from", run, "--correlation", "0.6", "--format", "json").out)
    assert more["assumed"]["correlation"] == 0.6 and more["documents"] > found["documents"]


RESOLVED: dict[str, Any] = {
    "native_window": 2048,
    "target": 4096,
    "lengths": [1024, 2048, 4096],
    "documents": 24,
    "scalings": [{"label": "none"}, {"label": "yarn"}],
}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--policy", "smoke"), "neither a model nor its window"),
        (("--policy", "smok", *WINDOW), "unknown policy 'smok'"),
        (("--policy", "smoke", *WINDOW, "--margin", "nan"), "--margin nan"),
        (("--policy", "smoke", *WINDOW, "--power", "1"), "--power 1"),
        (("--policy", "smoke", *WINDOW, "--correlation", "1"), "--correlation 1"),
        (("--policy", "smoke", *WINDOW, "--spread", "0"), "--spread 0"),
        (("--policy", "smoke", *WINDOW, "--format", "csv"), "unknown format 'csv'"),
        (("--policy", "smoke", "--from", "nowhere"), "nowhere"),
        (WINDOW, "--policy"),
    ],
)
def test_bad_options(invoke: Invoke, arguments: tuple[str, ...], said: str) -> None:
    done = invoke("plan", *arguments)
    assert done.code == 2 and said in done.err and done.err.count("\n") == 1 and not done.out


def test_no_torch(policy: Path) -> None:
    code = (
        "import sys\nfrom ctxeval.cli.main import run_command\n"
        f"assert run_command(['plan', '--policy', {str(policy)!r}, *{WINDOW!r}, '--packed']) == 0\n"
        "print([name for name in ('torch', 'transformers', 'datasets', 'accelerate') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
