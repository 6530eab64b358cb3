"""The real commands compare and baseline: every exit code, every format, and the names that a run may have."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctxeval.results.store import RunStore
from tests.analysis.synthetic_cells import needle_cells, perplexity_cells
from tests.analysis.synthetic_runs import manifest

Invoke = Callable[..., Any]
LENGTHS, DEPTHS = (2048, 4096), (0.0, 50.0, 100.0)
SCALES = ("none", "pi", "yarn")


def about_run(scales: tuple[str, ...] = SCALES, **identity: Any) -> dict[str, Any]:
    return manifest(scales, LENGTHS, 8, depths=DEPTHS, **identity)


def write(folder: Path, recall: float, scales: tuple[str, ...] = SCALES, **about: Any) -> Path:
    """Write a run of 8 documents; yarn finds this share of needles, the others none."""

    def truth(scale: str, length: int) -> float:
        return recall if scale == "yarn" else 0.0

    cells = [
        *needle_cells(np.random.default_rng(0), truth, scales, LENGTHS, 8, depths=DEPTHS),
        *perplexity_cells(np.random.default_rng(0), lambda *_: 0.0, scales, LENGTHS, 8),
    ]
    with RunStore.create(folder, {**about_run(scales), **about, "planned_rows": len(cells)}) as store:
        store.append(cells)
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("compare") / "base", 1.0)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("compare") / "other", 0.0, ("none", "yarn"))


def test_two_scalings_of_one_run(invoke: Invoke, base: Path) -> None:
    done = invoke("compare", f"{base}@none", f"{base}@yarn")
    assert (done.code, done.err) == (0, "")
    assert max(map(len, done.out.splitlines())) <= 80 + max(0, len(str(base)) - 60)
    assert done.out.splitlines()[0].startswith("baseline")
    text = " ".join(done.out.split())
    assert f"better: {base}@yarn is significantly better than {base}@none in recall at 2K, 4K (+100 points" in text
    assert text.endswith("nowhere worse")


def test_a_worse_candidate_is_exit_0_it_compares_and_does_not_gate(invoke: Invoke, base: Path, other: Path) -> None:
    done = invoke("compare", f"{base}@yarn", other)  # yarn is the only scaling of `other` beside none
    assert done.code == 0 and f"worse: {other}@yarn is significantly worse than" in " ".join(done.out.split())


def test_several_candidates(invoke: Invoke, base: Path, other: Path) -> None:
    done = invoke("compare", f"{base}@none", f"{base}@yarn", f"{base}@pi", other, "--format", "json")
    assert done.code == 0
    found = json.loads(done.out)
    assert [one["verdict"] for one in found] == ["better", "identical", "identical"]
    assert {one["tests"] for one in found} == {12}  # recall and perplexity, 2 lengths, 3 candidates
    assert found[0]["changes"][0]["state"] in ("worse", "open") and found[0]["candidate"]["scaling"]["label"] == "yarn"


def test_formats_and_files(invoke: Invoke, base: Path, tmp_path: Path) -> None:
    sides = (f"{base}@none", f"{base}@yarn")
    rows = list(csv.DictReader(io.StringIO(invoke("compare", *sides, "--format", "csv").out)))
    assert len(rows) == 4 and {row["context_length"] for row in rows} == {"2048", "4096"}
    assert {row["state"] for row in rows if row["metric"] == "recall"} == {"better"}
    text = invoke("compare", *sides, "--format", "md").out
    assert text.startswith("### better: ") and "| better | recall, % | 2K | 0 | 100 |" in text
    done = invoke("compare", *sides, "-o", tmp_path / "out.txt")
    assert (done.code, done.out) == (0, "") and done.err.startswith("better: ")
    assert "Change (95 %)" in (tmp_path / "out.txt").read_text(encoding="utf-8")
    done = invoke("compare", *sides, "-o", tmp_path / "nowhere" / "out.txt")
    assert done.code == 3 and "cannot write" in done.err


def test_what_is_refused(invoke: Invoke, base: Path, tmp_path: Path) -> None:
    seeded = about_run(SCALES, seed=1, corpus={"name": "demo", "sha256": "d"})
    unlike = write(tmp_path / "unlike", 1.0, **seeded)
    empty = tmp_path / "empty"
    with RunStore.create(empty, about_run()):
        pass
    foreign = write(tmp_path / "foreign", 1.0, resolved={"lengths": "4k"})
    for arguments, wanted in (
        ((f"{base}@yarn", f"{unlike}@yarn"), "unlike"),
        ((f"{base}@yarn", f"{unlike}@yarn"), "corpus sotu (cccccccc) → demo (d); seed 0 → 1"),
        ((base, f"{base}@pi"), "has the scalings none, pi, yarn"),
        ((f"{base}@yarm", f"{base}@pi"), "Did you mean 'yarn'"),
        ((f"{base}@none", "nowhere"), "nowhere"),
        ((f"{base}@none", "nowhere@yarn"), "cannot read nowhere/run.json"),
        ((f"{base}@none", f"{empty}@yarn"), "has no rows"),
        ((f"{base}@none", f"{foreign}@yarn"), "does not say what was asked for"),
        ((f"{base}@none", base / "cells.jsonl"), "cells.jsonl is not JSON"),
        ((f"{base}@none", base / "run.json"), "is not a baseline"),
        ((f"{base}@none", f"{base}@pi", "--format", "html"), "unknown format 'html'"),
        ((base,), "CANDIDATE"),
    ):
        done = invoke("compare", *arguments)
        assert done.code == 2 and wanted in done.err and done.err.count("\n") == 1 and not done.out, arguments


def test_insisting(invoke: Invoke, base: Path, tmp_path: Path) -> None:
    unlike = write(tmp_path / "unlike", 1.0, **about_run(SCALES, seed=1))
    done = invoke("compare", f"{base}@yarn", f"{unlike}@yarn", "--allow-mismatch")
    assert done.code == 0 and "unlike     seed 0 → 1" in done.out and "--allow-mismatch" in done.out


def test_flagged_differences_are_shown(invoke: Invoke, base: Path, tmp_path: Path) -> None:
    about = about_run(SCALES, model={"name": "tuned", "dtype": "bf16"})
    about["tokenizer"] = {"sha256": "other"}
    flagged = write(tmp_path / "flagged", 1.0, **{**about, "finished": None})
    done = invoke("compare", f"{base}@yarn", f"{flagged}@yarn")
    assert done.code == 0
    for line in (
        "flagged    dtype fp32 → bf16",
        "flagged    tokenizer kkkkkkkk → other",
        "model      name smol → tuned",
    ):
        assert line in done.out
    assert "flagged    the candidate is not finished" in done.out
    assert "bits per byte" in done.out and "perplexity" not in done.out


def test_a_path_that_exists_wins_over_a_scaling(invoke: Invoke, base: Path, tmp_path: Path) -> None:
    named = tmp_path / "run@yarn"
    shutil.copytree(base, named)
    done = invoke("compare", "run@yarn@none", "run@yarn@yarn")
    assert done.code == 0 and "run@yarn@yarn is significantly better than run@yarn@none" in " ".join(done.out.split())
    done = invoke("compare", "run@yarn@none", "run@yarn")
    assert done.code == 2 and "run@yarn has the scalings none, pi, yarn" in done.err


def test_a_baseline_file_stands_for_its_run(invoke: Invoke, base: Path, other: Path, tmp_path: Path) -> None:
    file = tmp_path / "base.json"
    done = invoke("baseline", base, "-o", file)
    assert (done.code, done.out) == (0, "") and f"wrote {file}" in done.err
    assert invoke("baseline", base).out == file.read_text(encoding="utf-8")
    found = [
        json.loads(invoke("compare", f"{one}@yarn", other, "--format", "json").out)[0]["changes"]
        for one in (base, file)
    ]
    assert found[0] == found[1]
    file.write_text(file.read_text(encoding="utf-8").replace("true", "false", 1), encoding="utf-8")
    done = invoke("compare", f"{file}@yarn", other)
    assert done.code == 2 and "was changed since it was written" in done.err


def test_baselines_that_cannot_be_written(invoke: Invoke, base: Path, tmp_path: Path) -> None:
    done = invoke("baseline", base, "-o", tmp_path / "nowhere" / "base.json")
    assert done.code == 3 and "cannot write" in done.err
    unfinished = write(tmp_path / "unfinished", 1.0, finished=None)
    done = invoke("baseline", unfinished)
    assert done.code == 2 and "is not finished" in done.err and not done.out
    assert invoke("baseline", tmp_path / "nowhere").code == 2


RULE = "regression: [{lengths: ..target, max_recall_drop: 0.5, max_ratio: 1.05}]\n"


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(RULE, encoding="utf-8")
    return path


def test_gate_against_a_baseline(invoke: Invoke, base: Path, other: Path, policy: Path, tmp_path: Path) -> None:
    file = tmp_path / "base.json"
    invoke("baseline", base, "-o", file)
    arguments = ("--policy", policy, "--scale", "yarn", "--baseline")
    for baseline in (base, file, f"{base}@yarn"):
        done = invoke("gate", base, *arguments, baseline)
        assert done.code == 0 and f"baseline {file if baseline == file else base}@yarn" in " ".join(done.out.split())
        assert done.out.splitlines()[-1] == "PASS 4 of 4 checks (exit 0)"
    done = invoke("gate", other, *arguments, base)
    assert done.code == 1 and "recall has credibly dropped by more than 50 points" in " ".join(done.out.split())
    assert "FAIL  regression: recall at 2K" in done.out and "≥ -50 points" in done.out
    shipped = ("--policy", "regression", "--scale", "yarn", "--baseline", base)
    done = invoke("gate", base, *shipped)  # 8 documents of 3 needles cannot exclude a drop of 10 points
    assert done.code == 4 and "more documents would decide it" in done.out
    report = json.loads(invoke("gate", base, *arguments, base, "--format", "json").out)
    assert report["notes"][0] == f"baseline {base}@yarn" and report["checks"][0]["quantity"] == "change"


def test_gate_and_baselines_that_are_refused(invoke: Invoke, base: Path, policy: Path, tmp_path: Path) -> None:
    unlike = write(tmp_path / "unlike", 1.0, **about_run(SCALES, corpus={"name": "demo", "sha256": "d"}))
    for arguments, wanted in (
        (("--policy", policy), "no baseline. give --baseline RUN"),
        (("--policy", "smoke", "--baseline", base), "no rule of the policy compares"),
        (("--policy", policy, "--baseline", unlike), "corpus demo (d) → sotu (cccccccc)"),
        (("--policy", policy, "--baseline", "nowhere"), "nowhere"),
        (("--policy", policy, "--baseline", f"{base}@yarm"), "'yarn'"),
    ):
        done = invoke("gate", base, "--scale", "yarn", *arguments)
        assert done.code == 2 and wanted in done.err and done.err.count("\n") == 1 and not done.out, arguments


def test_no_torch(base: Path, policy: Path, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom ctxeval.cli.main import run_command\n"
        f"assert run_command(['compare', '{base}@none', '{base}@yarn']) == 0\n"
        f"assert run_command(['baseline', {str(base)!r}, '-o', {str(tmp_path / 'b.json')!r}]) == 0\n"
        f"gate = ['gate', {str(base)!r}, '--policy', {str(policy)!r}, '--scale', 'yarn', '--baseline']\n"
        f"assert run_command([*gate, {str(tmp_path / 'b.json')!r}]) == 0\n"
        "print([name for name in ('torch', 'transformers', 'datasets', 'accelerate', 'peft') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
