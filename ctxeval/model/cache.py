"""A KV cache with preallocated storage: appending copies only the new tokens, cropping only moves a number.

transformers' DynamicCache concatenates, which copies the whole cache at every chunk and at every question.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer


class PreallocatedLayer(DynamicLayer):
    """Keys and values of one full-attention layer in storage of a fixed capacity.

    keys, values: views (batch, kv_heads, length, head_dim) of the part that is filled.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # transformers annotates no return
        self.capacity = capacity
        self.length = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate the storage once the shapes are known."""
        self.device = key_states.device
        self._keys, self._values = (
            states.new_zeros((*states.shape[:2], self.capacity, states.shape[3]))
            for states in (key_states, value_states)
        )
        self.is_initialized = True
        self._show(0)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append (batch, kv_heads, new, head_dim) and return views of everything up to now."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, stop = self.length, self.length + key_states.shape[2]
        if stop > self.capacity:
            raise IndexError(f"{stop} tokens in a cache of {self.capacity}")
        self._keys[:, :, start:stop] = key_states
        self._values[:, :, start:stop] = value_states
        self._show(stop)
        return self._keys[:, :, :stop], self._values[:, :, :stop]

    def get_seq_length(self) -> int:
        """Return the number of cached tokens."""
        return self.length

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last `-tokens_to_remove` tokens; nothing is copied."""
        self._show(self.length + tokens_to_remove)

    def reset(self) -> None:
        """Forget all tokens and keep the storage."""
        self._show(0)

    def pretend(self, length: int) -> None:
        """Show `length` tokens of whatever the storage holds: for timing only."""
        self._show(length)

    def _show(self, length: int) -> None:
        if not 0 <= length <= self.capacity:
            raise IndexError(f"{length} tokens in a cache of {self.capacity}")
        self.length = length
        if self.is_initialized:
            self.keys = self._keys[:, :, :length]
            self.values = self._values[:, :, :length]


def new_cache(config: Any, capacity: int) -> DynamicCache:
    """Return an empty cache for `config` with room for `capacity` tokens.

    Only plain full-attention layers are replaced; sliding, recurrent and other layers stay transformers' own.
    """
    cache = DynamicCache(config=config)
    cache.layers = [PreallocatedLayer(capacity) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def can_rewind(cache: DynamicCache) -> bool:
    """Tell whether every layer can be cropped exactly, at any length."""
    return bool(cache.layers) and all(isinstance(layer, PreallocatedLayer) for layer in cache.layers)


def copy_states(cache: DynamicCache) -> dict[int, Any]:
    """Copy the layers that cannot be cropped (sliding, recurrent and other ones), by their index."""
    return {
        index: copy.deepcopy(layer)
        for index, layer in enumerate(cache.layers)
        if not isinstance(layer, PreallocatedLayer)
    }


def return_to(cache: DynamicCache, length: int, states: Mapping[int, Any]) -> None:
    """Forget all but the first `length` tokens; `states` is what `copy_states` gave when there were as many."""
    for index, layer in enumerate(cache.layers):
        if isinstance(layer, PreallocatedLayer):
            layer.crop(length - layer.get_seq_length())
        else:
            cache.layers[index] = copy.deepcopy(states[index])
