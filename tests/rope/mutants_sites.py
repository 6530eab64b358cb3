"""Mutants of where and when a patch writes, see `tests.rope.mutants`."""

from __future__ import annotations

import copy
import math
from contextlib import suppress
from typing import Any

import torch

from ctxeval.errors import RunError
from ctxeval.rope.patch import RopePatch
from tests.rope.mutants import FACTOR, TARGET, YARN, alarm, mutant, patched
from tests.rope.references import MSCALE
from tests.rope.zoo import WINDOW, build, tiny_config


@mutant("jquesnelle/yarn scaled_rope/patch.py: a module a layer, which transformers 5 never calls; LongLM #23")
def assigned_per_layer() -> str:
    model = build(tiny_config("llama"))
    native = copy.deepcopy(model.model.rotary_emb)
    patch = RopePatch(model)
    patch.apply("yarn", factor=FACTOR, native_window=WINDOW)
    for layer in model.model.layers:
        layer.self_attn.rotary_emb = model.model.rotary_emb
    model.model.rotary_emb = native
    return alarm(patch)


@mutant("transformers dynamic_rope_update: a dynamic checkpoint recomputes its base and undoes a patch; #24653, #27227")
def dynamic_rope_rewrites_the_patch() -> str:
    patch = patched(native={"rope_type": "dynamic", "factor": 2.0})
    patch.sites[0].module.rope_type = "dynamic"  # type: ignore[assignment]
    return alarm(patch)


@mutant("huggingface/transformers #33129, ggml-org/llama.cpp #24875: LongRoPE switches its table at the boundary")
def longrope_switches_under_the_patch() -> str:
    lists = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    rope = {"rope_type": "longrope", "factor": 2.0, "original_max_position_embeddings": WINDOW // 2, **lists}
    patch = patched(native=rope)
    patch.sites[0].module.rope_type = "longrope"  # type: ignore[assignment]
    return alarm(patch)


@mutant("transformers modeling_gemma3.py keeps plain RoPE in its sliding layers: those were scaled too")
def local_layers_scaled_too() -> str:
    patch = patched("gemma3_text", "pi")
    for site in patch.sites:
        if not site.extended:
            site.write_inv_freq(site.inv_freq / FACTOR)
    return alarm(patch)


@mutant("transformers modeling_gemma3.py: the local table was scaled instead of the global one")
def wrong_layer_type_scaled() -> str:
    patch = patched("gemma3_text", "pi")
    patch.set_native()
    for site in patch.sites:
        if not site.extended:
            site.write_inv_freq(site.inv_freq / FACTOR)
    return alarm(patch)


@mutant("huggingface/transformers #47435: the softmax mscale of latent attention is forgotten")
def mla_mscale_forgotten() -> str:
    patch = patched("deepseek_v3", native=MSCALE)
    for scale, native in zip(patch.softmax, patch.native_softmax, strict=True):
        scale.write(native)
    return alarm(patch)


@mutant("turboderp-org/exllamav3 #259, kekzl/imp #880: errors of mscale; here once, where its square is meant")
def mla_mscale_not_squared() -> str:
    patch = patched("deepseek_v3", native=MSCALE)
    for scale, native in zip(patch.softmax, patch.native_softmax, strict=True):
        scale.write(native * math.sqrt(scale.value / native))
    return alarm(patch)


@mutant("vllm-project/vllm #48623: cos and sin get the full temperature, where mscale / mscale_all_dim is meant")
def mla_temperature_on_cos_and_sin_too() -> str:
    patch = patched("deepseek_v3", native=MSCALE)
    patch.sites[0].write_attention_scaling(YARN)
    return alarm(patch)


@mutant("huggingface/transformers #47435, in one layer only")
def mla_mscale_in_all_layers_but_one() -> str:
    patch = patched("deepseek_v2", native=MSCALE)
    patch.softmax[-1].write(patch.native_softmax[-1])
    return alarm(patch)


@mutant("datamllab/LongLM #10, #36: a patch that is not applied, in one of several modules (Moshi has one a layer)")
def one_of_several_modules_missed() -> str:
    patch = patched("moshi")
    patch.sites[2].write_inv_freq(patch.native[2].inv_freq)
    return alarm(patch)


@mutant("transformers modeling_phimoe.py: forward recomputes the table and ignores the buffer")
def forward_that_ignores_its_table() -> str:
    patch = patched("phimoe")
    module: Any = patch.sites[0].module
    module.rope_init_fn = module.compute_default_rope_parameters
    return alarm(patch)


@mutant("vllm-project/vllm #56446: a cache of cos and sin whose length does not fit the target")
def table_too_short() -> str:
    patch = patched("gptj")
    patch.sites[0].put_table(patch.sites[0].table[:WINDOW])  # type: ignore[index]
    return alarm(patch)


@mutant("transformers modeling_gptj.py: rows beyond the native window repeat the last one, as a clamped index does")
def table_clamped_at_the_window() -> str:
    patch = patched("gptj")
    table = patch.sites[0].table
    assert table is not None
    patch.sites[0].put_table(table[torch.arange(len(table)).clamp(max=WINDOW - 1)])
    return alarm(patch)


@mutant("huggingface/transformers #46624: going back leaves a copy of the scaled table, which comes up again")
def restored_but_for_the_copy() -> str:
    patch = patched(method="ntk", native={"rope_type": "dynamic", "factor": 2.0})
    scaled = patch.sites[0].inv_freq.clone()
    patch.restore()
    patch.sites[0].write_buffer("original_inv_freq", scaled)
    patch.sites[0].module.max_seq_len_cached = TARGET  # type: ignore[assignment]
    with torch.no_grad(), suppress(RunError):
        patch.model(input_ids=torch.ones(1, 8, dtype=torch.long))
    return alarm(patch, WINDOW)


@mutant("transformers from_config leaves a model in train mode: dropout differs from pass to pass")
def train_mode() -> str:
    config = tiny_config("llama")
    config.attention_dropout = 0.1
    patch = RopePatch(build(config))
    patch.model.train()
    return alarm(patch, WINDOW)
