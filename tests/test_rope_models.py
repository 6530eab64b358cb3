"""Tiny RoPE models of unlike kinds, saved to disk, through `ctxeval run`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctxeval.cli.main import run_command
from ctxeval.results.store import Run, load_run
from tests.model.tiny_models import NATIVE, build

#: As DeepSeek V3's own, with a temperature on cos and sin as well.
MSCALE = {"rope_type": "default", "rope_theta": 1e4, "mscale": 0.707, "mscale_all_dim": 1.0}


@pytest.fixture
def run(
    tmp_path: Path, tiny_tokenizer: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, Run | None]]:
    """Return a function that saves a model of a kind, runs it, and returns exit code, last line of talk, and run."""

    def through(kind: str, *more: str, **extra: Any) -> tuple[int, str, Run | None]:
        folder, output = tmp_path / kind, tmp_path / "run"
        tiny_tokenizer(True).save_pretrained(folder)
        build(kind, **extra).save_pretrained(folder)
        command = [
            "run",
            "-m",
            str(folder),
            "--scale",
            "none,yarn",
            "--len",
            str(2 * NATIVE),
            "--docs",
            "1",
            "--depths",
        ]
        command += ["0,50", "--device", "cpu", "--dtype", "fp32", "--corpus", "demo", "-o", str(output), *more]
        code = run_command(command)
        return code, capsys.readouterr().err.splitlines()[-1], load_run(output) if code == 0 else None

    return through


Through = Callable[..., tuple[int, str, Run | None]]


def proof_of(run: Run | None, scale: str) -> dict[str, Any]:
    assert run is not None
    assert set(run.cells["status"]) == {"ok"}
    assert run.cells["context_length"].max() == 2 * NATIVE
    found: dict[str, Any] = run.manifest["proofs"][scale]
    return found


def test_gptj_reads_beyond_its_table(run: Through) -> None:
    """Its table has a row for each position of the native window only, under `none` as well."""
    code, _, made = run("gptj", n_embd=64)
    assert code == 0
    for scale in ("none", "yarn"):
        proof = proof_of(made, scale)
        assert proof["positions"] == [0, NATIVE - 1, 2 * NATIVE - 1]
        assert proof["sites"] == ["transformer.rotary_emb"]
    assert proof_of(made, "yarn")["temperature"] == "effective"


def test_deepseek_v3_has_its_temperature_in_the_softmax(run: Through) -> None:
    code, _, made = run("deepseek_v3", rope_parameters=MSCALE)
    assert code == 0
    proof = proof_of(made, "yarn")
    assert proof["softmax_factor"] == pytest.approx(1.0693147**2)
    assert proof["attention_factor"] == pytest.approx(1.0490055 / 1.0693147)


def test_gemma3_scales_its_global_layers_or_those_that_were_chosen(run: Through) -> None:
    code, _, made = run("gemma3_text")
    assert code == 0
    assert proof_of(made, "yarn")["extended"] == ["model.rotary_emb[full_attention]"]
    assert "layer_types" not in made.manifest["identity"]  # type: ignore[union-attr]


def test_gemma3_with_all_layers(run: Through) -> None:
    code, _, made = run("gemma3_text", "--layer-types", "all")
    assert code == 0
    assert len(proof_of(made, "yarn")["extended"]) == 2
    assert made.manifest["identity"]["layer_types"] == ["all"]  # type: ignore[union-attr]


def test_a_layer_type_that_is_not_there_is_refused_before_weights_load(run: Through, tmp_path: Path) -> None:
    code, said, _ = run("gemma3_text", "--layer-types", "globl")
    assert code == 2
    assert "unknown layer type 'globl'" in said
    assert "full_attention" in said
    assert not (tmp_path / "run").exists()
