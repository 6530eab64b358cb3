"""Broken patches are caught, each by the fact that is broken; healthy ones are not."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ctxeval.errors import RunError
from ctxeval.rope import scaling
from ctxeval.rope.patch import RopePatch
from ctxeval.rope.scaled import scaled_rope
from ctxeval.rope.scaling import Scaled, scale_frequencies
from ctxeval.rope.snapshot import put_back
from ctxeval.rope.verify import prove
from ctxeval.spec import METHODS

WINDOW, TARGET, FACTOR = 256, 1024, 4.0
LAYERS = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
Make = Callable[..., Any]


def applied(model: Any, method: str = "yarn", **options: Any) -> RopePatch:
    patch = RopePatch(model)
    patch.apply(method, factor=FACTOR, native_window=WINDOW, **options)
    return patch


def caught(patch: RopePatch, *texts: str) -> None:
    """The proof fails with these words in its one line, and leaves the model as it was."""
    before = patch.frequencies_sha256()
    with pytest.raises(RunError) as error:
        prove(patch, native_window=WINDOW, target_length=TARGET)
    for text in texts:
        assert text in str(error.value)
    assert "\n" not in str(error.value)
    assert patch.frequencies_sha256() == before


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("llama", {}),
        ("llama", {"rope": LLAMA3}),
        ("gemma3_text", {"layer_types": LAYERS}),
        ("phimoe", {}),
        ("cohere", {}),
        ("gpt_neox", {}),
        ("llama4_text", {}),
        ("granite_swa", {}),
    ],
)
def test_healthy_patches_pass(make: Make, kind: str, settings: dict[str, Any], method: str) -> None:
    if method == "abf" and "rope" in settings:
        pytest.skip("abf needs a single base")
    model = make(kind, **settings)
    pairs = RopePatch(model).sites[0].inv_freq.shape[0]
    lists = {"short_factor": [1.0] * pairs, "long_factor": [1.5 + pair / 10 for pair in range(pairs)]}
    options: dict[str, Any] = {"abf": {"rope_theta": 5e5}, "longrope": lists}.get(method, {})
    patch = applied(model, method, **options)
    before = patch.frequencies_sha256()
    proof = prove(patch, native_window=WINDOW, target_length=TARGET)
    assert proof.max_error <= proof.tolerance
    assert (proof.logits_change == 0) == (method == "none")
    assert proof.frequencies_sha256 == before == patch.frequencies_sha256()
    assert json.loads(json.dumps(proof.as_dict()))["positions"] == [0, 255, 1023]


def test_figures_of_a_proof(make: Make) -> None:
    patch = applied(make("gemma3_text", layer_types=LAYERS))
    proof = prove(patch, native_window=WINDOW, target_length=TARGET, input_ids=torch.arange(20)[None])
    assert proof.extended == ("model.rotary_emb[full_attention]",)
    assert len(proof.sites) == 2
    assert proof.attention_factor == pytest.approx(1.1386294)
    assert (proof.method, proof.factor, proof.prompt_tokens, proof.unused) == ("yarn", 4.0, 20, ())


def test_factor_1_changes_nothing_and_says_so(llama: Any) -> None:
    patch = RopePatch(llama)
    patch.apply("pi", factor=1, native_window=WINDOW)
    assert prove(patch, native_window=WINDOW, target_length=WINDOW).logits_change == 0


def test_a_cast_model_that_was_recomputed_passes(llama: Any) -> None:
    with scaled_rope(llama.to(torch.bfloat16), "yarn", factor=FACTOR) as patch:
        assert prove(patch, native_window=WINDOW, target_length=TARGET).logits_change > 0


def test_no_op(llama: Any) -> None:
    patch = applied(llama)
    put_back(patch.sites[0], patch.native[0])
    caught(patch, "model.rotary_emb emits", "position", "its inv_freq is not the intended one")


def test_native_frequencies_as_yarn(llama: Any) -> None:
    patch = applied(llama)
    patch.sites[0].write_inv_freq(patch.native[0].inv_freq)
    caught(patch, "its inv_freq is not the intended one")


def test_missing_temperature(llama: Any) -> None:
    patch = applied(llama)
    patch.sites[0].write_attention_scaling(1.0)
    caught(patch, "its attention_scaling is 1, intended 1.138629")


def test_squared_temperature(llama: Any) -> None:
    patch = applied(llama)
    patch.sites[0].write_attention_scaling(patch.sites[0].attention_scaling ** 2)
    caught(patch, "its attention_scaling is 1.296477, intended 1.138629")


def test_bf16_frequencies(llama: Any) -> None:
    patch = applied(llama)
    llama.to(torch.bfloat16)
    caught(patch, "inv_freq is torch.bfloat16, not float32", "load it with dtype")


def test_applied_twice(llama: Any) -> None:
    patch = applied(llama, "pi")
    patch.sites[0].write_inv_freq(patch.sites[0].inv_freq / FACTOR)
    caught(patch, "its inv_freq is not the intended one")


def test_ntk_exponent_in_the_buffer(llama: Any) -> None:
    patch = applied(llama, "ntk")
    table = (1e4 * FACTOR) ** (-np.arange(0, 16, 2) / 16)
    patch.sites[0].write_inv_freq(torch.tensor(table, dtype=torch.float32))
    caught(patch, "its inv_freq is not the intended one")


def formula(monkeypatch: pytest.MonkeyPatch, method: str, function: Callable[..., Scaled]) -> None:
    monkeypatch.setattr(scaling, "SCALINGS", {**scaling.SCALINGS, method: function})


def test_ntk_exponent_in_the_formula(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    formula(monkeypatch, "ntk", lambda native, window, s: Scaled(native * s ** (-np.arange(8) / 8), 1.0))
    caught(applied(llama, "ntk"), "the slowest pair is multiplied by 0.297302, promised was 0.25")


def test_squared_temperature_in_the_formula(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = scaling.SCALINGS["yarn"]
    formula(monkeypatch, "yarn", lambda *a: Scaled(right(*a).inv_freq, right(*a).attention_factor ** 2))
    caught(applied(llama), "attention factor 1.29648, yarn promises 1.13863")


def test_reversed_ramp_in_the_formula(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = scaling.SCALINGS["yarn"]

    def backwards(native: Any, window: int, factor: float) -> Scaled:
        kept = right(native, window, factor)
        return Scaled(native * native / factor / kept.inv_freq, kept.attention_factor)

    formula(monkeypatch, "yarn", backwards)
    caught(applied(llama), "do not fall from 1 to 0.25")


def test_dynamic_rope_rewriting_the_patch(make: Make) -> None:
    patch = applied(make("llama", rope=DYNAMIC))
    prove(patch, native_window=WINDOW, target_length=TARGET)
    patch.sites[0].module.rope_type = "dynamic"  # type: ignore[assignment]
    caught(patch, "(rope type dynamic) rewrote its frequencies on reading position 1023")


def test_native_dynamic_rope_beyond_its_window(make: Make) -> None:
    patch = RopePatch(make("llama", rope=DYNAMIC))
    prove(patch, native_window=WINDOW, target_length=WINDOW)
    caught(patch, "rewrote its frequencies")


def test_one_of_several_modules_missed(make: Make) -> None:
    patch = applied(make("moshi", audio_vocab_size=32, num_codebooks=2))
    put_back(patch.sites[2], patch.native[2])
    caught(patch, f"{patch.sites[2].label} emits")


def test_a_module_that_the_patch_does_not_know(make: Make) -> None:
    patch = applied(make("moshi", audio_vocab_size=32, num_codebooks=2))
    patch.sites, patch.native = patch.sites[:3], patch.native[:3]
    caught(patch, "is a rotary table that the patch did not touch")


def test_a_scaled_module_assigned_to_every_layer(llama: Any) -> None:
    """As older recipes do: the model computes cos and sin once, from `model.rotary_emb`, which stays native."""
    native = copy.deepcopy(llama.model.rotary_emb)
    patch = applied(llama)
    for layer in llama.model.layers:
        layer.self_attn.rotary_emb = llama.model.rotary_emb
    llama.model.rotary_emb = native
    caught(patch, "rotary_emb is a rotary table that the patch did not touch")


def test_a_module_that_is_never_called(llama: Any) -> None:
    spare = llama.model.rotary_emb

    class Inlined(torch.nn.Module):
        def forward(self, x: Any, position_ids: Any) -> Any:
            return spare.forward(x, position_ids)

    llama.model.spare, llama.model.rotary_emb = spare, Inlined()
    caught(applied(llama, "pi"), "the model never calls model.spare")


def test_a_forward_that_ignores_its_table(make: Make) -> None:
    patch = applied(make("phimoe"))
    module = patch.sites[0].module
    module.rope_init_fn = module.compute_default_rope_parameters
    caught(patch, "its inv_freq and attention_scaling are the intended ones, and its forward does not follow them")


def test_another_ramp(llama: Any) -> None:
    patch = applied(llama)
    native = patch.native[0].inv_freq.double().numpy()
    other = scale_frequencies("yarn", native, native_window=WINDOW, factor=FACTOR, truncate=False)
    patch.sites[0].write_inv_freq(torch.tensor(other.inv_freq, dtype=torch.float32))
    caught(patch, "its inv_freq is not the intended one")


def test_another_window(llama: Any) -> None:
    patch = RopePatch(llama)
    patch.apply("yarn", factor=FACTOR, native_window=128)
    caught(patch, "applied for a native window of 128, the proof is for 256")


def test_none_on_a_changed_model(llama: Any) -> None:
    patch = RopePatch(llama)
    patch.sites[0].inv_freq[2] *= 1.001
    caught(patch, "model.rotary_emb emits", "its inv_freq is not the intended one")


def test_logits_that_vary_by_themselves(llama: Any) -> None:
    patch = RopePatch(llama)
    llama.model.layers[0].register_forward_hook(lambda module, arguments, output: output + torch.rand(1))
    caught(patch, "none is the native state, yet logits differ by", "eval mode")


def test_logits_that_do_not_move(llama: Any) -> None:
    patch = applied(llama)
    for layer in llama.model.layers:
        layer.self_attn.o_proj.weight.data.zero_()
    caught(patch, "yarn changed no logit on a prompt of 128 tokens")


def test_logits_that_are_not_numbers(llama: Any) -> None:
    patch = applied(llama)
    llama.lm_head.weight.data[0, 0] = float("nan")
    caught(patch, "logits are not finite")
