"""Checkpoints by their configuration alone."""

from __future__ import annotations

from typing import Any

import transformers

from ctxeval.export.engines import ENGINES
from ctxeval.export.extension import Export, Extension
from ctxeval.rope.checkpoint import Checkpoint, checkpoint_of, extension, prove_export
from ctxeval.spec import ModelSpec, RunSpec

#: Small enough to build in no time; what matters is the rotary geometry.
SMALL: dict[str, Any] = {
    "num_hidden_layers": 1,
    "pad_token_id": 0,
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 64,
}
HEADS: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32}


def configuration(kind: str = "llama", **settings: Any) -> Any:
    """Describe a checkpoint of type `kind`; by default plain RoPE of 16 pairs, theta 10,000, 256 tokens."""
    known = transformers.AutoConfig.for_model(kind)
    sizes = {**SMALL, **HEADS, "max_position_embeddings": 256}
    fitting = {name: value for name, value in sizes.items() if hasattr(known, name)}
    return transformers.AutoConfig.for_model(kind, **{**fitting, **settings})


def told(config: Any, scale: str, length: int = 1024, **options: Any) -> tuple[Checkpoint, Extension]:
    """Put an export together; `from_scratch` and the windows are the spec's, all other options the scaling's."""
    own = {name: options.pop(name) for name in ("from_scratch", "native_window", "factor") if name in options}
    spec = RunSpec(ModelSpec("tiny"), scales=(scale,), length=length, scaling_options=options, **own)
    checkpoint, resolved = checkpoint_of(config, spec)
    return checkpoint, extension(checkpoint, resolved)


def ship(engine: str, config: Any, scale: str, length: int = 1024, **options: Any) -> Export:
    """Export a scaling, and let transformers read a configuration back, as the command does."""
    checkpoint, extended = told(config, scale, length, **options)
    made = ENGINES[engine](extended)
    if made.config is not None:
        prove_export(checkpoint, extended, made)
    return made
