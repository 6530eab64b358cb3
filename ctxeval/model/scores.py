"""What is kept of a prompt's logits. Separate from `scoring` so that pure code need not import torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class TokenScores:
    """Scores of n tokens, each given all before it.

    nll: (n,) fp64, nats, nan where there was no gold token; argmax: (n,) int64; margin: (n,) fp64, top-1 minus top-2
    log-prob in nats.
    """

    nll: NDArray[np.float64]
    argmax: NDArray[np.int64]
    margin: NDArray[np.float64]
