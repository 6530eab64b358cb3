"""Does asking several needles in one pass give what asking each alone gives?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ctxeval.analysis.recall import asked, scored
from ctxeval.analysis.stats import Estimate, cluster_proportion, sign_flip_p

KEYS = ["scale", "document", "needle_id", "context_length"]
ALARM = 0.05


@dataclass(frozen=True)
class Agreement:
    """How far packed and exact rows of the same needles agree.

    `packed` and `exact` are the recalls on the pairs; `p_value` is that of their difference under sign-flips of whole
    documents, `row_p_value` that under sign-flips of single rows, as if those of a document had nothing in common.
    """

    same: Estimate
    packed: float
    exact: float
    p_value: float
    row_p_value: float

    @property
    def conclusive(self) -> bool:
        """Whether there are documents enough for `differs` to be true at all: 2 of 2^D sign patterns are as extreme."""
        return 2.0 * 0.5**self.same.documents < ALARM

    @property
    def differs(self) -> bool:
        """Whether the two plans differ by more than chance explains."""
        return self.p_value < ALARM

    @property
    def contradicts(self) -> bool:
        """Whether, in too few documents to tell, most rows disagree, or more than chance would have it by rows."""
        return not self.conclusive and (self.same.value < 0.5 or self.row_p_value < ALARM)


def plan_agreement(cells: pd.DataFrame) -> Agreement | None:
    """Compare packed with exact rows at equal scale, document, needle and length; `None` where no pair exists."""
    packed = scored(asked(cells, "packed")).drop_duplicates(KEYS)
    exact = scored(asked(cells, "exact")).drop_duplicates(KEYS)
    pairs = packed[[*KEYS, "hit"]].merge(exact[[*KEYS, "hit"]], on=KEYS, suffixes=("_packed", "_exact"))
    equal = (pairs["hit_packed"] == pairs["hit_exact"]).astype(float)
    share = cluster_proportion(equal, np.ones(len(pairs)), pairs["document"])
    if share is None:
        return None
    shift = pairs["hit_packed"] - pairs["hit_exact"]
    return Agreement(
        same=share.estimate(),
        packed=float(pairs["hit_packed"].mean()),
        exact=float(pairs["hit_exact"].mean()),
        p_value=sign_flip_p(shift.groupby(pairs["document"]).sum()),
        row_p_value=sign_flip_p(shift),
    )
