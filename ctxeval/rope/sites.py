"""Where a model keeps its rotary frequencies, found by what its modules have and never by a list of model types."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from ctxeval.errors import RunError, UsageError
from ctxeval.model.positions import describe_positions, text_modules
from ctxeval.rope.layers import chosen_types, is_local

BUFFER = "inv_freq"
#: Tables that transformers keeps beside the one in use.
SHADOWS = ("original", "long", "short")


@dataclass(frozen=True, eq=False)
class Site:
    """One table of frequencies in one rotary module.

    `name` is the module's dotted name; `prefix` the layer type that the table serves, "" where it serves all layers;
    `extended` whether a scaling changes it by default (see `ctxeval.rope.layers`).
    """

    name: str
    module: nn.Module
    prefix: str
    extended: bool

    @property
    def label(self) -> str:
        """The name for people: `model.rotary_emb`, or `model.rotary_emb[full_attention]`."""
        return f"{self.name}[{self.prefix}]" if self.prefix else self.name

    def key(self, attribute: str) -> str:
        """Return the name under which the module keeps this table's `attribute`."""
        return f"{self.prefix}_{attribute}" if self.prefix else attribute

    @property
    def inv_freq(self) -> Tensor:
        """The frequencies in use, (rotary_dim/2,), rad/token, fp32 unless the model was cast."""
        return cast(Tensor, getattr(self.module, self.key(BUFFER)))

    @property
    def original_inv_freq(self) -> Tensor | None:
        """The copy that dynamic scaling resets to; None where the module keeps none."""
        return cast("Tensor | None", getattr(self.module, self.key(f"original_{BUFFER}"), None))

    def write_inv_freq(self, values: Tensor) -> None:
        """Set both tables to `values`: in place, so that the buffer keeps its address, unless its dtype differs."""
        for attribute in (BUFFER, f"original_{BUFFER}"):
            self.write_buffer(attribute, values)

    def write_buffer(self, attribute: str, values: Tensor) -> None:
        """Set one table, `inv_freq` or `original_inv_freq`, where the module has it."""
        buffer = getattr(self.module, self.key(attribute), None)
        if buffer is None:
            return
        if buffer.dtype == values.dtype:
            with torch.no_grad():
                buffer.copy_(values)
        else:
            setattr(self.module, self.key(attribute), values.to(buffer.device, copy=True))

    @property
    def attention_scaling(self) -> float:
        """The factor on cos and sin; 1 where the module has none."""
        return float(getattr(self.module, self.key("attention_scaling"), 1.0))

    def write_attention_scaling(self, value: float) -> None:
        """Set the factor on cos and sin.

        Raises:
            RunError: the module has no such factor and `value` is not 1.
        """
        if hasattr(self.module, self.key("attention_scaling")):
            setattr(self.module, self.key("attention_scaling"), value)
        elif value != 1.0:
            raise RunError(
                f"{self.label} ({type(self.module).__name__}) has no attention_scaling to set to {value:.6g}",
                "choose a scaling without a temperature: pi, ntk, ntk-parts",
            )

    @property
    def rope_type(self) -> str:
        """The kind of RoPE as transformers names it; "default" where the module does not say."""
        kind = getattr(self.module, "rope_type", "default")
        return str(kind.get(self.prefix, "default") if isinstance(kind, Mapping) else kind)

    def write(self, values: Tensor, factor: float, rows: int) -> None:
        """Set frequencies (rotary_dim/2,) and the factor on cos and sin, so that they stay. `rows` are for tables.

        Raises:
            RunError: as `write_attention_scaling`.
        """
        self.write_inv_freq(values)
        self.write_attention_scaling(factor)
        self.freeze()

    @property
    def table(self) -> Tensor | None:
        """The table of sin and cos that the module looks up; None where it computes them."""
        return None

    def put_table(self, table: Tensor) -> None:
        """Put back a table of sin and cos: not for a module that computes them."""
        raise NotImplementedError(self.label)

    def extend(self, rows: int) -> None:
        """Make room for `rows` positions where sin and cos are looked up."""

    def freeze(self) -> None:
        """Stop the module from recomputing the table in its forward.

        transformers does so where the type is dynamic or longrope; PhiMoE always does, through `rope_init_fn`.
        """
        kind = getattr(self.module, "rope_type", None)
        if isinstance(kind, Mapping):
            self.module.rope_type = {**kind, self.prefix: "default"}  # type: ignore[assignment]
        elif kind is not None:
            self.module.rope_type = "default"  # type: ignore[assignment]
        if not self.prefix and "rope_init_fn" in vars(self.module):
            self.module.rope_init_fn = lambda *_, **__: (  # type: ignore[assignment]
                self.inv_freq,
                self.attention_scaling,
            )


def unwrap(model: Any) -> nn.Module:
    """Return the transformers model: `model` itself, or its `.model`.

    Raises:
        UsageError: neither is a torch module with a configuration.
    """
    inner = model if isinstance(model, nn.Module) else getattr(model, "model", None)
    if not isinstance(inner, nn.Module) or not hasattr(inner, "config"):
        raise UsageError(f"{type(model).__name__} is not a transformers model", "pass what from_pretrained returns")
    return inner


def find_sites(model: nn.Module, layer_types: Collection[str] | None = None) -> tuple[Site, ...]:
    """Find every table of rotary frequencies of the text decoder, in the order of the model's modules.

    Args:
        model: a transformers model.
        layer_types: those that a scaling changes, `all` for all of them; by default the global ones.

    Raises:
        UsageError: there is none, and the message says what the model has instead; or a layer type it has not.
    """
    from ctxeval.rope.tables import find_tables

    modules = list(text_modules(model))
    found = [Site(name, module, prefix, False) for name, module in modules for prefix in _prefixes(module)]
    found += find_tables(modules)
    if not found:
        raise UsageError(
            f"{type(model).__name__} has no rotary frequencies to scale: {describe_positions(model)}",
            "ctxeval extends models with rotary position embeddings (RoPE)",
        )
    types = {site.prefix for site in found}
    chosen = chosen_types(types, layer_types, {prefix for prefix in types if _served_locally(prefix, modules)})
    return tuple(replace(site, extended=site.prefix in chosen) for site in found)


def _served_locally(prefix: str, modules: Iterable[tuple[str, nn.Module]]) -> bool:
    """Tell whether only local layers ask for the tables of `prefix`, where layers say so: DeepSeek V4's `main`."""
    asking: dict[Any, set[str]] = {}
    for _, module in modules:
        layer_type = getattr(module, "layer_type", None)
        if hasattr(module, "rope_layer_type") and isinstance(layer_type, str):
            asking.setdefault(module.rope_layer_type, set()).add(layer_type)
    return bool(asking) and all(map(is_local, asking.get(prefix, ())))


def has_sites(model: nn.Module) -> bool:
    """Tell whether a model, loaded or on the meta device, has rotary frequencies."""
    try:
        find_sites(model)
    except UsageError:
        return False
    return True


def _prefixes(module: nn.Module) -> Iterator[str]:
    for name, _ in module.named_buffers(recurse=False):
        if name == BUFFER:
            yield ""
        elif name.endswith(f"_{BUFFER}"):
            prefix = name[: -len(BUFFER) - 1]
            if prefix.split("_")[-1] not in SHADOWS:
                yield prefix
