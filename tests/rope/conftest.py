"""Tiny random models, with weights large enough that attention, and so RoPE, moves the logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from hypothesis import settings

# No deadline, as the machine may be busy; no database, so that a run leaves nothing behind.
settings.register_profile("rope", deadline=None, database=None, max_examples=60)
settings.load_profile("rope")

WINDOW = 256
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 256,
    "max_position_embeddings": WINDOW,
    "sliding_window": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def build(kind: str, rope: dict[str, Any] | None = None, weights: Any = None, **extra: Any) -> Any:
    """Build a model of type `kind` with these rope parameters, and either `weights` or fresh random ones."""
    known = transformers.AutoConfig.for_model(kind)
    sizes = {name: value for name, value in SIZES.items() if getattr(known, name, None) is not None}
    config = transformers.AutoConfig.for_model(kind, **{**sizes, **extra})
    if rope is not None:  # after construction, as Phi-3 turns the yarn of its constructor into longrope
        config.rope_parameters = rope
    config._attn_implementation = "eager"
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    if weights is not None:
        model.load_state_dict(weights)
        return model
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                deviation = 1.0 if "embed" in name else 1.5 / parameter.shape[1] ** 0.5
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * deviation)
    return model


@pytest.fixture
def make() -> Callable[..., Any]:
    return build


@pytest.fixture
def llama() -> Any:
    return build("llama")


@pytest.fixture
def prompt() -> torch.Tensor:
    return torch.randint(3, 256, (1, 64), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def logits(prompt: torch.Tensor) -> Callable[[Any], torch.Tensor]:
    def forward(model: Any) -> torch.Tensor:
        with torch.no_grad():
            result: torch.Tensor = model(input_ids=prompt, use_cache=False).logits
        return result

    return forward
