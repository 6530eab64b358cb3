"""Tiny Llama GGUF files with random weights, as llama.cpp's converter would write them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

HEADS, KV_HEADS, HEAD_DIM, LAYERS, INNER = 4, 2, 16, 2, 128
HIDDEN = HEADS * HEAD_DIM
PAIRS = HEAD_DIM // 2


def write_llama(
    path: Path,
    tokenizer: Any,
    *,
    window: int = 512,
    theta: float = 1e4,
    rope: Mapping[str, Any] | None = None,
    factors: Mapping[str, Sequence[float]] | None = None,
    architecture: str = "llama",
) -> Path:
    """Write a model of two layers. `rope`: keys below `ARCH.rope.`; `factors`: tensors of per-pair factors."""
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_name("tiny")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_context_length(window)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(theta)
    for name, value in (rope or {}).items():
        key = f"{architecture}.rope.{name}"
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_float32(key, value)
    vocabulary = _add_tokenizer(writer, tokenizer)
    writer.add_vocab_size(vocabulary)
    for name, shape in _shapes(vocabulary).items():
        values = np.random.default_rng(len(name)).normal(0, 0.2, shape) if len(shape) > 1 else np.ones(shape)
        writer.add_tensor(name, values.astype(np.float32))
    for name, values in (factors or {}).items():
        writer.add_tensor(name, np.asarray(values, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Any) -> int:
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    kinds = [gguf.TokenType.CONTROL if token.startswith("<") else gguf.TokenType.NORMAL for token in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]]
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    return len(tokens)


def _shapes(vocabulary: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocabulary, HIDDEN), "output_norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        block = {
            "attn_norm": (HIDDEN,),
            "ffn_norm": (HIDDEN,),
            "attn_q": (HIDDEN, HIDDEN),
            "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
            "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
            "attn_output": (HIDDEN, HIDDEN),
            "ffn_gate": (INNER, HIDDEN),
            "ffn_up": (INNER, HIDDEN),
            "ffn_down": (HIDDEN, INNER),
        }
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in block.items()}
    return shapes
