"""How a model without rotary frequencies knows positions, read from its modules and never from a list of types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

#: Parts of a dotted module name (or class name) that mean: positions of something other than text.
TOWER_WORDS = ("vision", "visual", "image", "video", "audio", "speech")
#: The largest sinusoid or learned table is called one of these.
TABLE_NAMES = ("wpe", "embed_positions", "position_embeddings", "position_embedding", "pos_emb", "pos_embed")


def text_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules of the text decoder with their dotted names."""
    for name, module in model.named_modules():
        where = f"{name}.{type(module).__name__}".lower()
        if not any(word in where for word in TOWER_WORDS):
            yield name, module


def describe_positions(model: nn.Module) -> str:
    """Say how the model knows positions, as far as its configuration and modules show."""
    modules = list(text_modules(model))
    if any("alibi" in attribute for _, module in modules for attribute in dir(module)):
        return "it uses ALiBi biases"
    tables: dict[str, Any] = {}
    for name, module in modules:
        leaves = (*module.named_buffers(recurse=False), *module.named_parameters(recurse=False))
        tables.update({f"{name}.{leaf}": value for leaf, value in leaves if leaf in TABLE_NAMES})
        if name.rpartition(".")[2] in TABLE_NAMES:
            tables[name] = module
    for name, table in tables.items():
        if isinstance(table, Tensor) and not isinstance(table, nn.Parameter):
            return f"it rotates by a fixed sin/cos table ({name}, {tuple(table.shape)}), as long as the native window"
        if "sinusoid" in type(table).__name__.lower():
            return f"it uses a fixed sinusoid table ({name}, {type(table).__name__})"
    if tables:
        return f"it uses a learned table of absolute positions ({next(iter(tables))})"
    marks = ("A_log", "time_decay", "ssm_state_size")
    if any(hasattr(module, mark) for _, module in modules for mark in marks):
        return "it is a state-space or recurrent model"
    return "no position encoding that ctxeval knows was found"
