"""Which layer types of a model with several rotary tables are extended. The one place that decides it."""

from __future__ import annotations

from collections.abc import Iterable

#: Words in a layer type's name that mean: attends to a bounded neighbourhood only.
LOCAL_WORDS = ("sliding", "local", "chunked", "window")


def is_local(layer_type: str) -> bool:
    """Tell whether layers of this type see only nearby tokens (`sliding_attention` and its like)."""
    return any(word in layer_type for word in LOCAL_WORDS)


def extended_types(layer_types: Iterable[str]) -> frozenset[str]:
    """Return the layer types whose frequencies a scaling changes: the global ones.

    Local layers never see a distance beyond their window, which stays as trained, so their frequencies do as well.
    Where a model has local types only, those are extended. "" stands for a model with one table for all layers.
    """
    types = frozenset(layer_types)
    return frozenset(kind for kind in types if not is_local(kind)) or types
