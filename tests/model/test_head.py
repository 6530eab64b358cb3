"""The widened head gives the logits that fp32 arithmetic gives for the same hidden states."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ctxeval.model.head import widen_head
from ctxeval.model.load import load_model


def test_half_precision_logits_become_those_of_an_fp32_head(tiny_llama: Any) -> None:
    model = load_model(str(tiny_llama()), dtype="bf16").model
    ids = torch.arange(3, 60)[None]
    with torch.inference_mode():
        hidden = model.model(ids).last_hidden_state
        narrow = model(ids).logits
        assert widen_head(model)
        wide = model(ids).logits
        expected = hidden.double() @ model.get_output_embeddings().weight.double().T
    assert narrow.dtype == torch.bfloat16 and wide.dtype == torch.float32
    assert (wide.double() - expected).abs().max() < 1e-4 < (narrow.double() - expected).abs().max()


def test_an_fp32_head_is_left_as_it_is(tiny_llama: Any) -> None:
    model = load_model(str(tiny_llama()), dtype="fp32").model
    ids = torch.arange(3, 60)[None]
    with torch.inference_mode():
        before = model(ids).logits
        assert widen_head(model)
        assert torch.equal(model(ids).logits, before)


def test_a_head_of_another_kind_is_left_alone() -> None:
    class Odd(nn.Linear):
        pass

    class Model:
        def get_output_embeddings(self) -> nn.Module:
            return Odd(4, 4, dtype=torch.bfloat16)

    assert not widen_head(Model())
