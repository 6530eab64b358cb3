"""RoPE scaling inside GGUF files is applied as llama.cpp does, or refused; never dropped."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, modeling_rope_utils

from ctxeval.cli.main import run_command
from ctxeval.errors import RunError, UsageError
from ctxeval.model.gguf_rope import NativeScaling, apply_scaling
from ctxeval.model.load import load_model, read_config
from ctxeval.results.store import load_run
from ctxeval.rope.emission import emit
from ctxeval.rope.patch import RopePatch
from ctxeval.rope.scaled import scaled_rope
from ctxeval.rope.windows import read_windows
from ctxeval.spec import ModelSpec
from tests.model.gguf_files import PAIRS, write_llama

PLAIN = 1e4 ** (-np.arange(PAIRS) / PAIRS)
FREQS = [1.0, 1.0, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
SHORT = [1 + pair / 100 for pair in range(PAIRS)]
LONG = [1 + pair / 2 for pair in range(PAIRS)]
#: YaRN by hand for theta 1e4, d 16, L 128, s 4: 32 turns at pair -0.4, 1 turn at pair 2.6: the ramp is 0, 1/3, 2/3, 1.
RAMP = np.array([0, 1 / 3, 2 / 3, 1, 1, 1, 1, 1])
YARN = {"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.original_context_length": 128}
Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, tiny_tokenizer: Any) -> Write:
    def call(**contents: Any) -> str:
        return str(write_llama(tmp_path / "tiny.gguf", tiny_tokenizer(), **contents))

    return call


@pytest.mark.parametrize(
    ("contents", "wanted", "factor"),
    [
        ({}, PLAIN, 1.0),
        ({"rope": {"scaling.type": "none", "scaling.factor": 4.0}}, PLAIN, 1.0),
        ({"rope": {"scaling.type": "linear", "scaling.factor": 4.0}}, PLAIN / 4, 1.0),
        ({"rope": {"scaling.factor": 4.0}}, PLAIN / 4, 1.0),
        ({"rope": {"scale_linear": 4.0}}, PLAIN / 4, 1.0),
        ({"rope": YARN}, PLAIN * (1 - RAMP + RAMP / 4), 0.1 * math.log(4) + 1),
        ({"rope": {**YARN, "scaling.attn_factor": 0.5}}, PLAIN * (1 - RAMP + RAMP / 4), 0.05 * math.log(4) + 0.5),
        ({"factors": {"rope_freqs.weight": FREQS}}, PLAIN / FREQS, 1.0),
        (
            {"factors": {"rope_freqs.weight": FREQS}, "rope": {"scaling.type": "linear", "scaling.factor": 2.0}},
            PLAIN / FREQS / 2,
            1.0,
        ),
    ],
)
def test_the_loaded_model_emits_the_scaling_of_the_file(
    write: Write, contents: dict[str, Any], wanted: Any, factor: float
) -> None:
    loaded = load_model(write(**contents), dtype="fp32", device="cpu")
    positions = (0, 1, 100, 511, 4000)
    with torch.no_grad():  # past the window, which must not change anything
        loaded.model(input_ids=torch.ones(1, 600, dtype=torch.long), use_cache=False)
    cos, sin = emit(RopePatch(loaded.model).sites[0], positions)
    angles = np.outer(positions, wanted)
    np.testing.assert_allclose(cos[:, :PAIRS], factor * np.cos(angles), atol=1e-3)
    np.testing.assert_allclose(sin[:, :PAIRS], factor * np.sin(angles), atol=1e-3)


def test_longrope_of_a_file_switches_at_its_original_window(write: Write) -> None:
    factors = {"rope_factors_short.weight": SHORT, "rope_factors_long.weight": LONG}
    rope = {"scaling.original_context_length": 128, "scaling.attn_factor": 1.19}
    for more in ({}, {"scaling.type": "longrope"}):
        loaded = load_model(write(factors=factors, rope={**rope, **more}), dtype="fp32", device="cpu")
        patch = RopePatch(loaded.model)
        for length, lists in ((128, SHORT), (129, LONG)):
            patch.apply("none", context_length=length)
            np.testing.assert_allclose(patch.sites[0].inv_freq.numpy(), PLAIN / lists, rtol=1e-6)
            assert patch.sites[0].attention_scaling == pytest.approx(1.19)
        patch.restore()


def test_windows_are_those_of_the_file(write: Write) -> None:
    config = read_config(ModelSpec(write(rope=YARN)))
    windows = read_windows(config)
    assert (windows.native, windows.pretrain) == (512, 128)
    assert windows.native_source == "llama.context_length"
    assert windows.pretrain_source == "llama.rope.scaling.original_context_length"
    assert not hasattr(read_config(ModelSpec(write())), "gguf_keys")  # runs on plain files keep their fingerprint


@pytest.mark.parametrize(
    ("contents", "text"),
    [
        ({"rope": {"scaling.type": "yarn", "scaling.factor": 4.0}}, "YaRN without llama.rope.scaling.original_context"),
        ({"rope": {**YARN, "scaling.yarn_log_multiplier": 0.1}}, "llama.rope.scaling.yarn_log_multiplier"),
        ({"rope": {**YARN, "scaling.yarn_ext_factor": 0.5}}, "yarn_ext_factor is not 1"),
        ({"rope": {**YARN, "scaling.alpha": 1000.0}}, "llama.rope.scaling.alpha"),
        ({"rope": {"scaling.type": "su", "scaling.factor": 4.0}}, "rope.scaling.type su, factor 4, with no tensors"),
        ({"rope": YARN, "factors": {"rope_freqs.weight": FREQS}}, "rope.scaling.type yarn, factor 4, with rope_freqs"),
        ({"factors": {"rope_factors_long.weight": LONG}}, "with rope_factors_long.weight"),
        (
            {"factors": {"rope_factors_short.weight": SHORT, "rope_factors_long.weight": LONG}},
            "LongRoPE without llama.rope.scaling.original_context_length",
        ),
        ({"factors": {"blk.0.rope_freqs.weight": FREQS}}, "blk.0.rope_freqs.weight is a table of one layer"),
        ({"factors": {"rope_freqs.weight": [0.0] * PAIRS}}, "rope_freqs.weight holds factors that are not above 0"),
        ({"rope": {"scaling.factor": "four"}}, "llama.rope.scaling.factor = 'four' is not a number"),
    ],
)
def test_what_cannot_be_applied_is_refused(write: Write, contents: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match="use the model's safetensors files") as caught:
        read_config(ModelSpec(write(**contents)))
    assert text in str(caught.value)


def test_a_module_that_does_not_heed_its_configuration_is_caught(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    plain = LlamaRotaryEmbedding.compute_default_rope_parameters
    monkeypatch.setitem(modeling_rope_utils.ROPE_INIT_FUNCTIONS, "yarn", plain)
    with pytest.raises(RunError, match="was not given the RoPE scaling of GGUF file"):
        load_model(write(rope=YARN), dtype="fp32", device="cpu")


def test_a_scaled_file_is_composed_on_and_started_over(write: Write) -> None:
    model = load_model(write(factors={"rope_freqs.weight": FREQS}), dtype="fp32", device="cpu").model
    with scaled_rope(model, "pi", factor=2) as patch:
        np.testing.assert_allclose(patch.sites[0].inv_freq.numpy(), PLAIN / FREQS / 2, rtol=1e-6)
    with scaled_rope(model, "pi", factor=2, native_window=128, from_scratch=True) as patch:
        np.testing.assert_allclose(patch.sites[0].inv_freq.numpy(), PLAIN / 2, rtol=1e-6)


def test_a_run_on_a_llama31_like_file(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, folder = write(factors={"rope_freqs.weight": FREQS}), tmp_path / "run"
    common = ["run", "-m", path, "--len", "1k", "--lengths", "512,1k", "--docs", "1", "--depths", "0,50,100"]
    common += ["--dtype", "fp32", "--device", "cpu", "--format", "csv", "--scale", "yarn"]
    assert run_command([*common, "-o", str(folder)]) == 0
    said = capsys.readouterr().err
    assert "native window 512 (llama.context_length)" in said
    assert "yarn: on top of the checkpoint's rope_freqs.weight frequencies" in said
    assert set(load_run(folder).manifest["proofs"]) == {"none", "yarn"}  # one list: nothing depends on the length
    assert run_command([*common, "--from-scratch", "-o", str(tmp_path / "other")]) == 2
    assert "from scratch on a rope_freqs.weight checkpoint that does not say how long" in capsys.readouterr().err


def test_other_architectures_get_it_where_their_configuration_keeps_it(tmp_path: Path) -> None:
    lists = {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG, "attention_factor": 1.0}
    longrope = NativeScaling({**lists, "original_max_position_embeddings": 128}, {})
    phi3 = AutoConfig.for_model("phi3")
    apply_scaling(phi3, longrope, tmp_path)
    assert phi3.original_max_position_embeddings == 128  # transformers puts this one before the parameters' own
    assert read_windows(phi3).pretrain == 128
    linear = NativeScaling({"rope_type": "linear", "factor": 8.0}, {})
    gemma3 = AutoConfig.for_model("gemma3_text")
    apply_scaling(gemma3, linear, tmp_path)
    kinds = {name: value["rope_type"] for name, value in gemma3.rope_parameters.items()}
    assert kinds == {"sliding_attention": "default", "full_attention": "linear"}
