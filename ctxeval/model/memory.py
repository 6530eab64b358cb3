"""Telling an exhausted memory from other errors."""

from __future__ import annotations

import torch


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether torch ran out of memory; on a CPU it says so in a RuntimeError's text only."""
    said = str(error).lower()
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(
        words in said for words in ("out of memory", "can't allocate memory", "not enough memory")
    )
