"""A model's modules without its weights: what can be asked of them before anything is loaded."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from ctxeval.model.source import quiet
from ctxeval.spec import ModelSpec

if TYPE_CHECKING:
    from torch import nn


def skeleton(spec: ModelSpec, config: Any) -> nn.Module | None:
    """Build the model on torch's meta device: no memory, and less than a second for most.

    Returns:
        The model, or None where its code cannot be built so; what was to be asked is then asked of the loaded model.
    """
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with quiet(), torch.device("meta"):
            model: nn.Module = AutoModelForCausalLM.from_config(
                copy.deepcopy(config), trust_remote_code=spec.trust_remote_code
            )
    # Modelling code may do anything in its constructor, values of tensors that have none included. Loading the weights
    # runs the same code, and says then what is wrong with it.
    except Exception:
        return None
    return model
