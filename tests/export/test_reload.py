"""A configuration that was exported, read by transformers: the same cos, sin and logits as the patch in memory."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from ctxeval.errors import UsageError
from ctxeval.export.engines import ENGINES
from ctxeval.rope.checkpoint import prove_export
from ctxeval.rope.emission import deviation, emit
from ctxeval.rope.patch import RopePatch
from ctxeval.rope.sites import find_sites
from tests.export.conftest import configuration, ship, told
from tests.export.test_engines import GEMMA

WINDOW, LENGTH, TARGET = 256, 512, 1024
SHORT, LONG = (1.0, 1.0, 1.1, 1.2, 1.5, 2.0, 3.0, 4.0), (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 4.0)
SCALINGS: dict[str, dict[str, Any]] = {
    "pi": {},
    "ntk": {},
    "ntk-parts": {},
    "yarn": {},
    "yarn, own ramp": {"beta_fast": 8.0, "beta_slow": 0.5, "truncate": False, "attention_factor": 1.3},
    "abf": {"rope_theta": 160000.0},
    "llama3": {"low_freq_factor": 0.5, "high_freq_factor": 8.0},
    "longrope": {"short_factor": SHORT, "long_factor": LONG},
    "ntk-dynamic": {"dynamic_factor": 2.0},
}


def logits(model: Any) -> torch.Tensor:
    ids = torch.randint(3, 512, (1, LENGTH), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        result: torch.Tensor = model(input_ids=ids, use_cache=False).logits
    return result


def load(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def folder(tiny_llama: Callable[..., Path]) -> Path:
    return tiny_llama(window=WINDOW)


@pytest.mark.parametrize("engine", ["hf", "hf-v4"])
@pytest.mark.parametrize("name", SCALINGS)
def test_a_reloaded_export_is_the_patch(
    engine: str, name: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    method, options = name.split(",", maxsplit=1)[0], SCALINGS[name]
    written = export(engine, method, options, folder, tmp_path)
    reloaded = load(written)
    patched = load(folder)
    plain = logits(patched)
    patch = RopePatch(patched)
    patch.apply(method, factor=TARGET / WINDOW, native_window=WINDOW, context_length=LENGTH, **options)

    positions = list(range(LENGTH))
    (site,) = find_sites(reloaded)
    # Against the fp64 reference that the patch is proved by, and against what the patch really emits.
    (wanted,) = patch.intended(patch.applied)
    assert deviation(patch.sites[0], wanted, positions).excess <= 1
    for ours, theirs in zip(emit(patch.sites[0], positions), emit(site, positions), strict=True):
        np.testing.assert_allclose(theirs, ours, atol=LENGTH * 5e-7)
    assert site.attention_scaling == pytest.approx(wanted.attention_factor, rel=1e-6)

    now = logits(reloaded)
    change = float((now - plain).abs().max())
    error = float((now - logits(patched)).abs().max())
    assert change > 1e-2 and error < 2e-3 * change
    shown = capsys.readouterr().err
    assert "the same frequencies and attention factor" in shown


def export(engine: str, method: str, options: dict[str, Any], folder: Path, tmp_path: Path) -> Path:
    """Write the export into a copy of the model's folder, by the command line."""
    from ctxeval.cli.main import run_command

    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    line = ["export", "-m", str(folder), "--scale", method, "--len", str(TARGET), "--for", engine]
    if "short_factor" in options:
        factors = tmp_path / "factors.yaml"
        factors.write_text(f"short_factor: {list(SHORT)}\nlong_factor: {list(LONG)}\n", encoding="utf-8")
        line += ["--rope-factors", str(factors)]
    else:
        line += [part for key, value in options.items() for part in ("--rope-option", f"{key}={value}")]
    assert run_command([*line, "-o", str(copy / "config.json")]) == 0
    return copy


@pytest.mark.parametrize("scale", ["pi", "ntk", "yarn"])
def test_local_layers_keep_their_table(scale: str) -> None:
    """Read back by transformers within `ship`; here: that only the global layers' parameters changed."""
    of = configuration("gemma3_text", **GEMMA)
    made = ship("hf", of, scale).config or {}
    assert made["rope_parameters"]["sliding_attention"] == of.rope_parameters["sliding_attention"]
    assert made["rope_parameters"]["full_attention"] != of.rope_parameters["full_attention"]
    assert made["max_position_embeddings"] == 1024


@pytest.mark.parametrize("scale", ["pi", "ntk", "yarn"])
def test_version_4_of_gpt_neox_has_names_of_its_own(scale: str) -> None:
    made = ship("hf-v4", configuration("gpt_neox"), scale).config or {}
    assert made["rotary_pct"] == 0.25 and ("rotary_emb_base" in made) and "rope_theta" not in made
    assert "rope_parameters" not in made and "dtype" not in made


def test_version_4_names_the_type_twice() -> None:
    scaling = (ship("hf-v4", configuration(), "yarn").config or {})["rope_scaling"]
    assert scaling["type"] == scaling["rope_type"] == "yarn" and "rope_theta" not in scaling
    assert (ship("hf-v4", configuration(), "ntk").config or {})["rope_scaling"] is None


@pytest.mark.parametrize("kind", ["mistral", "qwen2", "qwen3", "glm", "stablelm", "phi", "deepseek_v3", "qwen3_5_text"])
@pytest.mark.parametrize("engine", ["hf", "hf-v4"])
def test_other_geometries_are_read_back(engine: str, kind: str) -> None:
    """Partial rotary, MLA and M-RoPE: `ship` fails unless transformers computes the wanted table from the result."""
    made = ship(engine, configuration(kind), "yarn", factor=4.0)
    assert made.config is not None


def test_phi3_takes_yarn_for_longrope_and_is_refused() -> None:
    """Its configuration renames yarn; so does an original window at the top outrank the one that is told."""
    with pytest.raises(UsageError, match="phi3"):
        ship("hf", configuration("phi3"), "yarn")


def test_the_proof_sees_a_wrong_configuration() -> None:
    """What `ship` relies on: another factor, another window, a lost temperature and a changed local table are seen."""
    of, extended = told(configuration(), "yarn")
    made = ENGINES["hf"](extended)
    good = made.config or {}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"factor": 2.0}, "pair"),
        ({"original_max_position_embeddings": 1024}, "pair"),
        ({"attention_factor": 1.0}, "attention factor 1, not 1.13863"),
        ({"rope_theta": 10001.0}, "pair"),
    ]
    prove_export(of, extended, made)
    for change, said in wrong:
        bad = {**good, "rope_parameters": {**good["rope_parameters"], **change}}
        with pytest.raises(UsageError, match=f"reads the configuration of this llama differently: .*{said}"):
            prove_export(of, extended, type(made)(config=bad))


@pytest.mark.parametrize("engine", ["hf", "hf-v4"])
def test_an_original_window_at_the_top_is_told_too(engine: str) -> None:
    """Phi-3's own, 4096 unless told, outranks the one among the rope parameters."""
    factors = (1.0, 1.5) * 8
    made = ship(engine, configuration("phi3"), "longrope", short_factor=factors, long_factor=factors).config or {}
    assert made["original_max_position_embeddings"] == 256
