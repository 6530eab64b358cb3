"""Broken patches, each a defect that someone shipped. A mutant returns what the proofs say of it, "" if they miss it.

Sources are issues and pull requests of public repositories, or the file that has or had the defect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import numpy as np
import torch

from ctxeval.errors import RunError
from ctxeval.rope import scaling
from ctxeval.rope.frequencies import Scaled
from ctxeval.rope.patch import RopePatch
from ctxeval.rope.verify import prove
from tests.rope.examine import set_rope
from tests.rope.zoo import WINDOW, build, tiny_config

FACTOR, TARGET = 4.0, 4 * WINDOW
YARN = 0.1 * math.log(FACTOR) + 1
#: Name → (source, the mutant).
MUTANTS: dict[str, tuple[str, Callable[[], str]]] = {}


def mutant(source: str) -> Callable[[Callable[[], str]], Callable[[], str]]:
    """Register a mutant under its function's name."""

    def register(function: Callable[[], str]) -> Callable[[], str]:
        MUTANTS[function.__name__.replace("_", " ")] = (source, function)
        return function

    return register


def patched(
    kind: str = "llama", method: str = "yarn", native: Mapping[str, Any] | None = None, **more: Any
) -> RopePatch:
    """Return a tiny model with a healthy patch in force; `native` are rope parameters that it had before."""
    config = tiny_config(kind)
    set_rope(config, native or {})
    patch = RopePatch(build(config))
    patch.apply(method, **{"factor": FACTOR, "native_window": WINDOW, **more})
    return patch


def alarm(patch: RopePatch, target: int = TARGET) -> str:
    """Return what the proof of a patch says, "" if it finds nothing."""
    try:
        prove(patch, native_window=WINDOW, target_length=target)
    except RunError as error:
        return str(error)
    return ""


def write(patch: RopePatch, table: Any) -> str:
    """Put other frequencies (rotary_dim/2,) into a patched Llama and return the alarm."""
    patch.sites[0].write_inv_freq(torch.as_tensor(np.asarray(table), dtype=torch.float32))
    return alarm(patch)


def native_of(patch: RopePatch) -> Any:
    """Return the native frequencies of the first table, (rotary_dim/2,), fp64."""
    return patch.native[0].inv_freq.double().numpy()


def formula(method: str, function: Callable[..., Scaled]) -> str:
    """Return the alarm where a method's formula itself is wrong."""
    with mock.patch.object(scaling, "SCALINGS", {**scaling.SCALINGS, method: function}):
        return alarm(patched(method=method))
