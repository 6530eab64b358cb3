"""Attention that keeps the flash kernel when the KV cache is warm.

With a non-empty cache and more than one new token, transformers' sdpa path builds a dense mask, repeats the KV heads
and loses the flash kernel. Here the new tokens attend to the cached prefix without a mask and to themselves causally,
and the two results are merged by their log-sum-exp (the identity behind flash attention, Dao et al. 2022,
arXiv:2205.14135, section 3.1). Query heads that share a KV head are folded into rows, so KV heads are not expanded
over the prefix.

Notation for shapes: b batch, h query heads, g KV heads, n new tokens, p cached tokens, d head_dim.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface

NAME = "ctxeval_prefix"

#: Arguments by which modelling code asks for more than plain causal attention.
_SPECIAL = ("sliding_window", "softcap", "s_aux", "position_bias", "head_mask", "indices")


def prefix_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend causally: query (b,h,n,d) to key and value (b,g,p+n,d); returns (b,n,h,d) and no weights.

    Raises:
        ValueError: the layer wants a mask, a sliding window, soft-capping or sinks, which this path does not have.
    """
    special = [name for name in _SPECIAL if kwargs.get(name) is not None]
    if attention_mask is not None or dropout or special or query.shape[-1] != value.shape[-1]:
        raise ValueError(f"prefix attention cannot serve {special or 'a mask, dropout or unequal head sizes'}")
    b, h, n, d = query.shape
    g = key.shape[1]
    p = key.shape[2] - n
    own_key, own_value = (states[:, :, p:].repeat_interleave(h // g, dim=1) for states in (key, value))
    own, own_lse = _flash(query, own_key, own_value, causal=True, scale=scaling)
    if p == 0:
        return own.transpose(1, 2).contiguous(), None
    rows = query.reshape(b, g, (h // g) * n, d)
    past, past_lse = _flash(rows, key[:, :, :p], value[:, :, :p], causal=False, scale=scaling)
    past, past_lse = past.reshape(b, h, n, d), past_lse.reshape(b, h, n)
    # Weight of the prefix part in the joint softmax: exp(past) / (exp(past) + exp(own)).
    weight = torch.sigmoid(past_lse - own_lse).unsqueeze(-1)
    merged = torch.lerp(own.float(), past.float(), weight).to(query.dtype)
    return merged.transpose(1, 2).contiguous(), None


def _flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, causal: bool, scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the attention output (b,h,n,d) and its fp32 log-sum-exp (b,h,n), by the device's flash kernel."""
    aten = torch.ops.aten
    if query.device.type == "cpu":
        output, lse = aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, causal, scale=scale)
    else:
        output, lse = aten._scaled_dot_product_flash_attention(query, key, value, 0.0, causal, scale=scale)[:2]
    return output, lse.contiguous()


def is_plain(config: Any) -> bool:
    """Tell whether a config asks for plain causal attention in every layer (no window, no soft-capping)."""
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    softcap = getattr(config, "attn_logit_softcapping", None)
    return kinds <= {"full_attention"} and window is None and softcap is None


def register() -> None:
    """Make the function known to transformers. It has no mask function: transformers then builds no mask."""
    AttentionInterface.register(NAME, prefix_attention)
