"""Which layer types of a model with several rotary tables are extended. The one place that decides it."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ctxeval.errors import UsageError, unknown

#: Words in a layer type's name that mean: attends to a bounded neighbourhood only.
LOCAL_WORDS = ("sliding", "local", "chunked", "window")


def is_local(layer_type: str) -> bool:
    """Tell whether layers of this type see only nearby tokens (`sliding_attention` and its like)."""
    return any(word in layer_type for word in LOCAL_WORDS)


def extended_types(layer_types: Iterable[str], local: Collection[str] = ()) -> frozenset[str]:
    """Return the layer types whose frequencies a scaling changes: the global ones.

    Local layers never see a distance beyond their window, which stays as trained, so their frequencies do as well.
    Where a model has local types only, those are extended. "" stands for a model with one table for all layers. `local`
    are types known to be local although their names do not say so.
    """
    types = frozenset(layer_types)
    return frozenset(kind for kind in types if not is_local(kind) and kind not in local) or types


def chosen_types(
    layer_types: Iterable[str], wanted: Collection[str] | None = None, local: Collection[str] = ()
) -> frozenset[str]:
    """Return the layer types to extend: `wanted`, every one where that is `all`, by default the global ones.

    `local` is as in `extended_types`.

    Raises:
        UsageError: a wanted type that the model does not have.
    """
    types = frozenset(layer_types)
    if wanted is None:
        return extended_types(types, local)
    if "all" in wanted:
        return types
    if types == {""}:
        raise UsageError(
            f"layer types {', '.join(wanted)} on a model with one set of frequencies for all layers",
            "drop --layer-types",
        )
    for name in wanted:
        if name not in types:
            raise unknown("layer type", name, (*sorted(types), "all"))
    return frozenset(wanted)
