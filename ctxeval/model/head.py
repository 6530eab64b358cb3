"""The output head in fp32. In bf16, logits near 20 are an eighth apart: ties, and arg-maxes that fall by token id."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear

#: Vocabulary rows that are widened at a time, so that no fp32 copy of the whole head is ever held.
_BLOCK = 8192


def widen_head(model: Any) -> bool:
    """Make the head of a half-precision `model` compute its logits in fp32, from the same weights.

    The hidden states keep the model's dtype. What the model does after its head (soft-capping, scaling) runs on the
    fp32 logits. Heads that are not a plain linear layer are left alone.

    Returns:
        Whether logits are fp32 now.
    """
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear:
        return False
    if head.weight.dtype != torch.float32:
        head.register_forward_hook(_in_fp32)
    return True


def _in_fp32(head: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
    """Recompute `output` (…, vocabulary) from the hidden states (…, hidden) in fp32."""
    assert isinstance(head, nn.Linear)
    hidden = inputs[0].float()
    parts = [linear(hidden, rows.float()) for rows in head.weight.split(_BLOCK)]
    logits = torch.cat(parts, dim=-1)
    return logits if head.bias is None else logits + head.bias.float()
