"""--rope-option, --rope-factors and the windows: what the command line makes of them, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctxeval.errors import UsageError
from ctxeval.rope.factors import read_factors
from ctxeval.spec import RunSpec


@pytest.fixture
def spec_of(invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunSpec]:
    """Return the spec that a command line leads to, without running it."""
    specs: list[RunSpec] = []
    monkeypatch.setattr("ctxeval.cli.show.show_forecast", lambda *_: None)
    monkeypatch.setattr("ctxeval.runner.dry", lambda spec, observer, resume: specs.append(spec))

    def call(*arguments: object) -> RunSpec:
        result = invoke("run", "-m", "x", *arguments, "--dry-run")
        assert result.code == 0, result.err
        return specs.pop()

    return call


def test_options_of_scalings_are_read_by_their_kind(spec_of: Callable[..., RunSpec]) -> None:
    spec = spec_of("--rope-option", "beta_fast=16, truncate=false", "--rope-option", "original-window=8192")
    assert spec.scaling_options == {"beta_fast": 16.0, "truncate": False, "original_window": 8192}
    assert spec_of("--beta-fast", 16, "--rope-option", "beta_fast=16").scaling_options == {"beta_fast": 16.0}
    assert spec_of("--beta-fast", 16) == spec_of("--rope-option", "beta_fast=16")


@pytest.mark.parametrize("text", ["{beta_fast: 16, truncate: false}", "[beta_fast=16, truncate=false]"])
def test_options_of_scalings_in_a_file(spec_of: Callable[..., RunSpec], tmp_path: Path, text: str) -> None:
    file = tmp_path / "options.yaml"
    file.write_text(f"rope-option: {text}\n")
    assert spec_of("-c", file).scaling_options == {"beta_fast": 16.0, "truncate": False}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--rope-option", "beta_fats=16"], "unknown RoPE option 'beta_fats'. Did you mean 'beta_fast'?"),
        (["--rope-option", "beta_fast"], "RoPE option 'beta_fast' has no value. write it as beta_fast=16"),
        (["--rope-option", "beta_fast=x"], "RoPE option beta_fast=x. it must be a number"),
        (["--rope-option", "truncate=1"], "RoPE option truncate=1. it must be true or false"),
        (["--rope-option", "long_factor=1"], "RoPE option long_factor is a list. give a file with --rope-factors"),
        (["--rope-option", "beta_fast=1,beta_fast=2"], "RoPE option beta_fast is both 1 and 2"),
        (["--rope-option", "beta_fast=1", "--beta-fast", "2"], "both beta_fast 2.0 and --rope-option beta_fast=1.0"),
        (["--rope-factors", "absent.json"], "cannot read the RoPE factors absent.json"),
    ],
)
def test_options_that_are_refused(invoke: Callable[..., Any], arguments: list[str], text: str) -> None:
    result = invoke("run", "-m", "demo", "--dry-run", *arguments)
    assert result.code == 2
    assert text in result.err


@pytest.mark.parametrize(
    "text",
    [
        '{"short_factor": [1, 1.5], "long_factor": [2, 3]}',
        '{"rope_scaling": {"type": "longrope", "short_factor": [1, 1.5], "long_factor": [2, 3]}}',
        "rope_parameters:\n  short_factor: [1, 1.5]\n  long_factor: [2, 3]\n",
    ],
)
def test_files_of_factors(tmp_path: Path, text: str) -> None:
    file = tmp_path / "factors"
    file.write_text(text)
    assert read_factors(file) == {"short_factor": (1.0, 1.5), "long_factor": (2.0, 3.0)}


def test_a_plain_list_of_factors_serves_every_length(tmp_path: Path) -> None:
    file = tmp_path / "factors.yaml"
    file.write_text("- 1\n- 2.5\n")
    assert read_factors(file) == {"short_factor": (1.0, 2.5), "long_factor": (1.0, 2.5)}


@pytest.mark.parametrize("text", ['{"long_factor": [1]}', "[1, 0]", "[]", "x", "[1, [2]]", "{", "short_factor: 1"])
def test_files_that_hold_no_factors(tmp_path: Path, text: str) -> None:
    file = tmp_path / "factors"
    file.write_text(text)
    with pytest.raises(UsageError, match="RoPE factors"):
        read_factors(file)
