"""A patched model equals one built from the official configuration; restoring gives every bit back."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from ctxeval.errors import RunError, UsageError
from ctxeval.rope.patch import RopePatch
from ctxeval.rope.scaled import scaled_rope
from ctxeval.rope.snapshot import capture

WINDOW = 256
FACTOR = 4.0
LAYERS = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
KINDS = ["llama", "mistral", "qwen2", "qwen3", "gemma", "phi3", "smollm3", "phimoe", "cohere", "gpt_neox"]
OFFICIAL: dict[str, dict[str, Any]] = {
    "pi": {"rope_type": "linear", "factor": FACTOR},
    "yarn": {"rope_type": "yarn", "factor": FACTOR, "original_max_position_embeddings": WINDOW},
}
Logits = Callable[[Any], Tensor]
Make = Callable[..., Any]


def state(model: Any) -> list[Any]:
    """Everything a patch may touch, as comparable values."""
    found = []
    for name, module in model.named_modules():
        for key, value in (*module.named_buffers(recurse=False), *sorted(vars(module).items())):
            if isinstance(value, Tensor):
                found.append((name, key, value.dtype, value.tolist()))
            elif isinstance(value, str | int | float | dict) and not key.startswith("_"):
                found.append((name, key, repr(value)))
    return found


def official(make: Make, kind: str, method: str, weights: Any, theta: float, partial: float | None) -> Any:
    rope = {**OFFICIAL[method], "rope_theta": theta}
    if partial is not None:
        rope["partial_rotary_factor"] = partial
    if kind == "phimoe":  # its forward asks the configuration for these
        rope |= {"short_mscale": 1.1386294361119891, "long_mscale": 1.1386294361119891}
    # A top-level value, as Phi-3 has, would override the one in the rope parameters.
    extra = {"original_max_position_embeddings": WINDOW} if kind == "phi3" else {}
    return make(kind, rope=rope, weights=weights, **extra)


@pytest.mark.parametrize("method", ["pi", "yarn"])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_official_configuration(make: Make, logits: Logits, kind: str, method: str) -> None:
    if (kind, method) == ("phimoe", "pi"):
        pytest.skip("the official linear PhiMoE wants a temperature")
    model = make(kind)
    native = logits(model)
    rope = model.config.rope_parameters
    reference = official(make, kind, method, model.state_dict(), rope["rope_theta"], rope.get("partial_rotary_factor"))
    expected = logits(reference)
    with scaled_rope(model, method, factor=FACTOR) as patch:
        got = logits(model)
        table = patch.sites[0].inv_freq.clone()
    assert float((native - expected).abs().max()) > 0.5
    wanted = reference.get_submodule(patch.sites[0].name).inv_freq
    torch.testing.assert_close(table, wanted, rtol=1e-6, atol=0)
    # Random nets amplify one rounding of a frequency; with the official rounding they must agree to 1e-5.
    with scaled_rope(model, method, factor=FACTOR) as patch:
        patch.sites[0].write_inv_freq(wanted)
        exact = logits(model)
    assert float((exact - expected).abs().max()) <= 1e-5
    assert float((got - expected).abs().max()) <= (1e-5 if torch.equal(table, wanted) else 2e-4)
    assert torch.equal(logits(model), native)


@pytest.mark.parametrize("method", ["pi", "yarn"])
def test_gemma3_scales_global_layers_only(make: Make, logits: Logits, method: str) -> None:
    rope = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
    }
    model = make("gemma3_text", layer_types=LAYERS, rope=rope)
    scaled = {**rope, "full_attention": {**OFFICIAL[method], "rope_theta": 1e6}}
    expected = logits(make("gemma3_text", layer_types=LAYERS, rope=scaled, weights=model.state_dict()))
    native = logits(model)
    local = model.model.rotary_emb.sliding_attention_inv_freq.clone()
    with scaled_rope(model, method, factor=FACTOR):
        got = logits(model)
        assert torch.equal(model.model.rotary_emb.sliding_attention_inv_freq, local)
        assert model.model.rotary_emb.sliding_attention_attention_scaling == 1.0
    assert float((native - expected).abs().max()) > 0.5
    assert float((got - expected).abs().max()) <= 1e-4
    assert torch.equal(logits(model), native)


def test_ntk_equals_the_larger_base(make: Make, logits: Logits) -> None:
    model = make("llama")
    base = 1e4 * FACTOR ** (16 / 14)
    expected = logits(make("llama", rope={"rope_type": "default", "rope_theta": base}, weights=model.state_dict()))
    with scaled_rope(model, "ntk", factor=FACTOR):
        assert float((logits(model) - expected).abs().max()) <= 1e-4
    with scaled_rope(model, "abf", factor=FACTOR, rope_theta=base):
        assert float((logits(model) - expected).abs().max()) <= 1e-4


@pytest.mark.parametrize("kind", ["llama", "phimoe", "gemma3_text", "moshi"])
def test_restore_is_bit_exact(make: Make, kind: str) -> None:
    model = make(kind)
    before = state(model)
    addresses = [site.inv_freq.data_ptr() for site in RopePatch(model).sites]
    patch = RopePatch(model)
    patch.apply("yarn", factor=FACTOR, native_window=WINDOW)
    assert state(model) != before
    assert [site.inv_freq.data_ptr() for site in patch.sites] == addresses
    patch.restore()
    assert state(model) == before


def test_twice_is_once_and_order_does_not_matter(llama: Any) -> None:
    patch = RopePatch(llama)
    native = patch.frequencies_sha256()
    hashes = {}
    for method in ["yarn", "ntk", "pi"]:
        patch.apply(method, factor=FACTOR, native_window=WINDOW)
        hashes[method] = patch.frequencies_sha256()
        patch.apply(method, factor=FACTOR, native_window=WINDOW)
        assert patch.frequencies_sha256() == hashes[method]
    assert len({native, *hashes.values()}) == 4
    for method in ["pi", "none", "yarn", "ntk"]:
        patch.apply(method, factor=FACTOR, native_window=WINDOW)
        assert patch.frequencies_sha256() == hashes.get(method, native)


def test_none_is_the_native_state(llama: Any) -> None:
    before = state(llama)
    patch = RopePatch(llama)
    patch.apply("yarn", factor=FACTOR, native_window=WINDOW)
    patch.apply("none", factor=FACTOR)
    assert state(llama) == before
    assert patch.applied.native_window is None


def test_the_temperature_multiplies_the_native_one(make: Make) -> None:
    rope = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4, "original_max_position_embeddings": 128}
    model = make("llama", rope=rope)
    native = model.model.rotary_emb.attention_scaling
    with scaled_rope(model, "yarn", factor=FACTOR):
        assert model.model.rotary_emb.attention_scaling == pytest.approx(native * 1.1386294361)
    with scaled_rope(model, "pi", factor=FACTOR):
        assert model.model.rotary_emb.attention_scaling == native
    assert native == pytest.approx(1.0693147)


def test_an_exception_inside_restores(llama: Any) -> None:
    before = state(llama)
    with pytest.raises(KeyError), scaled_rope(llama, "yarn", factor=FACTOR):
        assert state(llama) != before
        raise KeyError("inside")
    assert state(llama) == before


def test_a_refused_setting_changes_nothing(llama: Any) -> None:
    patch = RopePatch(llama)
    patch.apply("pi", factor=FACTOR, native_window=WINDOW)
    before = state(llama)
    for options in ({"factor": 0.5, "native_window": WINDOW}, {"factor": 2}, {"factor": 2, "native_window": 0}):
        with pytest.raises(UsageError):
            patch.apply("yarn", **options)
    with pytest.raises(UsageError, match="beta_fst"):
        patch.apply("yarn", factor=2, native_window=WINDOW, beta_fst=3)
    assert state(llama) == before
    assert patch.applied.method == "pi"


def test_a_second_patch_on_a_scaled_model_is_refused(llama: Any) -> None:
    with scaled_rope(llama, "yarn", factor=FACTOR):
        with pytest.raises(RunError, match=r"model\.rotary_emb is scaled already by yarn"):
            RopePatch(llama)
        with pytest.raises(RunError), scaled_rope(llama, "none"):
            pass
    RopePatch(llama)


def test_dynamic_checkpoints_stay_as_patched(make: Make) -> None:
    model = make("llama", rope={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4})
    ids = torch.randint(3, 256, (1, 2 * WINDOW), generator=torch.Generator().manual_seed(2))
    rope = {**OFFICIAL["yarn"], "rope_theta": 1e4}
    reference = make("llama", rope=rope, weights=model.state_dict())
    before = state(model)
    with torch.no_grad(), scaled_rope(model, "yarn", factor=FACTOR):
        got = model(input_ids=ids, use_cache=False).logits
    with torch.no_grad():
        expected = reference(input_ids=ids, use_cache=False).logits
    assert float((got - expected).abs().max()) <= 1e-3
    assert state(model) == before
    patch = RopePatch(model)
    with torch.no_grad():
        model(input_ids=ids, use_cache=False)
    assert state(model) != before
    patch.restore()
    assert state(model) == before


def test_softmax_temperature_is_refused(llama: Any) -> None:
    llama.config.rope_parameters["mscale_all_dim"] = 1.0
    patch = RopePatch(llama)
    with pytest.raises(UsageError, match="mscale_all_dim"):
        patch.apply("yarn", factor=2, native_window=WINDOW)
    with pytest.raises(UsageError, match="from scratch on a model with mscale_all_dim"):
        patch.apply("pi", factor=2, native_window=WINDOW, from_scratch=True)
    patch.apply("yarn", factor=2, native_window=WINDOW, attention_factor=1.0)
    patch.apply("ntk", factor=2, native_window=WINDOW)


def test_a_cast_table_is_recomputed_and_given_back_as_found(llama: Any) -> None:
    fp32 = llama.model.rotary_emb.inv_freq.clone()
    llama.to(torch.bfloat16)
    before = state(llama)
    patch = RopePatch(llama)
    patch.apply("none")
    assert torch.equal(llama.model.rotary_emb.inv_freq, fp32)
    patch.apply("pi", factor=2, native_window=WINDOW)
    assert torch.equal(llama.model.rotary_emb.inv_freq, fp32 / 2)
    patch.restore()
    assert state(llama) == before


def test_cast_tables_of_local_layers_are_recomputed_too(make: Make) -> None:
    model = make("gemma3_text", layer_types=LAYERS)
    local = model.model.rotary_emb.sliding_attention_inv_freq.clone()
    with scaled_rope(model.to(torch.bfloat16), "pi", factor=FACTOR):
        assert torch.equal(model.model.rotary_emb.sliding_attention_inv_freq, local)
    assert model.model.rotary_emb.sliding_attention_inv_freq.dtype == torch.bfloat16


def test_restore_removes_what_a_dynamic_module_left(make: Make) -> None:
    rope = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "dynamic", "rope_theta": 1e6, "factor": 2.0},
    }
    model = make("gemma3_text", layer_types=LAYERS, rope=rope)
    patch = RopePatch(model)
    with torch.no_grad():
        model(input_ids=torch.ones(1, 2 * WINDOW, dtype=torch.long), use_cache=False)
    assert hasattr(model.model.rotary_emb, "full_attention_max_seq_len_cached")
    patch.restore()
    assert not hasattr(model.model.rotary_emb, "full_attention_max_seq_len_cached")
    assert not hasattr(model.model.rotary_emb, "attention_scaling")


def test_a_cast_table_that_cannot_be_recomputed(llama: Any) -> None:
    llama.to(torch.bfloat16)
    llama.config.rope_parameters["rope_theta"] = 5e5
    with pytest.raises(
        RunError, match=r"inv_freq is torch\.bfloat16, not float32, and the configuration gives another"
    ):
        RopePatch(llama)
    del llama.model.rotary_emb.config
    with pytest.raises(RunError, match="LlamaRotaryEmbedding cannot recompute it"):
        RopePatch(llama)


def test_wrappers_and_strangers(llama: Any) -> None:
    assert RopePatch(SimpleNamespace(model=llama)).model is llama
    with pytest.raises(UsageError, match="SimpleNamespace is not a transformers model"):
        RopePatch(SimpleNamespace(model=3))


def test_the_hash_sees_frequencies_and_temperature(llama: Any) -> None:
    patch = RopePatch(llama)
    (site,) = patch.sites
    seen = {patch.frequencies_sha256()}
    site.write_attention_scaling(1.5)
    seen.add(patch.frequencies_sha256())
    site.inv_freq[3] *= 1 + 2**-22
    seen.add(patch.frequencies_sha256())
    assert len(seen) == 3
    assert capture(site).attributes["attention_scaling"] == 1.5


def test_an_alias_is_the_method_it_stands_for(llama: Any) -> None:
    with scaled_rope(llama, "pi", factor=4) as patch:
        expected = patch.frequencies_sha256()
    with scaled_rope(llama, "linear", factor=4) as patch:
        assert patch.frequencies_sha256() == expected
