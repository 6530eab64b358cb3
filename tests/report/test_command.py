"""The command in a report gives back the spec of the run."""

from __future__ import annotations

import shlex
from dataclasses import asdict, fields
from typing import Any

import pytest

from ctxeval.cli import commands
from ctxeval.cli.main import run_command
from ctxeval.report.command import MODEL_OPTIONS, RUN_OPTIONS, command_line
from ctxeval.results.files import plain
from ctxeval.spec import ModelSpec, RunSpec, even_depths

MODEL = ModelSpec("some folder/it's")
SPECS = {
    "defaults": RunSpec(MODEL, depths=even_depths(9)),
    "needles": RunSpec(MODEL, depths=(50.0,), probes=("needle",), packed=True, needles_per_context=4, trials=2),
    "perplexity": RunSpec(
        MODEL, depths=even_depths(9), probes=("perplexity",), protocol="strided", stride=256, scales=("none", "pi")
    ),
    "everything": RunSpec(
        ModelSpec(
            "a/b", revision="main", dtype="bf16", device="cpu", attn_implementation="sdpa", trust_remote_code=True
        ),
        scales=("none", "yarn"),
        length=32768,
        factor=4.5,
        lengths=(512, 1024),
        depths=(0.0, 12.5, 33.333333333333336),
        documents=24,
        perplexity_documents=8,
        seed=-3,
        corpus="hf:x/y:train",
        packed=True,
        exact_subset=0,
        chat=True,
        native_window=4096,
        pretrain_window=1024,
        from_scratch=True,
        layer_types=("full_attention", "sliding_attention"),
        scaling_options={"attention_factor": 1.25, "truncate": False, "beta_fast": 16.0, "low_freq_factor": 2.0},
        chunk=64,
    ),
}


@pytest.mark.parametrize("name", SPECS)
def test_it_gives_back_the_spec(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, seen = SPECS[name], list[RunSpec]()
    monkeypatch.setattr(commands, "_run_and_show", lambda spec, values: seen.append(spec))
    monkeypatch.delenv("CTXEVAL_MODEL", raising=False)
    command = command_line({"spec": plain(asdict(spec))})
    program, *argv = shlex.split(command)
    assert program == "ctxeval" and run_command(argv) == 0
    assert seen == [spec]


def test_no_field_of_a_spec_is_forgotten() -> None:
    """A field that is added to a spec must be added to the command, or what it repeats is another run."""
    assert {one.name for one in fields(ModelSpec)} == {*MODEL_OPTIONS, "name_or_path"}
    assert {one.name for one in fields(RunSpec)} == {*RUN_OPTIONS, "model", "probes", "scaling_options"}


def test_what_is_a_default_is_left_out() -> None:
    command = command_line({"spec": plain(asdict(RunSpec(ModelSpec("demo"), scales=("none", "yarn"))))})
    assert command == "ctxeval run -m demo --scale none,yarn"


@pytest.mark.parametrize("manifest", [{}, {"spec": None}, {"spec": {"model": "x"}}])
def test_a_manifest_without_a_spec_has_no_command(manifest: dict[str, Any]) -> None:
    assert command_line(manifest) == ""
