"""The sizes of a model that cost depends on."""

from __future__ import annotations

from typing import Any

from torch import nn

from ctxeval.engine.budget import Geometry

#: Layer types of transformers' configurations that keep no keys and values.
WITHOUT_KEYS = ("linear_attention", "mamba", "mamba2", "conv", "recurrent", "moe", "mlp", "dummy")


def read_geometry(config: Any, model: nn.Module | None = None, bytes_per_value: int = 2) -> Geometry:
    """Read from a configuration the sizes that the cost depends on, and count the weights of `model`.

    Mixture-of-experts models are counted with all their experts, and layers with a sliding window as if they saw all:
    an upper bound.

    Args:
        config: a transformers configuration; its text part is taken.
        model: loaded or on the meta device; without it, a decoder with gated MLPs is assumed.
        bytes_per_value: of weights and cache.
    """
    text = config.get_text_config(decoder=True)
    hidden, layers = text.hidden_size, text.num_hidden_layers
    heads = getattr(text, "num_attention_heads", None) or 0
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    head_dim = getattr(text, "head_dim", None) or (hidden // heads if heads else 0)
    if model is None:
        attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
        dense = layers * (attention + 3 * hidden * (getattr(text, "intermediate_size", None) or 4 * hidden))
        weights = dense + text.vocab_size * hidden * (1 if getattr(text, "tie_word_embeddings", False) else 2)
    else:
        dense, weights = _dense_parameters(model), sum(one.numel() for one in model.parameters())
    kinds = getattr(text, "layer_types", None) or ()
    return Geometry(
        dense_parameters=dense,
        layers=layers - sum(kind in WITHOUT_KEYS for kind in kinds),
        query_width=heads * head_dim,
        kv_width=kv_heads * head_dim,
        hidden_size=hidden,
        vocabulary=text.vocab_size,
        weight_bytes=bytes_per_value * weights,
        bytes_per_value=bytes_per_value,
    )


def _dense_parameters(model: nn.Module) -> int:
    """Count the weights that every token is multiplied with: the matrices but the tables and the output head."""
    head = model.get_output_embeddings()  # type: ignore[operator]
    aside = {id(one.weight) for one in model.modules() if isinstance(one, nn.Embedding)}
    aside |= {id(one) for one in head.parameters()} if head is not None else set()
    return sum(one.numel() for one in model.parameters() if one.dim() > 1 and id(one) not in aside)
