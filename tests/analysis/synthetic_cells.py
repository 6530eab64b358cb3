"""Cells with a known truth: hits and losses drawn for given rates, as rows of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ctxeval.results.schema import Cell, NeedleCell, PerplexityCell
from ctxeval.results.store import to_frame

DEPTHS = tuple(100 * step / 8 for step in range(9))
#: Recall, or mean excess loss in nats, of a scaling at a length (tokens) and a depth (percent).
Truth = Callable[[str, int], float]


def probability(generator: np.random.Generator, mean: float, correlation: float, size: int) -> Any:
    """Draw the hit rates of documents (size,): beta-distributed, so that two rows of one correlate by `correlation`."""
    if correlation == 0 or mean in (0, 1):
        return np.full(size, mean)
    spread = 1 / correlation - 1
    return generator.beta(mean * spread, (1 - mean) * spread, size=size)


def needle_cells(
    generator: np.random.Generator,
    truth: Truth,
    scales: Sequence[str],
    lengths: Sequence[int],
    documents: int,
    *,
    correlation: float = 0.1,
    depths: Sequence[float] = DEPTHS,
    plan: Any = "exact",
    **columns: Any,
) -> list[Cell]:
    """Draw one needle a (scale, length, depth, document)."""
    cells: list[Cell] = []
    for scale in scales:
        for length in lengths:
            rates = probability(generator, truth(scale, length), correlation, documents)
            hits = generator.random((documents, len(depths))) < rates[:, None]
            for document in range(documents):
                for index, depth in enumerate(depths):
                    position = int(depth / 100 * (length - 64))
                    fields = {
                        "cell_id": f"{plan}-{scale}-{length}-{depth:g}-{document}-{columns.get('control', '')}",
                        "probe": "needle",
                        "task": "needle",
                        "control": "",
                        "plan": plan,
                        "scale": scale,
                        "factor": 1.0 if scale == "none" else 4.0,
                        "context_length": length,
                        "depth_percent": depth,
                        "document": document,
                        "trial": 0,
                        "needle_id": f"{document}-{position}",
                        "needle_position": position,
                        "needle_distance": length - position,
                        "n_needles": 1,
                        "expected": "12345",
                        "correct": bool(hits[document, index]),
                    }
                    cells.append(NeedleCell(**{**fields, **columns}))
    return cells


def perplexity_cells(
    generator: np.random.Generator,
    excess: Truth,
    scales: Sequence[str],
    lengths: Sequence[int],
    documents: int,
    *,
    spread: float = 0.02,
    tokens: int = 512,
) -> list[Cell]:
    """Draw one loss a (scale, length, document): baseline plus `excess` nats a token, with `spread` over documents."""
    cells: list[Cell] = []
    difficulty = generator.normal(3.0, 0.3, size=documents)
    for scale in scales:
        for length in lengths:
            shift = excess(scale, length) + generator.normal(0, spread, size=documents) * (excess(scale, length) != 0)
            for document in range(documents):
                cells.append(
                    PerplexityCell(
                        cell_id=f"p-{scale}-{length}-{document}",
                        probe="perplexity",
                        task="perplexity",
                        control="",
                        plan="exact",
                        scale=scale,
                        factor=1.0 if scale == "none" else 4.0,
                        context_length=length,
                        depth_percent=math.nan,
                        document=document,
                        trial=0,
                        protocol="tail",
                        window=length,
                        stride=0,
                        n_tokens=tokens,
                        bytes=4 * tokens,
                        nll=tokens * float(difficulty[document] + shift[document]),
                        baseline_nll=tokens * float(difficulty[document]),
                    )
                )
    return cells


def frame(*groups: Sequence[Cell]) -> pd.DataFrame:
    """Return the cells as a run has them."""
    return to_frame([cell for group in groups for cell in group])
