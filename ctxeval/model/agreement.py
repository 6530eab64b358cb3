"""Whether a cache gives the numbers of a run without it, under the frequencies that are in force now."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ctxeval.model.precise import in_fp32
from ctxeval.model.reader import FP32_TOLERANCE, Reader, deviation, tolerance


@dataclass(frozen=True)
class CacheAgreement:
    """Deviations of logits, as a share of their standard deviation, and what rounding explains of them.

    `chunked`: a prompt read in four pieces behind a cache, against one pass without. `forked`: a second ending read
    after the first was rewound, against a cold run with an empty cache.
    """

    chunked: float
    forked: float
    tolerance: float


def cache_agreement(model: Any, tokens: int) -> CacheAgreement:
    """Read `tokens` random tokens in these ways; half-precision weights are widened for it where they can be.

    Raises:
        RuntimeError, TypeError, ValueError: the model takes no cache, or no such pieces.
    """
    half = tolerance(model) > FP32_TOLERANCE and not hasattr(model, "hf_device_map")
    with in_fp32(model) if half else nullcontext():
        chunked, forked = _measure(model, tokens)
    return CacheAgreement(chunked, forked, FP32_TOLERANCE if half else tolerance(model))


def _measure(model: Any, tokens: int) -> tuple[float, float]:
    vocabulary = model.get_input_embeddings().weight.shape[0]
    branch = max(tokens // 4, 1)
    ids = np.random.default_rng(1).integers(0, vocabulary, tokens + branch).astype(np.int32)
    common, ends = ids[: tokens - branch], (ids[tokens - branch : tokens], ids[tokens:])
    whole = Reader(model, tokens, whole=True)
    expected = _last(whole, np.concatenate([common, ends[0]]), branch)
    reader = Reader(model, tokens)
    for piece in np.array_split(common, 3):
        reader.read(piece, [])
    reader.keep()
    chunked = deviation(_last(reader, ends[0], branch)[None], expected[None])
    reader.rewind(len(common))
    forked = _last(reader, ends[1], branch)
    cold = Reader(model, tokens)
    cold.read(common, [])
    return chunked, deviation(forked[None], _last(cold, ends[1], branch)[None])


def _last(reader: Reader, ids: NDArray[np.int32], count: int) -> torch.Tensor:
    """Append `ids` and return the logits (count, vocabulary), fp32, after the last `count` of them."""
    return reader.read(ids, range(len(ids) - count, len(ids))).float()
