"""The frequencies that a scaling starts from: those of the checkpoint as it is, or plain RoPE."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import torch
from torch import Tensor

from ctxeval.errors import UsageError
from ctxeval.rope.frequencies import Frequencies
from ctxeval.rope.sites import Site
from ctxeval.rope.snapshot import SiteState, native_factor
from ctxeval.rope.windows import is_plain, rope_parameters, text_config

#: Kinds of RoPE that recompute their table while they read.
VARYING = ("dynamic", "longrope")


@dataclass(frozen=True, eq=False)
class Base:
    """Frequencies (rotary_dim/2,), fp64 copies of fp32 values, rad/token, and the factor on cos and sin."""

    inv_freq: Frequencies
    attention_factor: float


def base_of(
    site: Site, state: SiteState, method: str, *, from_scratch: bool = False, context_length: int | None = None
) -> Base:
    """Return what `method` starts from at one site.

    Composing takes the table and the factor that the checkpoint has: a YaRN checkpoint was trained with its factor on
    cos and sin, so a method's own multiplies it. Of a table that depends on the length read, the one for the native
    window is taken: the long one of LongRoPE, the unscaled one of dynamic NTK. From scratch it is plain RoPE without a
    factor. Local layers keep what they have.

    Args:
        site: where.
        state: its native state.
        method: a canonical method name.
        from_scratch: start from theta**(-2i/d) instead of the native table.
        context_length: tokens; under `none`, what a table that depends on the length read is frozen at.

    Raises:
        UsageError: from scratch, where no theta is known; a table that varies in a way of its own.
    """
    factor = native_factor(site, state)
    if not site.extended:
        return Base(_numbers(state.inv_freq), factor)
    if method == "none":
        frozen = native_at(site, state, context_length) if context_length and varies(site, state) else state.inv_freq
        return Base(_numbers(frozen), factor)
    if from_scratch:
        return Base(_numbers(_plain(site, state)), 1.0)
    kind = kind_of(site, state)
    if kind == "longrope":
        return Base(_numbers(native_at(site, state, sys.maxsize)), factor)
    if "dynamic" in kind and state.original_inv_freq is not None:
        return Base(_numbers(state.original_inv_freq), factor)
    return Base(_numbers(state.inv_freq), factor)


def kind_of(site: Site, state: SiteState) -> str:
    """Return the kind of RoPE that a table was found with, as transformers names it."""
    kind = state.attributes.get("rope_type", "default")
    kind = kind.get(site.prefix, "default") if isinstance(kind, dict) else kind
    return kind if isinstance(kind, str) else "default"


def varies(site: Site, state: SiteState) -> bool:
    """Tell whether the module recomputes this table while it reads, if it is left alone."""
    return any(word in kind_of(site, state) for word in VARYING)


def native_at(site: Site, state: SiteState, length: int) -> Tensor:
    """Return the table (rotary_dim/2,) that the checkpoint has when it reads `length` tokens in one pass.

    Raises:
        UsageError: a kind that transformers does not know.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    kind = kind_of(site, state)
    if kind not in ROPE_INIT_FUNCTIONS or not hasattr(site.module, "config"):
        raise UsageError(
            f"{site.label} is a table of kind {kind!r} that changes with the length read",
            "transformers has no such kind",
        )
    config, layer = site.module.config, {"layer_type": site.prefix} if site.prefix else {}
    table, _ = ROPE_INIT_FUNCTIONS[kind](config, seq_len=length, **layer)
    return table.to(state.inv_freq.device, torch.float32)


def _plain(site: Site, state: SiteState) -> Tensor:
    """Return theta**(-2i/d), d twice the number of pairs, in fp32 as transformers computes it.

    Pairs that do not turn (the rest of a proportional table) stay still.
    """
    module_config = getattr(site.module, "config", None)
    parameters = rope_parameters(text_config(module_config), site.prefix) if module_config is not None else {}
    if kind_of(site, state) == "default" or is_plain({"rope_type": kind_of(site, state), **parameters}):
        return state.inv_freq
    theta = parameters.get("rope_theta")
    if not isinstance(theta, int | float):
        raise UsageError(f"from scratch on {site.label}, whose rope_theta is not known", "drop --from-scratch")
    size = state.inv_freq.shape[0] * 2
    table = 1.0 / (theta ** (torch.arange(0, size, 2, dtype=torch.float) / size))
    return torch.where(state.inv_freq.cpu() > 0, table, 0.0)


def _numbers(table: Tensor) -> Frequencies:
    values: Frequencies = table.detach().double().cpu().numpy()
    return values
