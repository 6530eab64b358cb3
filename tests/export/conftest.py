"""Checkpoints by their configuration alone."""

from __future__ import annotations

from typing import Any

import transformers

from ctxeval.export.engines import ENGINES
from ctxeval.export.extension import Export
from ctxeval.resolve import resolve
from ctxeval.rope.checkpoint import Checkpoint, checkpoint_of, extension, prove_export
from ctxeval.rope.windows import read_windows
from ctxeval.spec import ModelSpec, RunSpec

#: Small enough to build in no time; what matters is the rotary geometry.
SMALL: dict[str, Any] = {"num_hidden_layers": 1, "vocab_size": 64, "hidden_size": 64, "intermediate_size": 64}
HEADS: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32}


def checkpoint(kind: str = "llama", **settings: Any) -> Checkpoint:
    """Describe a checkpoint of type `kind`; by default plain RoPE of 16 pairs, theta 10,000, 256 tokens."""
    known = transformers.AutoConfig.for_model(kind)
    sizes = {**SMALL, **HEADS, "max_position_embeddings": 256}
    fitting = {name: value for name, value in sizes.items() if hasattr(known, name)}
    config = transformers.AutoConfig.for_model(kind, **{**fitting, **settings})
    return checkpoint_of(config, read_windows(config))


def ship(engine: str, of: Checkpoint, scale: str, length: int = 1024, **options: Any) -> Export:
    """Export a scaling of a checkpoint, and let transformers read a configuration back, as the command does."""
    asked = RunSpec(ModelSpec("tiny"), scales=(scale,), length=length, scaling_options=options)
    resolved = resolve(asked, of.windows.native)
    told = extension(of, resolved.scalings[0], resolved.target)
    made = ENGINES[engine](told)
    if made.config is not None:
        prove_export(of, told, made)
    return made
