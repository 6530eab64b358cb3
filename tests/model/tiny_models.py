"""Tiny random models of every kind of positions and cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

NATIVE = 512
SIZES = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": NATIVE,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_chunk_size": 32}
MLA = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
}
KINDS: Mapping[str, dict[str, Any]] = {
    "gpt2": {},
    "opt": {"word_embed_proj_dim": 64, "ffn_dim": 128},
    "bloom": {},
    "mpt": {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": NATIVE},
    "mamba": {"state_size": 8, "num_hidden_layers": 1},
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16, "chunk_size": 32, "n_groups": 1},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "use_mamba_kernels": False},
    "falcon_h1": {"mamba_d_ssm": 128, **MAMBA2},
    "gemma3_text": {"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"]},
    "deepseek_v3": MLA,
    "phi3": {},
    "gptj": {"n_embd": 64, "n_head": 4, "n_layer": 2, "rotary_dim": 8, "n_positions": NATIVE},
}


def build(kind: str, **extra: Any) -> Any:
    """Build a random model in which positions and states move the logits by more than rounding does."""
    from transformers import AutoConfig, AutoModelForCausalLM

    known = AutoConfig.for_model(kind)
    sizes = {name: value for name, value in SIZES.items() if getattr(known, name, None) is not None}
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **{**sizes, **KINDS.get(kind, {}), **extra})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2 and "A_log" not in name:
                scale = 0.5 if "emb" in name or "wpe" in name or "wte" in name else 1.5 / parameter.shape[1] ** 0.5
                parameter.normal_(0.0, scale, generator=generator)
    return model
