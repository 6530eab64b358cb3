"""The rotary tables that a configuration gives, computed by transformers' own code as on loading, without weights."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from ctxeval.errors import UsageError
from ctxeval.model.skeleton import skeleton
from ctxeval.model.source import quiet, reason
from ctxeval.rope.scaling import Scaled
from ctxeval.rope.sites import Site, find_sites
from ctxeval.spec import ModelSpec

#: Relative, between what is wanted in fp64 and what transformers computes in fp32.
TOLERANCE = 2e-6
BY_HAND = "this model type cannot say it in a configuration; ctxeval.scaled_rope can still apply it"


@dataclass(frozen=True)
class Table:
    """A rotary table: `layer_type` "" serves all layers; `scaled` is what it emits (see `Scaled`), as configured."""

    label: str
    layer_type: str
    extended: bool
    scaled: Scaled


def native_tables(sites: Iterable[Site]) -> tuple[Table, ...]:
    """Return the tables of a model as it stands, one a layer type.

    Raises:
        UsageError: the tables of one layer type differ.
    """
    tables: dict[str, Table] = {}
    for site in sites:
        scaled = Scaled(site.inv_freq.double().numpy(), site.attention_scaling)
        first = tables.setdefault(site.prefix, Table(site.label, site.prefix, site.extended, scaled))
        if _difference(scaled, first.scaled):
            raise UsageError(
                f"{first.label} and {site.label} have different tables", "one configuration says one for both"
            )
    return tuple(tables.values())


def without_weights(config: Any, *, trust_remote_code: bool = False) -> nn.Module:
    """Build a model whose weights take no memory and whose rotary tables are real: in seconds, whatever its size.

    transformers loads checkpoints in the same way: tables are no part of them and are computed by `_init_weights`.

    Raises:
        UsageError: transformers cannot build it so, or leaves a table uncomputed; no rotary tables.
    """
    model = skeleton(ModelSpec("", trust_remote_code=trust_remote_code), config)
    if not isinstance(model, PreTrainedModel):
        raise UsageError(f"the code of this {_kind(config)} does not run without weights", BY_HAND)
    _compute_tables(model, model)
    for site in find_sites(model):
        _check_computed(site)
    return model


def check_reload(config: Any, data: Mapping[str, Any], wanted: Mapping[str, Scaled], native: tuple[Table, ...]) -> None:
    """Prove that transformers, given a written configuration, computes the wanted tables.

    Args:
        config: what `data` was made from; its class reads `data`.
        data: a configuration as config.json holds it.
        wanted: layer type → table, of those that are extended.
        native: all tables as they were; those that are not extended must come out the same.

    Raises:
        UsageError: they come out differently, or the configuration's class refuses `data`.
    """
    kind = _kind(config)
    try:
        with quiet():
            read = type(config).from_dict(copy.deepcopy(dict(data)))
    except Exception as error:  # a configuration's own checks raise what they like
        raise UsageError(f"transformers refuses the configuration of this {kind}: {reason(error)}", BY_HAND) from error
    before = {table.layer_type: table.scaled for table in native}
    for table in native_tables(find_sites(without_weights(read))):
        trouble = _difference(table.scaled, wanted.get(table.layer_type, before[table.layer_type]))
        if trouble:
            raise UsageError(f"transformers reads the configuration of this {kind} differently: {trouble}", BY_HAND)


def _kind(config: Any) -> str:
    return str(getattr(config, "model_type", type(config).__name__))


def _compute_tables(module: nn.Module, owner: PreTrainedModel) -> None:
    """Compute what is not saved with weights, by the nearest model's own initialisation."""
    owner = module if isinstance(module, PreTrainedModel) else owner
    if module._non_persistent_buffers_set:
        module.to_empty(device=torch.device("cpu"), recurse=False)
        for name in module._non_persistent_buffers_set:
            buffer = getattr(module, name)
            if isinstance(buffer, torch.Tensor) and buffer.is_floating_point():
                buffer.fill_(torch.nan)  # to see whether it was computed
        with torch.no_grad():
            owner._init_weights(module)
    for child in module.children():
        _compute_tables(child, owner)


def _check_computed(site: Site) -> None:
    held = site.inv_freq if site.table is None else site.table
    if held.is_meta or not torch.isfinite(held).all():
        raise UsageError(
            f"{site.label} ({type(site.module).__name__}) does not compute its frequencies from a configuration",
            BY_HAND,
        )


def _difference(read: Scaled, wanted: Scaled) -> str:
    """Say where a table is not the wanted one, "" where it is."""
    if read.inv_freq.shape != wanted.inv_freq.shape:
        return f"{read.inv_freq.size} pairs, not {wanted.inv_freq.size}"
    off = np.abs(read.inv_freq - wanted.inv_freq) / np.where(wanted.inv_freq > 0, wanted.inv_freq, 1.0)
    pair = int(off.argmax())
    if not off[pair] <= TOLERANCE:
        return f"pair {pair} turns at {read.inv_freq[pair]:.6g} rad/token, not {wanted.inv_freq[pair]:.6g}"
    if not abs(read.attention_factor / wanted.attention_factor - 1) <= TOLERANCE:
        return f"attention factor {read.attention_factor:.6g}, not {wanted.attention_factor:.6g}"
    return ""
