"""Every exit code, from the real command in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.test_gate import LAX, STRICT, UNDER_POWERED, make_run

#: what happened → (exit code, arguments, the last line of stdout, the beginning of the one line on stderr)
CASES: dict[str, tuple[int, str, str, str]] = {
    "ran": (0, "tasks", "needle: ", ""),
    "gate passed": (0, "gate run --policy lax.yaml", "PASS 4 of 4 checks (exit 0)", ""),
    "gate failed": (1, "gate run --policy strict.yaml", "FAIL 1 of 1 checks (exit 1)", ""),
    "usage": (2, "run --lenght 1k", "", "Error: No such option: --lenght"),
    "unreadable input": (2, "report empty", "", "Error: cannot read empty/run.json"),
    "cannot write": (3, "gate run --policy lax.yaml -o no/gate.txt", "", "Error: cannot write no/gate.txt"),
    "gate inconclusive": (4, "gate run --policy under_powered.yaml", "INCONCLUSIVE 1 of 1 checks (exit 4)", ""),
}
COMMAND = (sys.executable, "-m", "ctxeval")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, three policies for it, and an empty folder."""
    root = tmp_path_factory.mktemp("exit-codes")
    (root / "empty").mkdir()
    for name, text in (("lax", LAX), ("strict", STRICT), ("under_powered", UNDER_POWERED)):
        (root / f"{name}.yaml").write_text(text, encoding="utf-8")
    make_run(root / "run")
    return root


@pytest.mark.parametrize("name", CASES)
def test_the_command_exits_with(name: str, folder: Path) -> None:
    code, arguments, out, err = CASES[name]
    done = subprocess.run([*COMMAND, *arguments.split()], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert (done.stdout.splitlines() or [""])[-1].startswith(out) and bool(done.stdout) == bool(out)
    assert done.stderr.startswith(err) and done.stderr.count("\n") == bool(err)


@contextmanager
def reading_a_pipe(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a real report that has begun to read its manifest, and waits for the rest of it."""
    os.mkfifo(folder / "run.json")
    # A shell may have started pytest in the background, where SIGINT is ignored.
    process = subprocess.Popen(
        [*COMMAND, "report", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    with process, (folder / "run.json").open("wb"):  # opens when the other side does
        yield process
        process.kill()


@pytest.mark.parametrize(
    ("number", "code", "words"), [(signal.SIGTERM, 75, "pre-empted by SIGTERM"), (signal.SIGINT, 130, "interrupted")]
)
def test_a_signal_ends_it_with(number: signal.Signals, code: int, words: str, tmp_path: Path) -> None:
    """Runs that measure end likewise, and keep their rows: see test_resume."""
    with reading_a_pipe(tmp_path) as process:
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (code, "", f"Error: {words}\n")
