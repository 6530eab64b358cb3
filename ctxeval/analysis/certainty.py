"""How sure a model is of its answers: the log-probability moves before the hit rate does."""

from __future__ import annotations

import pandas as pd

from ctxeval.analysis.recall import CELL_COLUMNS, asked


def logprob_table(cells: pd.DataFrame) -> pd.DataFrame:
    """Return one row a (scale, context_length, depth_percent): `logprob` (nats, mean over needles), `n`.

    The log-probability is that of the whole gold answer. Rows without one (NaN logits, out of memory) are left out.
    """
    rows = asked(cells)
    rows = rows[(rows["status"] == "ok") & rows["answer_logprob"].notna()]
    table = rows.groupby(CELL_COLUMNS)["answer_logprob"].agg(["mean", "size"]).reset_index()
    return table.rename(columns={"mean": "logprob", "size": "n"})
