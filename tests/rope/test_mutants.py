"""Every broken patch and evaluator is caught, and no healthy model raises an alarm."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import transformers

from ctxeval.errors import UsageError
from ctxeval.model import attention
from ctxeval.model.reading import Reading, choose_reading
from ctxeval.resolve import resolve
from ctxeval.rope.patch import RopePatch
from ctxeval.spec import ModelSpec, RunSpec
from ctxeval.verification import Check, examine
from tests.rope.matrix import NOT_VERIFIED, SAMPLE
from tests.rope.mutants import MUTANTS, alarm, patched
from tests.rope.mutants_reading import attention_alarm, read_alarm
from tests.rope.references import MSCALE
from tests.rope.zoo import WINDOW, build, causal_types, tiny_config

for module in ("frequencies", "sites", "reading"):
    importlib.import_module(f"tests.rope.mutants_{module}")

SCALES = ("none", "pi", "ntk", "ntk-parts", "yarn", "llama3")


@pytest.fixture(autouse=True)
def silence() -> None:
    transformers.logging.set_verbosity_error()


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_mutant_is_caught(name: str) -> None:
    _, mutant = MUTANTS[name]
    said = mutant()
    assert said, f"{name} was missed"
    assert "\n" not in said


@pytest.mark.parametrize(
    "setting",
    [
        {},
        {"method": "pi"},
        {"method": "ntk"},
        {"method": "llama3"},
        {"method": "ntk-dynamic"},
        {"attention_factor": 1.0},
        {"truncate": False},
        {"native": {"rope_theta": 1e6}},
        {"native": {"rope_type": "dynamic", "factor": 2.0}},
        {"kind": "deepseek_v3", "native": MSCALE},
        {"kind": "gemma3_text", "method": "pi"},
        {"kind": "moshi"},
        {"kind": "gptj"},
    ],
)
def test_the_same_patches_without_the_break_are_healthy(setting: dict[str, Any]) -> None:
    assert alarm(patched(**setting)) == ""


@pytest.mark.parametrize("kind", ["llama", "roformer", "mamba2"])
def test_the_same_readers_without_the_break_are_healthy(kind: str) -> None:
    assert read_alarm(build(tiny_config(kind))) == ""


def test_the_prefix_attention_without_the_break_is_taken() -> None:
    assert attention_alarm(attention.prefix_attention) == ""


def test_there_are_many_and_each_has_its_source() -> None:
    assert len(MUTANTS) >= 25
    assert all(len(source) > 10 for source, _ in MUTANTS.values())


def checks(kind: str) -> Iterator[Check]:
    """Yield all that verify says of a healthy tiny model; nothing for one without RoPE."""
    model = build(tiny_config(kind))
    try:
        patch = RopePatch(model)
    except UsageError:
        return
    resolved = resolve(RunSpec(ModelSpec(kind), scales=SCALES, factor=4.0), WINDOW, WINDOW)
    reading: Reading = choose_reading(model, WINDOW, 64)
    yield from examine(patch, resolved, reading)


@pytest.mark.parametrize("kind", [kind for kind in SAMPLE if kind not in ("bloom", "xlnet")][::3])
def test_no_alarm_on_a_healthy_model(kind: str) -> None:
    found = list(checks(kind))
    assert [check for check in found if check.status == "fail"] == []
    assert {check.scale for check in found} == {"", *SCALES}


@pytest.mark.acceptance
def test_all_mutants_and_all_healthy_models(capsys: pytest.CaptureFixture[str]) -> None:
    caught = [name for name, (_, mutant) in MUTANTS.items() if mutant()]
    healthy, alarms = 0, []
    for kind in causal_types():
        if kind in NOT_VERIFIED:
            continue
        found = list(checks(kind))
        healthy += bool(found)
        alarms += [f"{kind} {check.scale} {check.name}: {check.text}" for check in found if check.status == "fail"]
    with capsys.disabled():
        print(f"\ncaught {len(caught)} of {len(MUTANTS)}, false alarms {len(alarms)} of {healthy} models")
    assert set(MUTANTS) == set(caught)
    assert alarms == []
