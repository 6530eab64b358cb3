"""What the logits of a short prompt prove of a patch: that the model runs through it, and follows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ctxeval.errors import RunError
from ctxeval.rope.base import Base
from ctxeval.rope.frequencies import Scaled
from ctxeval.rope.patch import RopePatch

#: Tokens of the prompt whose logits are compared, at most. Long enough for slow pairs to show in bf16.
PROMPT_TOKENS = 128


def logits(patch: RopePatch, prompt: Tensor, called: set[tuple[int, str]] | None = None) -> Tensor:
    """Forward `prompt` (1, tokens) without a cache and return logits (1, tokens, vocabulary).

    `called` receives (id of the module, layer type) of every rotary table that was asked for.
    """

    def note(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> None:
        if called is not None:
            called.add((id(module), keywords.get("layer_type", arguments[2] if len(arguments) > 2 else None) or ""))

    modules = {id(site.module): site.module for site in patch.sites}.values()
    handles = [module.register_forward_hook(note, with_kwargs=True) for module in modules]
    try:
        with torch.no_grad():
            result: Tensor = patch.model(input_ids=prompt, use_cache=False).logits
    finally:
        for handle in handles:
            handle.remove()
    return result


def first_prompt(model: nn.Module, native_window: int) -> Tensor:
    """Return token ids (1, tokens) counted through the vocabulary, no longer than the native window."""
    embedding: Any = model.get_input_embeddings()  # type: ignore[operator]
    count = min(PROMPT_TOKENS, native_window)
    # Distinct ids where the vocabulary allows, spread over it; 7919 is a prime that divides no usual vocabulary.
    ids = torch.arange(1, count + 1) * 7919 % embedding.weight.shape[0]
    prompt: Tensor = ids[None].to(embedding.weight.device)
    return prompt


def mean_change(one: Tensor, other: Tensor) -> float:
    """Return the mean absolute difference of two tensors of logits."""
    return float((one - other).abs().float().mean())


def check_called(patch: RopePatch, called: set[tuple[int, str]]) -> tuple[str, ...]:
    """The model runs through the sites that are scaled. Returns the sites that it did not ask for."""
    unused = tuple(site for site in patch.sites if (id(site.module), site.prefix) not in called)
    if all(site in unused for site in patch.sites if site.extended):
        raise RunError(f"the model never calls {', '.join(site.label for site in unused)}", "patching has no effect")
    return tuple(site.label for site in unused)


def check_change(patch: RopePatch, same: bool, before: Tensor, after: Tensor) -> float:
    """Logits (1, tokens, vocabulary) move exactly if the setting is not the native state (`same`).

    Returns the largest change.
    """
    tokens = before.shape[1]
    if not (torch.isfinite(after).all() and torch.isfinite(before).all()):
        raise RunError(f"logits are not finite on a prompt of {tokens} tokens")
    change = float((after - before).abs().max())
    if same and not torch.equal(after, before):
        raise RunError(
            f"{patch.applied.method} is the native state, yet logits differ by {change:.3g} from the unpatched model",
            "is the model in eval mode?",
        )
    if not same and change == 0:
        raise RunError(f"{patch.applied.method} changed no logit on a prompt of {tokens} tokens")
    return change


def same_tables(wanted: Sequence[Scaled], native: Sequence[Base]) -> bool:
    """Tell whether a setting is the native state, bit for bit."""
    return all(
        np.array_equal(scaled.inv_freq, base.inv_freq) and scaled.attention_factor == base.attention_factor
        for scaled, base in zip(wanted, native, strict=True)
    )


def double_temperature(patch: RopePatch, wanted: Sequence[Scaled], native: Sequence[Base], softmax: float) -> bool:
    """Double the temperature wherever the scaling has one, at equal frequencies; False where it has none.

    Twice is exact in every floating-point format, so that a model which normalises q and k afterwards shows no
    rounding either.
    """
    sites = [
        (site, scaled.attention_factor)
        for site, base, scaled in zip(patch.sites, native, wanted, strict=True)
        if site.extended and scaled.attention_factor != base.attention_factor
    ]
    for site, factor in sites:
        site.write_attention_scaling(2 * factor)
    for scale in patch.softmax if softmax != 1 else ():
        scale.write(2 * scale.value)
    return bool(sites) or softmax != 1
