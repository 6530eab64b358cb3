"""Where an option comes from: flag > environment > file > default; and what a file of options may hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctxeval.cli.config import read_config_file
from ctxeval.errors import UsageError
from ctxeval.spec import RunSpec


@pytest.fixture
def spec_of(invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunSpec]:
    """Return the spec that a command line leads to, without running it."""
    specs: list[RunSpec] = []
    monkeypatch.setattr("ctxeval.runner.dry", lambda spec, observer: specs.append(spec))

    def call(*arguments: object, command: str = "run") -> RunSpec:
        result = invoke(command, *arguments, "--dry-run")
        assert result.code == 0, result.err
        return specs.pop()

    return call


def test_flag_beats_environment_beats_file_beats_default(
    spec_of: Callable[..., RunSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("model: from-file\nseed: 3\nscale: [pi, yarn]\n--len: 2k\ndocs: 5\npacked: true\ntrials: null\n")
    spec = spec_of("-c", file)
    assert (spec.model.name_or_path, spec.seed, spec.scales, spec.length) == ("from-file", 3, ("pi", "yarn"), 2048)
    assert (spec.documents, spec.packed, spec.trials, spec.chunk) == (5, True, 1, 1024)
    monkeypatch.setenv("CTXEVAL_MODEL", "from-environment")
    assert spec_of("-c", file).model.name_or_path == "from-environment"
    spec = spec_of("--seed", 4, "-c", file, "-m", "from-flag")
    assert (spec.model.name_or_path, spec.seed, spec.documents) == ("from-flag", 4, 5)
    spec = spec_of()
    assert (spec.model.name_or_path, spec.seed, spec.documents, spec.packed) == ("from-environment", 0, 16, False)


def test_defaults_of_the_commands_are_those_of_the_api(spec_of: Callable[..., RunSpec]) -> None:
    spec = spec_of("-m", "x")
    depths = tuple(12.5 * step for step in range(9))
    assert spec == RunSpec(spec.model, depths=depths)
    assert spec_of("-m", "x", command="needle") == RunSpec(spec.model, depths=depths, probes=("needle",))
    assert spec_of("-m", "x", command="ppl") == RunSpec(spec.model, depths=depths, probes=("perplexity",))


def test_the_demo_has_one_number_format_everywhere(invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    specs: list[RunSpec] = []

    def run(spec: RunSpec, *arguments: object, **values: object) -> None:
        specs.append(spec)
        raise UsageError("enough")

    monkeypatch.setattr("ctxeval.runner.run", run)
    assert invoke("demo").code == 2
    assert (specs[0].model.name_or_path, specs[0].model.dtype, specs[0].corpus) == ("demo", "fp32", "demo")


def test_a_list_of_one_in_a_file_is_a_list(spec_of: Callable[..., RunSpec], tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    for text, depths in (
        ("depths: [50]", (50.0,)),
        ("depths: 3", (0.0, 50.0, 100.0)),
        ("depths: [0, 75]", (0.0, 75.0)),
    ):
        file.write_text(text)
        assert spec_of("-m", "x", "-c", file).depths == depths


@pytest.mark.parametrize(
    ("text", "words"),
    [("- 1", "list, not options"), ("a: [", "cannot read"), ("config: x", "'config'"), ("documents: 2", "")],
)
def test_what_a_file_may_hold(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text(text)
    known = {"documents", "length"}
    if not words:
        assert read_config_file(file, known) == {"documents": 2}
        return
    with pytest.raises(UsageError, match=words):
        read_config_file(file, known)
