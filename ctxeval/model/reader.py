"""Reading tokens into a model with a KV cache: append, look at some logits, rewind."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache

from ctxeval.errors import RunError
from ctxeval.model import attention
from ctxeval.model.cache import PreallocatedLayer, can_rewind, copy_states, new_cache, return_to

#: Two paths of the same mathematics may differ by this much: median over a piece's positions of the mean difference of
#: logits, as a share of their standard deviation. Single positions of a half-precision model differ wildly by any path
#: (on SmolLM2 in bf16 one of 96 random tokens is off by 5 nats, stock path against fp32); another mask moves them all.
FP32_TOLERANCE = 1e-4
_PATH_TOLERANCE = {torch.float32: FP32_TOLERANCE, torch.bfloat16: 0.1, torch.float16: 0.02}


class Reader:
    """One sequence being read by a model; `length` tokens of it are cached.

    Keys are cached under the frequencies in force while they were read: take a new reader after every patch.
    """

    def __init__(self, model: Any, capacity: int, *, whole: bool = False) -> None:
        """Make an empty reader with room for `capacity` tokens.

        With `whole` there is no cache: every sequence is read in one piece, see `ctxeval.model.reading`.
        """
        self.model = model
        self.capacity = capacity
        self.whole = whole
        self.device = model.get_input_embeddings().weight.device
        parameters = inspect.signature(model.forward).parameters
        self._cache_keyword = "cache" if "cache" in parameters else "past_key_values"
        self._takes_use_cache = "use_cache" in parameters
        self._selects_logits = "logits_to_keep" in parameters
        self.length = 0
        self._cache = None if whole else self._new_cache()
        self._kept: dict[int, dict[int, Any]] = {}

    def _new_cache(self) -> DynamicCache:
        return new_cache(self.model.config.get_text_config(decoder=True), self.capacity)

    @property
    def can_rewind(self) -> bool:
        """Whether `rewind` costs nothing and reaches every length; otherwise only those where `keep` was called."""
        return self._cache is not None and can_rewind(self._cache)

    def restart(self) -> None:
        """Forget everything that was read."""
        if self._cache is not None and self.can_rewind:
            self._cache.reset()
        elif self._cache is not None:
            self._cache = self._new_cache()
        self._kept.clear()
        self.length = 0

    @torch.inference_mode()
    def keep(self) -> None:
        """Make sure that `rewind` can come back to here: copy what cannot be cropped."""
        if self._cache is not None and not self.can_rewind:
            self._kept[self.length] = copy_states(self._cache)

    @torch.inference_mode()
    def rewind(self, length: int) -> None:
        """Forget all but the first `length` tokens.

        Raises:
            RuntimeError: the cache cannot be cropped and was not kept at `length`.
        """
        if length == 0:
            self.restart()
        elif length < self.length:
            self._kept = {kept: states for kept, states in self._kept.items() if kept <= length}
            if self._cache is None or not (self.can_rewind or length in self._kept):
                raise RuntimeError(f"nothing was kept at {length} tokens to come back to")
            return_to(self._cache, length, self._kept.get(length, {}))
            self.length = length

    def pretend(self, length: int) -> None:
        """Act as if `length` tokens had been read, with meaningless keys and values: for timing only."""
        for layer in self._cache.layers if self._cache is not None else ():
            if isinstance(layer, PreallocatedLayer):
                layer.pretend(length)
        self.length = length

    @torch.inference_mode()
    def read(self, ids: NDArray[np.int32], wanted: Sequence[int]) -> torch.Tensor:
        """Append `ids` (n,) and return the logits (len(wanted), vocabulary) after the positions `wanted`, in [0, n).

        Only the wanted rows go through the model's own head (with its soft-capping and scaling); at least one does.

        Raises:
            RuntimeError: a second piece of a sequence that must be read whole.
        """
        if self.whole and self.length:
            raise RuntimeError(f"a piece after {self.length} tokens without a cache")
        rows = torch.as_tensor(list(wanted) or [len(ids) - 1], device=self.device)
        tokens = torch.as_tensor(ids.astype(np.int64), device=self.device).unsqueeze(0)
        arguments: dict[str, Any] = {"input_ids": tokens}
        if self._cache is not None:
            arguments[self._cache_keyword] = self._cache
        if self._takes_use_cache:
            arguments["use_cache"] = not self.whole
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
        agrees = deviation(found, expected) <= tolerance(model)
    except (ValueError, RuntimeError, NotImplementedError):
        agrees = False
    if not agrees:
        model.set_attn_implementation(stock)
    return attention.NAME if agrees else stock


def deviation(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return how far logits (pieces, positions, vocabulary) are apart, as a share of their standard deviation.

    Each piece on its own: where only one has a prefix, a median over all would not see it fail.
    """
    typical = (found - expected).abs().mean(dim=2).median(dim=1).values.max()
    return float(typical / expected.std())


def tolerance(model: Any) -> float:
    """Return the `deviation` that rounding explains in this model's number format."""
    return _PATH_TOLERANCE.get(next(model.parameters()).dtype, 0.0)


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
