"""From logits to what is kept of them: loss, arg-max and margin of single tokens."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from ctxeval.model.scores import TokenScores

#: Rows of logits that are widened to fp32 at a time.
_BLOCK_ROWS = 256


def score_rows(logits: torch.Tensor, gold: NDArray[np.int64]) -> TokenScores:
    """Score `logits` (n, vocabulary) against `gold` (n,) token ids; a negative id means that there is none.

    NaN logits give a NaN `nll` and `margin`; the caller tells them from a missing gold token by its id.
    """
    nlls, tops, margins = [], [], []
    for start in range(0, logits.shape[0], _BLOCK_ROWS):
        rows = logits[start : start + _BLOCK_ROWS].float()
        ids = torch.as_tensor(gold[start : start + _BLOCK_ROWS], device=rows.device)
        picked = rows.gather(1, ids.clamp(min=0).unsqueeze(1)).squeeze(1)
        nlls.append((rows.logsumexp(dim=1) - picked).masked_fill(ids < 0, torch.nan).double().cpu())
        # Not topk's first index: among equal logits it takes another than argmax, and so than greedy decoding.
        tops.append(rows.argmax(dim=1).cpu())
        best = rows.topk(2, dim=1).values
        margins.append((best[:, 0] - best[:, 1]).double().cpu())
    return TokenScores(torch.cat(nlls).numpy(), torch.cat(tops).numpy(), torch.cat(margins).numpy())
