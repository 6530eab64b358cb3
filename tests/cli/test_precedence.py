"""Where an option comes from: flag > environment > file > default; and what a file of options may hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctxeval.cli.config import read_config_file
from ctxeval.cli.options import OPTIONS
from ctxeval.errors import UsageError
from ctxeval.spec import RunSpec


@pytest.fixture
def spec_of(invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunSpec]:
    """Return the spec that a command line leads to, without running it."""
    specs: list[RunSpec] = []

    def dry(spec: RunSpec, *_: object) -> None:
        specs.append(spec)
        raise UsageError("enough")

    monkeypatch.setattr("ctxeval.runner.dry", dry)

    def call(*arguments: object, command: str = "run") -> RunSpec:
        result = invoke(command, *arguments, "--dry-run")
        assert result.err == "Error: enough\n"
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


#: Flag → a value in its environment variable, and what that makes of the spec.
VARIABLES: dict[str, tuple[str, Callable[[RunSpec], bool]]] = {
    "model": ("x", lambda spec: spec.model.name_or_path == "x"),
    "scale": ("pi,yarn", lambda spec: spec.scales == ("pi", "yarn")),
    "len": ("2k", lambda spec: spec.length == 2048),
    "factor": ("3", lambda spec: spec.factor == 3.0),
    "native-window": ("512", lambda spec: spec.native_window == 512),
    "rope-theta": ("5e5", lambda spec: spec.scaling_options == {"rope_theta": 5e5}),
    "attention-factor": ("1.5", lambda spec: spec.scaling_options == {"attention_factor": 1.5}),
    "beta-fast": ("16", lambda spec: spec.scaling_options == {"beta_fast": 16.0}),
    "beta-slow": ("2", lambda spec: spec.scaling_options == {"beta_slow": 2.0}),
    "truncate": ("0", lambda spec: spec.scaling_options == {"truncate": False}),
    "lengths": ("1k,2k", lambda spec: spec.lengths == (1024, 2048)),
    "depths": ("3", lambda spec: spec.depths == (0.0, 50.0, 100.0)),
    "docs": ("5", lambda spec: spec.documents == 5),
    "ppl-docs": ("4", lambda spec: spec.perplexity_documents == 4),
    "trials": ("2", lambda spec: spec.trials == 2),
    "seed": ("7", lambda spec: spec.seed == 7),
    "corpus": ("demo", lambda spec: spec.corpus == "demo"),
    "task": ("t.yaml", lambda spec: spec.task == "t.yaml"),
    "packed": ("1", lambda spec: spec.packed),
    "chat": ("true", lambda spec: spec.chat),
    "protocol": ("all", lambda spec: spec.protocol == "all"),
    "revision": ("abc", lambda spec: spec.model.revision == "abc"),
    "dtype": ("fp16", lambda spec: spec.model.dtype == "fp16"),
    "device": ("cpu", lambda spec: spec.model.device == "cpu"),
    "device-map": ("auto", lambda spec: spec.model.device_map == "auto"),
    "attn-implementation": ("eager", lambda spec: spec.model.attn_implementation == "eager"),
    "trust-remote-code": ("1", lambda spec: spec.model.trust_remote_code),
    "chunk": ("512", lambda spec: spec.chunk == 512),
}


def test_every_option_has_an_environment_variable(
    spec_of: Callable[..., RunSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {name: alias.__metadata__[0].envvar for name, (alias, _) in OPTIONS.items()}
    assert None not in variables.values() and len(set(variables.values())) == len(OPTIONS)
    plain = spec_of("-m", "y")
    for flag, (value, holds) in VARIABLES.items():
        variable = f"CTXEVAL_{flag.replace('-', '_').upper()}"
        assert variable in variables.values()
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            spec = spec_of() if flag == "model" else spec_of("-m", "y")
        assert holds(spec) and not holds(plain), flag
    file = tmp_path / "options.yaml"
    file.write_text("seed: 3\ndocs: 9\n")
    monkeypatch.setenv("CTXEVAL_CONFIG", str(file))
    monkeypatch.setenv("CTXEVAL_SEED", "4")
    monkeypatch.setenv("CTXEVAL_DOCS", "8")
    spec = spec_of("-m", "y", "--docs", 7)
    assert (spec.seed, spec.documents) == (4, 7)
    monkeypatch.delenv("CTXEVAL_SEED")
    assert spec_of("-m", "y").seed == 3


@pytest.mark.parametrize(
    ("option", "missing", "name", "default"),
    [
        (("--stride", "64"), ("--protocol", "strided"), "stride", None),
        (("--needles-per-context", "4"), ("--packed",), "needles_per_context", 10),
        (("--exact-subset", "4"), ("--packed",), "exact_subset", 12),
    ],
)
def test_an_option_that_would_change_nothing(
    spec_of: Callable[..., RunSpec],
    invoke: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    option: tuple[str, str],
    missing: tuple[str, ...],
    name: str,
    default: int | None,
) -> None:
    """It is a mistake on the command line; in a file or the environment it waits for where it matters."""
    flag, value = option
    result = invoke("run", "-m", "x", *option, "--dry-run")
    assert (result.code, result.out) == (2, "")
    assert result.err == f"Error: {flag} {value} without {' '.join(missing)}. it would change nothing\n"
    assert getattr(spec_of("-m", "x", *option, *missing), name) == int(value)
    file = tmp_path / "options.yaml"
    file.write_text(f"{flag}: {value}\n")
    assert getattr(spec_of("-m", "x", "-c", file), name) == default
    assert getattr(spec_of("-m", "x", "-c", file, *missing), name) == int(value)
    monkeypatch.setenv(f"CTXEVAL_{name.upper()}", value)
    assert getattr(spec_of("-m", "x"), name) == default
    assert getattr(spec_of("-m", "x", *missing), name) == int(value)


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
