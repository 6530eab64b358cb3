"""The state of a rotary table, taken and put back bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ctxeval.errors import RunError
from ctxeval.rope.sites import BUFFER, Site

#: Plain attributes that a patch, or a dynamic rotary module by itself, may change.
ATTRIBUTES = ("attention_scaling", "rope_type", "max_seq_len_cached", "original_max_seq_len", "rope_init_fn")
_ABSENT = object()
#: A table cast to bf16 is off by up to 2^-8, relative.
CAST_TOLERANCE = 2**-7


@dataclass(frozen=True, eq=False)
class SiteState:
    """Copies of a site's frequencies (rotary_dim/2,), twice where it keeps two, and of its module's plain attributes.

    `table` is the copy of a table of sin and cos, where the module looks them up.
    """

    inv_freq: Tensor
    original_inv_freq: Tensor | None
    attributes: Mapping[str, Any]
    table: Tensor | None = None


@dataclass(frozen=True, eq=False)
class PatchState:
    """Copies of all that a patch may change: the rotary modules' states and the softmax scales."""

    sites: tuple[SiteState, ...]
    softmax: tuple[float, ...] = ()


def capture(site: Site) -> SiteState:
    """Copy the state of a site."""
    original = site.original_inv_freq
    names = dict.fromkeys((*ATTRIBUTES, *(site.key(name) for name in ATTRIBUTES)))
    attributes = {name: vars(site.module).get(name, _ABSENT) for name in names}
    table = None if site.table is None else site.table.detach().clone()
    return SiteState(site.inv_freq.clone(), None if original is None else original.clone(), attributes, table)


def native_factor(site: Site, state: SiteState) -> float:
    """Return the factor on cos and sin in `state`; 1 where the module has none."""
    if state.table is not None:
        return 1.0
    value = state.attributes[site.key("attention_scaling")]
    return 1.0 if value is _ABSENT else float(value)


def put_back(site: Site, state: SiteState) -> None:
    """Give a site the state that `capture` took of it; attributes that have appeared since are removed."""
    if state.table is not None:
        site.put_table(state.table.clone())
        return
    site.write_buffer(BUFFER, state.inv_freq)
    if state.original_inv_freq is not None:
        site.write_buffer(f"original_{BUFFER}", state.original_inv_freq)
    for name, value in state.attributes.items():
        if value is not _ABSENT:
            setattr(site.module, name, value)
        elif name in vars(site.module):
            delattr(site.module, name)


def in_fp32(site: Site, state: SiteState) -> SiteState:
    """Return `state` with fp32 tables: itself, or recomputed from the configuration where the model was cast.

    `model.to(torch.bfloat16)` casts the tables too, which at position 32768 is wrong by 40 rad.

    Raises:
        RunError: the table is not fp32 and the module cannot recompute it, or what it recomputes is another table.
    """
    if state.inv_freq.dtype == torch.float32:
        return state
    trouble = f"{site.label}: inv_freq is {state.inv_freq.dtype}, not float32"
    hint = "load the model with dtype=..., which leaves rotary tables alone, instead of model.to(dtype)"
    function = _init_function(site)
    if function is None:
        raise RunError(f"{trouble}, and {type(site.module).__name__} cannot recompute it", hint)
    arguments = {"layer_type": site.prefix} if site.prefix else {}
    fresh = function(site.module.config, **arguments)[0].to(state.inv_freq.device, torch.float32)
    if fresh.shape != state.inv_freq.shape or not torch.allclose(
        fresh, state.inv_freq.float(), rtol=CAST_TOLERANCE, atol=CAST_TOLERANCE * float(fresh.min())
    ):
        raise RunError(f"{trouble}, and the configuration gives another table", hint)
    original = None if state.original_inv_freq is None else fresh.clone()
    return SiteState(fresh, original, state.attributes, state.table)


def _init_function(site: Site) -> Any:
    if not hasattr(site.module, "config"):
        return None
    if site.rope_type == "default":
        return getattr(site.module, "compute_default_rope_parameters", None)
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    return ROPE_INIT_FUNCTIONS.get(site.rope_type)
