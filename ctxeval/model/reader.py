"""Reading tokens into a model with a KV cache: append, look at some logits, rewind."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ctxeval.errors import RunError
from ctxeval.model import attention
from ctxeval.model.cache import PreallocatedLayer, can_rewind, new_cache

#: Two paths of the same mathematics may differ by this much: median over a piece's positions of the mean difference of
#: logits, as a share of their standard deviation. Single positions of a half-precision model differ wildly by any path
#: (on SmolLM2 in bf16 one of 96 random tokens is off by 5 nats, stock path against fp32); another mask moves them all.
_PATH_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}


class Reader:
    """One sequence being read by a model; `length` tokens of it are cached.

    Keys are cached under the frequencies in force while they were read: take a new reader after every patch.
    """

    def __init__(self, model: Any, capacity: int) -> None:
        """Make an empty reader with room for `capacity` tokens."""
        self.model = model
        self.capacity = capacity
        self.device = model.get_input_embeddings().weight.device
        parameters = inspect.signature(model.forward).parameters
        self._cache_keyword = "cache" if "cache" in parameters else "past_key_values"
        self._selects_logits = "logits_to_keep" in parameters
        self.length = 0
        self._cache = new_cache(model.config.get_text_config(decoder=True), capacity)

    @property
    def can_rewind(self) -> bool:
        """Whether `rewind` is exact for this model's cache; otherwise every prompt needs a fresh start."""
        return can_rewind(self._cache)

    def restart(self) -> None:
        """Forget everything that was read."""
        if self.can_rewind:
            self._cache.reset()
        else:
            self._cache = new_cache(self.model.config.get_text_config(decoder=True), self.capacity)
        self.length = 0

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        if length == 0:
            self.restart()
        elif length < self.length:
            self._cache.crop(length - self.length)
            self.length = length

    def pretend(self, length: int) -> None:
        """Act as if `length` tokens had been read, with meaningless keys and values: for timing only."""
        for layer in self._cache.layers:
            if isinstance(layer, PreallocatedLayer):
                layer.pretend(length)
        self.length = length

    @torch.inference_mode()
    def read(self, ids: NDArray[np.int32], wanted: Sequence[int]) -> torch.Tensor:
        """Append `ids` (n,) and return the logits (len(wanted), vocabulary) after the positions `wanted`, in [0, n).

        Only the wanted rows go through the model's own head (with its soft-capping and scaling); at least one does.
        """
        rows = torch.as_tensor(list(wanted) or [len(ids) - 1], device=self.device)
        tokens = torch.as_tensor(ids.astype(np.int64), device=self.device).unsqueeze(0)
        arguments: dict[str, Any] = {"input_ids": tokens, self._cache_keyword: self._cache, "use_cache": True}
        if self._selects_logits:
            arguments["logits_to_keep"] = rows
        logits: torch.Tensor = self.model(**arguments).logits[0]
        self.length += len(ids)
        if not self._selects_logits:
            logits = logits[rows]
        return logits if len(wanted) else logits[:0]


def choose_attention(model: Any, requested: str | None = None) -> str:
    """Switch `model` to prefix attention if it gives the stock path's logits on this very model.

    The proof reads the same tokens in two pieces through both paths. Where they differ, where the layers need more
    than plain causal attention, or where another implementation was requested, the stock path stays.

    Returns:
        The name of the path that is in force, for the manifest.
    """
    stock: str = model.config._attn_implementation
    if requested is not None or stock != "sdpa" or not attention.is_plain(model.config.get_text_config(decoder=True)):
        return stock
    attention.register()
    expected = _two_pieces(model)
    model.set_attn_implementation(attention.NAME)
    try:
        found = _two_pieces(model)
        # Each piece on its own: only the second has a prefix, and a median over both would not see it fail.
        typical = float((found - expected).abs().mean(dim=2).median(dim=1).values.max())
        agrees = typical <= _PATH_TOLERANCE.get(next(model.parameters()).dtype, 0.0) * float(expected.std())
    except (ValueError, RuntimeError, NotImplementedError):
        agrees = False
    if not agrees:
        model.set_attn_implementation(stock)
    return attention.NAME if agrees else stock


def _two_pieces(model: Any, length: int = 96) -> torch.Tensor:
    """Return the logits (2, length / 2, vocabulary) of random tokens that are read half by half."""
    vocabulary = model.get_input_embeddings().weight.shape[0]
    ids = np.random.default_rng(0).integers(0, vocabulary, length).astype(np.int32)
    reader = Reader(model, length)
    first = reader.read(ids[: length // 2], range(length // 2))
    second = reader.read(ids[length // 2 :], range(length - length // 2))
    logits = torch.stack([first, second]).float()
    if not bool(torch.isfinite(logits).all()):
        raise RunError("the model's logits are not finite on a short prompt", "are its weights and dtype intact?")
    return logits
