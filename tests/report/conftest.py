"""A small run with a known truth and no chance in it: 8 documents, 7 lengths, 4 scalings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ctxeval.results.store import Run
from tests.analysis.synthetic_cells import frame, needle_cells, perplexity_cells

LENGTHS = (4096, 8192, 10240, 12288, 16384, 24576, 32768)
SCALES = ("pi", "none", "ntk", "yarn")
NATIVE = 8192
MakeRun = Callable[..., Run]


def recall(scale: str, length: int) -> float:
    if scale == "pi":
        return 0.0
    edge = NATIVE if scale == "none" else 12288
    return 1.0 if length <= edge else 0.0


def excess(scale: str, length: int) -> float:
    if scale == "none":
        return 0.0 if length <= NATIVE else 8.0
    return 0.5 if scale == "pi" else -0.02


def manifest(**model: Any) -> dict[str, Any]:
    resolved = {
        "native_window": NATIVE,
        "lengths": list(LENGTHS),
        "documents": 16,
        "task": "needle",
        "protocol": "tail",
        "plan": "exact",
        "scalings": [{"label": scale} for scale in SCALES],
    }
    about = {"name": "smol", "quantization": "Q4_1", **model}
    return {"identity": {}, "model": about, "dtype": "bfloat16", "device": "cpu", "resolved": resolved, "finished": "x"}


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Return a factory: `make_run(probes="np", lengths=…, cells=…, model={…})`."""

    def factory(
        probes: str = "np", lengths: Any = LENGTHS, cells: pd.DataFrame | None = None, model: Any = None
    ) -> Run:
        generator = np.random.default_rng(0)
        groups = []
        if "n" in probes:
            groups.append(needle_cells(generator, recall, SCALES, lengths, 16, correlation=0, depths=(0, 50, 100)))
        if "p" in probes:
            groups.append(perplexity_cells(generator, excess, SCALES, lengths, 16, spread=0.0))
        about = manifest(**(model or {}))
        about["resolved"]["lengths"] = list(lengths)
        return Run(tmp_path, about, frame(*groups) if cells is None else cells)

    return factory
