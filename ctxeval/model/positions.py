"""How a model without rotary frequencies knows positions, read from its modules and never from a list of types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ctxeval.errors import UsageError

#: Parts of a dotted module name (or class name) that mean: positions of something other than text.
TOWER_WORDS = ("vision", "visual", "image", "video", "audio", "speech")
#: The largest sinusoid or learned table is called one of these.
TABLE_NAMES = (
    "wpe",
    "embed_positions",
    "positions_embed",
    "position_embeddings",
    "position_embedding",
    "pos_emb",
    "pos_embed",
    "pos_encoding",
)
#: Attributes that only state-space and recurrent layers have: Mamba and delta rules, RWKV, Mamba's sizes, xLSTM.
RECURRENT_MARKS = ("A_log", "time_decay", "ssm_state_size", "igate_preact")


@dataclass(frozen=True)
class Positions:
    """How a model knows positions: `text` says it for people.

    `rows` is how many positions the model has a row for, None where there is no such limit; `learned` whether those
    rows were trained.
    """

    text: str
    rows: int | None = None
    learned: bool = False


def text_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules of the text decoder with their dotted names."""
    for name, module in model.named_modules():
        where = f"{name}.{type(module).__name__}".lower()
        if not any(word in where for word in TOWER_WORDS):
            yield name, module


def describe_positions(model: nn.Module) -> str:
    """Say how the model knows positions, as far as its modules show."""
    return read_positions(model).text


def read_positions(model: nn.Module) -> Positions:
    """Read how the model knows positions, as far as its modules show; they may be on torch's meta device."""
    modules = list(text_modules(model))
    if any("alibi" in attribute for _, module in modules for attribute in dir(module)):
        return Positions("it uses ALiBi biases")
    for name, table in _tables(modules):
        if "sinusoid" in type(table).__name__.lower():
            return Positions(f"it uses a fixed sinusoid table ({name}, {type(table).__name__})", _rows(table))
        if isinstance(table, Tensor) and not isinstance(table, nn.Parameter):
            text = f"it has a fixed sin/cos table ({name}, {tuple(table.shape)}), as long as the native window"
            return Positions(text, _rows(table))
        return Positions(f"it uses a learned table of absolute positions ({name})", _rows(table), learned=True)
    if any(_is_relative(module) for _, module in modules):
        return Positions("it uses relative position biases")
    if any(hasattr(module, mark) for _, module in modules for mark in RECURRENT_MARKS):
        also = any(hasattr(module, "q_proj") for _, module in modules)
        return Positions(
            "it is a state-space or recurrent model" + (" whose attention has no positions (NoPE)" if also else "")
        )
    return Positions("no position encoding that ctxeval knows was found")


def check_positions(model: nn.Module, scales: Sequence[str], longest: int) -> None:
    """Refuse what a model without rotary frequencies cannot do; it may be on the meta device.

    Args:
        model: without rotary frequencies.
        scales: the scalings that were asked for.
        longest: tokens of the longest context.

    Raises:
        UsageError: another scaling than `none`, or a context for which the model has no position rows.
    """
    name, positions = type(model).__name__, read_positions(model)
    scaled = [scale for scale in scales if scale != "none"]
    if scaled:
        raise UsageError(
            f"scaling {', '.join(scaled)} on {name}, which has no rotary frequencies: {positions.text}",
            "it can be measured as it is, with --scale none",
        )
    if positions.rows is not None and longest > positions.rows:
        mend = "retraining would be needed" if positions.learned else "another table would be needed"
        raise UsageError(
            f"position {positions.rows} has no row in {name}, and {longest} tokens were asked for: {positions.text}",
            f"{mend}; it can be measured up to {positions.rows} tokens",
        )


def make_room(model: Any, longest: int) -> None:
    """Let a model with ALiBi biases of a configured length read `longest` tokens.

    MPT makes its biases at every forward pass, `max_seq_len` columns of which it uses the last: a larger number changes
    no bias, a smaller one is an error.
    """
    config = model.config
    if config.model_type == "mpt" and config.max_seq_len < longest:
        config.max_seq_len = longest


def _tables(modules: Sequence[tuple[str, nn.Module]]) -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, module or tensor) of what is called a table of positions."""
    for name, module in modules:
        for leaf, value in (*module.named_buffers(recurse=False), *module.named_parameters(recurse=False)):
            if leaf in TABLE_NAMES:
                yield f"{name}.{leaf}", value
        if name.rpartition(".")[2] in TABLE_NAMES:
            yield name, module


def _is_relative(module: nn.Module) -> bool:
    """Tell whether a module has biases by distance, by its names: T5's, Inkling's, Transformer-XL's."""
    names = (type(module).__name__, *vars(module), *module._parameters)
    return "r_w_bias" in module._parameters or any("relative" in name.lower() for name in names)


def _rows(table: Any) -> int | None:
    """Count the positions that a table has rows for; None where it grows as it is read (XGLM's sinusoid)."""
    if isinstance(table, Tensor):
        return int(table.shape[0])
    if not isinstance(table, nn.Embedding):
        return None
    # OPT and BART put position 0 at row 2; RoBERTa puts it behind the row of its padding token.
    padding = 0 if table.padding_idx is None else table.padding_idx + 1
    return int(table.num_embeddings) - int(getattr(table, "offset", 0)) - padding
