"""Where models keep their frequencies, and what is said of those that keep none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ctxeval.errors import RunError, UsageError
from ctxeval.rope.layers import extended_types
from ctxeval.rope.sites import find_sites
from tests.rope.zoo import build, tiny_config

LAYERS = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]


def test_one_table(llama: Any) -> None:
    (site,) = find_sites(llama)
    assert (site.label, site.prefix, site.extended, site.rope_type) == ("model.rotary_emb", "", True, "default")
    assert site.inv_freq is llama.model.rotary_emb.inv_freq
    assert site.attention_scaling == 1.0


def test_a_table_for_each_layer_type(make: Callable[..., Any]) -> None:
    sites = {site.label: site for site in find_sites(make("gemma3_text", layer_types=LAYERS))}
    assert {label: site.extended for label, site in sites.items()} == {
        "model.rotary_emb[full_attention]": True,
        "model.rotary_emb[sliding_attention]": False,
    }
    full, sliding = sites.values()
    assert not torch.equal(full.inv_freq, sliding.inv_freq)


def test_several_modules(make: Callable[..., Any]) -> None:
    assert len(find_sites(make("moshi", audio_vocab_size=32, num_codebooks=2))) == 4


def test_layer_types_that_are_extended() -> None:
    assert extended_types(["full_attention", "sliding_attention"]) == {"full_attention"}
    assert extended_types(["sliding_attention"]) == {"sliding_attention"}
    assert extended_types([""]) == {""}


def test_layer_types_that_were_chosen(make: Callable[..., Any]) -> None:
    model = make("gemma3_text", layer_types=LAYERS)

    def extended(*names: str) -> list[str]:
        return [site.prefix for site in find_sites(model, names) if site.extended]

    assert extended("all") == ["full_attention", "sliding_attention"]
    assert extended("sliding_attention") == ["sliding_attention"]
    with pytest.raises(UsageError, match="unknown layer type 'full'.*Known: all, full_attention, sliding_attention"):
        find_sites(model, ("full",))


def test_layer_types_on_a_model_without_them(llama: Any) -> None:
    assert [site.extended for site in find_sites(llama, ("all",))] == [True]
    with pytest.raises(UsageError, match="layer types full_attention on a model with one set of frequencies"):
        find_sites(llama, ("full_attention",))


def test_a_table_that_only_sliding_layers_ask_for_is_local() -> None:
    """DeepSeek V4 calls its tables `main` and `compress`; its own configuration scales `compress` alone."""
    sites = find_sites(build(tiny_config("deepseek_v4")))
    assert {site.prefix: site.extended for site in sites} == {"main": False, "compress": True}


def test_towers_are_left_out(llama: Any) -> None:
    tower = nn.Module()
    tower.register_buffer("inv_freq", torch.ones(4))
    llama.vision_tower = tower
    assert [site.label for site in find_sites(llama)] == ["model.rotary_emb"]


@pytest.mark.parametrize(
    ("kind", "settings", "text"),
    [
        ("gpt2", {}, "learned table of absolute positions (transformer.wpe)"),
        ("opt", {"word_embed_proj_dim": 64, "ffn_dim": 128}, "learned table of absolute positions"),
        ("bloom", {}, "ALiBi"),
        ("mpt", {"d_model": 64, "n_heads": 4, "n_layers": 2}, "ALiBi"),
        ("mamba", {}, "state-space or recurrent"),
    ],
)
def test_models_without_rotary_frequencies(make: Callable[..., Any], kind: str, settings: Any, text: str) -> None:
    sizes = {"num_hidden_layers": 2} | settings
    model = make(kind, **sizes)
    with pytest.raises(UsageError) as caught:
        find_sites(model)
    assert text in str(caught.value)
    assert type(model).__name__ in caught.value.message


def test_a_module_without_a_temperature_refuses_one() -> None:
    model = nn.Module()
    model.rotary = nn.Module()
    model.rotary.register_buffer("inv_freq", torch.ones(4))
    (site,) = find_sites(model)
    site.write_attention_scaling(1.0)
    with pytest.raises(RunError, match=r"rotary .* has no attention_scaling to set to 1.2"):
        site.write_attention_scaling(1.2)


def test_both_tables_are_written(llama: Any) -> None:
    (site,) = find_sites(llama)
    site.write_inv_freq(site.inv_freq / 2)
    rotary = llama.model.rotary_emb
    assert torch.equal(rotary.inv_freq, rotary.original_inv_freq)
    assert rotary.inv_freq[0] == 0.5
