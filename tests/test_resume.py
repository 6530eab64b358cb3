"""A run that was killed at any moment and resumed has the rows of one that never was."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ctxeval import session as session_module
from ctxeval.cli.main import run_command
from ctxeval.results.schema import VOLATILE_COLUMNS
from ctxeval.results.store import RunStore, load_run

MACHINE = ("--device", "cpu", "--dtype", "fp32")
OPTIONS = (
    "--scale",
    "none,yarn",
    "--len",
    "1k",
    "--lengths",
    "512,1k",
    "--depths",
    "0,50,100",
    "--docs",
    "4",
    *MACHINE,
)

#: Imports torch once; every line is a command line that a fork runs as the real `ctxeval`.
LAUNCHER = """
import json, os, sys
import ctxeval.runner, ctxeval.cli.progress, ctxeval.cli.show
from ctxeval.cli.main import main
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM
for line in sys.stdin:
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        sys.argv = ["ctxeval", *json.loads(line)]
        main()
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def model(tiny_llama: Any) -> Path:
    return Path(tiny_llama(window=512))


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert run_command(["run", "-m", str(model), *OPTIONS, "-q", "--format", "csv", "-o", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def launcher() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", LAUNCHER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin
        process.stdin.close()


def rows(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the rows by id, without what may differ."""
    lines = [json.loads(line) for line in (folder / "cells.jsonl").read_bytes().splitlines()]
    assert len({line["cell_id"] for line in lines}) == len(lines)
    return {line.pop("cell_id"): line for line in lines if [line.pop(name) for name in VOLATILE_COLUMNS]}


def count(folder: Path) -> int:
    try:
        return (folder / "cells.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "nothing happened in two minutes"
        time.sleep(0.0005)


def resume(folder: Path, *more: str) -> int:
    return run_command(["run", "--resume", str(folder), "-q", "--format", "csv", *more])


@pytest.mark.parametrize("number", [signal.SIGKILL] * 5 + [signal.SIGTERM])
@pytest.mark.parametrize("seed", [0])
def test_a_killed_run_is_finished_by_resuming(
    number: signal.Signals, seed: int, model: Path, whole: Path, launcher: Any, tmp_path: Path, request: Any
) -> None:
    folder = tmp_path / "run"
    # Each of the six has a moment of its own: the test's name is part of the seed.
    moment = random.Random(f"{seed} {request.node.name}").randrange(1, count(whole) - 20)
    argv = ["run", "-m", str(model), *OPTIONS, "-q", "-o", str(folder)]
    launcher.stdin.write(json.dumps(argv) + "\n")
    launcher.stdin.flush()
    child = int(launcher.stdout.readline())
    wait_for(lambda: count(folder) >= moment)
    os.kill(child, number)
    assert int(launcher.stdout.readline()) == (75 if number == signal.SIGTERM else -9)
    kept = rows(folder) if (folder / "cells.jsonl").read_bytes().endswith(b"\n") else {}
    assert moment <= count(folder) < count(whole)
    assert load_run(folder).manifest["finished"] is None
    assert resume(folder) == 0
    assert rows(folder) == rows(whole)
    assert (folder / "samples.jsonl").read_bytes() == (whole / "samples.jsonl").read_bytes()
    assert kept.items() <= rows(folder).items()
    manifest = load_run(folder).manifest
    assert manifest["finished"] and manifest["planned_rows"] == len(load_run(folder).cells)
    assert set(manifest["proofs"]) == {"none", "yarn"}
    assert len(manifest["sessions"]) == 2
    if number == signal.SIGTERM:  # an orderly end notes what was read; the cut unit is read again
        assert manifest["forwarded_tokens"] >= manifest["predicted_tokens"]


def test_ctrl_c_twice_keeps_the_rows_and_says_how_to_go_on(model: Path, whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a run"
    command = [sys.executable, "-m", "ctxeval", "run", "-m", str(model), *OPTIONS, "-o", str(folder)]
    # A shell may have started pytest in the background, where SIGINT is ignored.
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    wait_for(lambda: count(folder) >= 30)
    process.send_signal(signal.SIGINT)
    time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    last = err.splitlines()[-1]
    assert last == (f"Error: interrupted. {count(folder)} rows are kept; go on with `ctxeval run --resume '{folder}'`")
    assert "Traceback" not in err
    before = load_run(folder).manifest
    assert before["sessions"][0]["ended"]
    assert before["forwarded_tokens"] > 0
    assert resume(folder) == 0
    assert rows(folder) == rows(whole)
    after = load_run(folder).manifest
    assert after["started"] == before["started"]
    assert after["sessions"][0] == before["sessions"][0]
    assert after["forwarded_tokens"] == sum(one["forwarded_tokens"] for one in after["sessions"])
    assert after["sessions"][1]["predicted_tokens"] < after["predicted_tokens"] <= after["forwarded_tokens"]


class Cut(BaseException):
    """Ends a run where a test wants it."""


@contextmanager
def cut_after(number: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a run in this process end after `number` rows were written."""
    real = RunStore.append
    left = [number]

    def append(self: RunStore, cells: Any) -> None:
        if not left[0]:
            raise Cut
        left[0] -= 1
        real(self, cells)

    with monkeypatch.context() as patch:
        patch.setattr(RunStore, "append", append)
        with pytest.raises(Cut):
            yield


@pytest.mark.parametrize(
    "options",
    ["needle --depths 0,50,100 --packed --exact-subset 4", "ppl --protocol strided --stride 100", "ppl --protocol all"],
)
def test_no_value_depends_on_where_a_run_was_cut(
    options: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are there already are not scored again, and that must not change the others by a single bit."""
    monkeypatch.setattr("ctxeval.runner.write_artifacts", lambda run: None)
    common = ("--scale", "none,yarn", "--len", "1k", "--lengths", "300,1k", "--docs", "1", *MACHINE, "-q")
    arguments = [*options.split(), "-m", str(model), *common, "-o"]
    assert run_command([*arguments, str(tmp_path / "whole")]) == 0
    wanted = rows(tmp_path / "whole")
    for number in range(1, len(wanted), max(len(wanted) // 3, 1)):
        folder = tmp_path / str(number)
        with cut_after(number, monkeypatch):
            run_command([*arguments, str(folder)])
        assert count(folder) == number
        assert resume(folder) == 0
        assert rows(folder) == wanted


def test_a_torn_last_line_is_measured_again(whole: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "run"))
    path = folder / "cells.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    assert count(folder) == count(whole) - 1
    assert resume(folder) == 0
    assert rows(folder) == rows(whole)


def test_a_finished_run_resumed_measures_nothing(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "run"))
    monkeypatch.setattr(session_module, "execute", lambda *_: pytest.fail("measured again"))
    assert resume(folder, "--scale", "none,yarn", "--seed", "0", "--depths", "3") == 0
    assert (folder / "cells.jsonl").read_bytes() == (whole / "cells.jsonl").read_bytes()
    manifest, before = load_run(folder).manifest, load_run(whole).manifest
    assert manifest["sessions"][1]["forwarded_tokens"] == 0
    for name in ("proofs", "started", "forwarded_tokens"):
        assert manifest[name] == before[name]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("--seed 1", "seed is 0 there, 1 here"),
        ("--scale none,pi", "scale is ('none', 'yarn') there, ('none', 'pi') here"),
        ("--depths 5", "depths is (0.0, 50.0, 100.0) there, (0.0, 25.0, 50.0, 75.0, 100.0) here"),
        ("--len 2k", "length is 1024 there, 2048 here"),
        ("--dtype bf16", "dtype is 'fp32' there, 'bf16' here"),
        ("--beta-fast 16", "beta_fast is None there, 16.0 here"),
        ("-m elsewhere", "'elsewhere' here"),
        ("-c FILE", "chunk is 1024 there, 512 here; seed is 0 there, 2 here"),
        ("-o elsewhere", "both --resume"),
        ("--stride 64", "--stride 64 without --protocol strided"),
    ],
)
def test_other_options_beside_resume_are_refused_by_name(
    more: str, words: str, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setattr("ctxeval.runner.prepare", lambda spec: pytest.fail("went on"))
    (tmp_path / "options.yaml").write_text("seed: 2\nchunk: 512\ndocs: 4\n")
    before = (whole / "run.json").read_bytes()
    assert resume(whole, *more.replace("FILE", str(tmp_path / "options.yaml")).split()) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1
    assert (whole / "run.json").read_bytes() == before


def test_what_ran_out_of_memory_is_measured_again(
    model: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = session_module.execute, iter(range(1000))

    def execute(*arguments: Any) -> Iterator[Any]:
        scores = real(*arguments)
        if next(calls) == 2:  # in the middle of a unit
            yield next(scores)
            raise MemoryError("no room")
        yield from scores

    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(session_module, "execute", execute)
        assert run_command(["run", "-m", str(model), *OPTIONS, "-q", "--format", "csv", "-o", str(folder)]) == 0
    cells = load_run(folder).cells
    lost = set(cells.loc[cells["status"] == "oom", "cell_id"])
    assert 0 < len(lost) < len(cells) == count(folder) == count(whole)
    assert "out of memory" in cells.loc[cells["status"] == "oom", "reason"].iloc[0]
    assert resume(folder) == 0
    assert count(folder) == count(whole) + len(lost)
    ours, wanted = (load_run(one).cells.set_index("cell_id").drop(columns="seconds") for one in (folder, whole))
    assert ours.sort_index().equals(wanted.sort_index())
    manifest = load_run(folder).manifest
    assert 0 < manifest["sessions"][1]["forwarded_tokens"] < manifest["sessions"][0]["forwarded_tokens"]


def test_a_run_keeps_the_number_format_that_it_began_with(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`auto` means the fastest format of the machine, and the next one may be another machine."""
    options = ("--len", "1k", "--lengths", "1k", "--docs", "1", "--device", "cpu")
    fastest = "ctxeval.model.placement._fastest"
    monkeypatch.setattr(fastest, lambda device: ("bf16", "is fast in it"))
    with cut_after(1, monkeypatch):
        run_command(["ppl", "-m", str(model), *options, "-q", "-o", str(tmp_path / "run")])
    monkeypatch.setattr(fastest, lambda device: ("fp32", "is fast in it"))
    assert run_command(["run", "--resume", str(tmp_path / "run")]) == 0
    assert "bf16 (as this run began)" in capsys.readouterr().err
    manifest = load_run(tmp_path / "run").manifest
    assert (manifest["dtype"], manifest["spec"]["model"]["dtype"]) == ("bf16", "auto")


def test_a_part_of_a_run_is_not_resumed_by_the_wrong_command(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["needle", "--resume", str(whole)]) == 2
    assert f"finish it with `ctxeval run --resume {whole}`" in capsys.readouterr().err


def test_a_model_whose_weights_changed_is_refused(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny_llama: Any
) -> None:
    copy, folder = Path(shutil.copytree(model, tmp_path / "model")), tmp_path / "run"
    options = ("--len", "1k", "--lengths", "1k", "--docs", "1", *MACHINE, "-q")
    assert run_command(["ppl", "-m", str(copy), *options, "-o", str(folder)]) == 0
    shutil.copy(tiny_llama(window=512, seed=1) / "model.safetensors", copy)
    manifest = load_run(folder).manifest
    (folder / "run.json").write_text(json.dumps({**manifest, "finished": None}))  # else there is nothing to go on with
    assert resume(folder) == 2
    err = capsys.readouterr().err
    assert "fingerprint" in err
    assert "rows are kept" not in err  # to try again would lead to the same


def test_a_model_whose_configuration_changed_is_refused(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, folder = Path(shutil.copytree(model, tmp_path / "model")), tmp_path / "run"
    options = ("--len", "1k", "--lengths", "1k", "--docs", "1", *MACHINE, "-q")
    assert run_command(["ppl", "-m", str(copy), *options, "-o", str(folder)]) == 0
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.1}))
    assert resume(folder) == 2
    assert "fingerprint" in capsys.readouterr().err


def test_other_frequencies_than_those_proved_before_are_refused(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    options = ("--scale", "yarn", "--len", "1k", "--lengths", "1k", "--docs", "1", *MACHINE, "-q")
    assert run_command(["ppl", "-m", str(model), *options, "-o", str(folder)]) == 0
    manifest = load_run(folder).manifest
    manifest["proofs"]["yarn"]["frequencies_sha256"] = "0" * 64
    (folder / "run.json").write_text(json.dumps(manifest))
    (folder / "cells.jsonl").write_text("")  # everything is still to be measured
    assert resume(folder) == 3
    assert "yarn gives other frequencies than when this run began" in capsys.readouterr().err
    assert "yarn" not in set(load_run(folder).cells["scale"])
