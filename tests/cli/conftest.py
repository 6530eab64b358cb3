"""A way to run command lines in this process, as the `ctxeval` command would."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from ctxeval.cli.main import run_command


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


Invoke = Callable[..., Outcome]


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Invoke:
    """Run `ctxeval ARGUMENTS` in an empty working directory, without a word of the environment's own."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("CTXEVAL_")]:
        monkeypatch.delenv(name)

    def call(*arguments: object) -> Outcome:
        capsys.readouterr()
        code = run_command([str(one) for one in arguments])
        return Outcome(code, *capsys.readouterr())

    return call
