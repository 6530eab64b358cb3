"""How a model without rotary frequencies knows positions, as far as its modules show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

#: The largest sinusoid or learned table is called one of these.
TABLE_NAMES = (
    "wpe",
    "embed_positions",
    "position_embeddings",
    "position_embedding",
    "pos_emb",
    "pos_embed",
    "pos_encoding",
    "positions_embed",
)
#: Parameters of attention with biases by distance: Transformer-XL's and T5's.
RELATIVE = ("r_w_bias", "relative_attention_bias")
#: Modules and attributes by which state-space and recurrent models are known.
RECURRENT = ("A_log", "time_decay", "ssm_state_size", "igate_preact")


def position_scheme(modules: Sequence[tuple[str, nn.Module]]) -> str:
    """Say it in words that complete the sentence "it has no rotary frequencies: ..."."""
    attributes = {attribute for _, module in modules for attribute in _attributes(module)}
    if any("alibi" in attribute for _, module in modules for attribute in dir(module)):
        return "it uses ALiBi biases"
    tables: dict[str, Any] = {}
    for name, module in modules:
        leaves = (*module.named_buffers(recurse=False), *module.named_parameters(recurse=False))
        tables.update({f"{name}.{leaf}": value for leaf, value in leaves if leaf in TABLE_NAMES})
        if name.rpartition(".")[2] in TABLE_NAMES:
            tables[name] = module
    for name, module in modules:
        if "axial" in type(module).__name__.lower():
            return f"it uses learned axial tables of absolute positions ({name})"
    for name, table in tables.items():
        if "sinusoid" in type(table).__name__.lower():
            return f"it uses a fixed sinusoid table ({name}, {type(table).__name__})"
        if isinstance(table, Tensor) and not isinstance(table, nn.Parameter):
            return f"it uses a fixed sinusoid table ({name}, {tuple(table.shape)})"
    if any(mark in attributes for mark in RELATIVE) or any(
        "Relative" in type(module).__name__ for _, module in modules
    ):
        return "it uses relative position biases"
    if tables:
        return f"it uses a learned table of absolute positions ({next(iter(tables))})"
    if any(mark in attributes for mark in RECURRENT):
        return "it is a state-space or recurrent model, or its attention has no positions"
    return "no position encoding that ctxeval knows was found"


def _attributes(module: nn.Module) -> set[str]:
    leaves = (*module.named_buffers(recurse=False), *module.named_parameters(recurse=False))
    return {*vars(module), *(leaf for leaf, _ in leaves)}
