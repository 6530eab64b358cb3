"""A half-precision model that computes in fp32 for a while, for proofs that rounding would hide."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

_HALF = (torch.bfloat16, torch.float16)


@contextmanager
def in_fp32(model: nn.Module) -> Iterator[None]:
    """Widen the weights of one layer at a time, while it runs, and put the very same tensors back behind it.

    So the memory of one layer is needed, not that of a second model. Activations and a new cache come out in fp32.
    """
    handles = []
    for unit, whole in _units(model):
        held: list[tuple[dict[str, Any], str, Any]] = []
        part = unit.modules() if whole else (unit,)
        places = [tensors for one in part for tensors in (one._parameters, one._buffers)]

        def widen(*_: Any, places: Any = places, held: Any = held) -> None:
            for tensors in places:
                for name, values in tensors.items():
                    if values is not None and values.dtype in _HALF:
                        held.append((tensors, name, values))
                        tensors[name] = values.detach().float()

        def put_back(*_: Any, held: Any = held) -> None:
            while held:
                tensors, name, values = held.pop()
                tensors[name] = values

        handles += [
            unit.register_forward_pre_hook(widen),
            unit.register_forward_hook(put_back, always_call=True),  # also where the layer raises
        ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _units(model: nn.Module) -> Iterator[tuple[nn.Module, bool]]:
    """Yield the outermost members of module lists, as a whole, and all other modules, each for its own weights only.

    A layer as a whole, since its code may use the weights of modules that it never calls.
    """
    inside: set[int] = set()
    for module in model.modules():
        if id(module) in inside:
            continue
        if isinstance(module, nn.ModuleList):
            for layer in module:
                inside.update(id(one) for one in layer.modules())
                yield layer, True
        else:
            yield module, False
