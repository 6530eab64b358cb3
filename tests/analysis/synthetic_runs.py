"""Whole runs in memory: cells with a known truth, and a manifest that says what they are about."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ctxeval.results.store import Run
from tests.analysis.synthetic_cells import DEPTHS, Truth, frame, needle_cells, perplexity_cells

LENGTHS = (1024, 2048, 4096)


def manifest(
    scales: Sequence[str] = ("none", "yarn"),
    lengths: Sequence[int] = LENGTHS,
    documents: int = 24,
    *,
    depths: Sequence[float] = DEPTHS,
    **identity: Any,
) -> dict[str, Any]:
    """Return a manifest as `ctxeval run` writes it; `identity` overrides parts of the identity."""
    about = {
        "schema_version": 1,
        "scoring_version": 1,
        "model": {"name": "smol", "fingerprint": "f" * 64, "dtype": "fp32", "device": "cpu", "attention": "sdpa"},
        "corpus": {"name": "sotu", "sha256": "c" * 64},
        "task": {"name": "needle", "sha256": "t" * 64},
        "versions": {"torch": "2.13.0", "transformers": "5.24.0", "tokenizers": "0.23.3"},
        "seed": 0,
        "documents": documents,
        "trials": 1,
        "native_window": 2048,
        "lengths": list(lengths),
        "depths": list(depths),
        "plan": "exact",
        "needles_per_context": 1,
        "protocol": "tail",
        "stride": None,
        "chat": False,
        "chunk": 1024,
        **identity,
    }
    return {
        "identity": about,
        "spec": {"probes": ["needle", "perplexity"], "trials": 1},
        "resolved": {
            "native_window": 2048,
            "target": max(lengths),
            "lengths": list(lengths),
            "depths": list(depths),
            "documents": documents,
            "perplexity_documents": documents,
            "plan": about["plan"],
            "scalings": [{"label": scale, "factor": 1.0 if scale == "none" else 4.0} for scale in scales],
        },
        "model": about["model"],
        "tokenizer": {"sha256": "k" * 64},
        "finished": "2026-01-01T00:00:00+00:00",
        "planned_rows": 0,
    }


def make_run(
    name: str,
    recall: Truth,
    excess: Truth = lambda scale, length: 0.0,
    *,
    seed: int = 0,
    documents: int = 24,
    scales: Sequence[str] = ("none", "yarn"),
    lengths: Sequence[int] = LENGTHS,
    correlation: float = 0.1,
    **identity: Any,
) -> Run:
    """Return a run of one needle a (scale, length, depth, document) and one loss a (scale, length, document).

    The baseline loss of a document, hence its text, is the same whatever the seed of the needles.
    """
    hits = needle_cells(np.random.default_rng(seed), recall, scales, lengths, documents, correlation=correlation)
    losses = perplexity_cells(np.random.default_rng(0), excess, scales, lengths, documents)
    return Run(Path(name), manifest(scales, lengths, documents, **identity), frame(hits, losses))


def with_cells(run: Run, cells: pd.DataFrame) -> Run:
    """Return the run with other rows."""
    return Run(run.path, run.manifest, cells)
