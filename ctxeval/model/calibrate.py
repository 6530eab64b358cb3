"""Measure how fast this machine runs this model, in a few short passes, to predict a run's minutes."""

from __future__ import annotations

import time

import numpy as np

from ctxeval.engine.budget import Geometry, Speed, segment_cost
from ctxeval.model.reader import Reader


def calibrate(reader: Reader, geometry: Geometry, chunk: int, longest: int) -> Speed:
    """Time a short pass, a full chunk, and a full chunk behind the longest prefix, and fit the three speeds."""
    chunk = max(min(chunk, longest // 2), 2)
    # The first pass pays for allocations and for the libraries' warm-up.
    _seconds(reader, chunk, 0)
    short, full = _seconds(reader, 1, 0), _seconds(reader, chunk, 0)
    behind = longest - chunk
    near_cost, far_cost = segment_cost(geometry, 0, chunk), segment_cost(geometry, behind, chunk)
    dense = near_cost.dense_flops / max(full - short, 1e-6)
    if not reader.can_rewind:  # nothing to put in front: attention as fast as the rest
        return Speed(dense, dense, short)
    far = _seconds(reader, chunk, behind)
    attention = max(far_cost.attention_flops - near_cost.attention_flops, 1) / max(far - full, 1e-6)
    return Speed(dense, attention, short)


def _seconds(reader: Reader, tokens: int, behind: int) -> float:
    """Time one pass of `tokens` tokens behind `behind` cached ones, whose values do not matter for the time."""
    reader.restart()
    reader.pretend(behind)
    ids = np.zeros(tokens, dtype=np.int32)
    began = time.perf_counter()
    reader.read(ids, [tokens - 1])
    took = time.perf_counter() - began
    reader.restart()
    return took
