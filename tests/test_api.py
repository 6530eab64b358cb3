"""The documented Python API: the same words as the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import ctxeval
from ctxeval.errors import UsageError

GRID: dict[str, Any] = {"length": 1024, "lengths": (512, 1024), "depths": (50.0,), "documents": 1}


@pytest.fixture(scope="module")
def model(tiny_llama: Any) -> str:
    return str(tiny_llama(window=512))


def test_every_public_name_is_there_and_no_other() -> None:
    for name in ctxeval.__all__:
        assert getattr(ctxeval, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'evaluate'"):
        ctxeval.evaluate  # noqa: B018


def test_run_returns_what_load_run_reads(model: str, tmp_path: Path) -> None:
    spec = ctxeval.RunSpec(ctxeval.ModelSpec(model, dtype="fp32", device="cpu"), scales=("none", "ntk-aware"), **GRID)
    run = ctxeval.run(spec, tmp_path / "run")
    assert isinstance(run, ctxeval.Run)
    assert isinstance(run.cells, pd.DataFrame)
    assert set(run.cells["scale"]) == {"none", "ntk"}
    assert set(run.cells["probe"]) == {"needle", "perplexity"}
    again = ctxeval.load_run(tmp_path / "run")
    pd.testing.assert_frame_equal(again.cells, run.cells)
    assert again.manifest == run.manifest
    assert again.headline().rows


def test_scaled_rope_changes_the_logits_inside_the_block_only(model: str) -> None:
    loaded = ctxeval.load_model(model, dtype="fp32", device="cpu")
    assert isinstance(loaded, ctxeval.LanguageModel)
    ids = torch.arange(3, 60)[None]

    def logits() -> Any:
        with torch.inference_mode():
            return loaded.model(input_ids=ids).logits.numpy()

    before = logits()
    for target in (loaded, loaded.model):
        with ctxeval.scaled_rope(target, "yarn", factor=4):
            assert np.abs(logits() - before).max() > 1e-3
        assert np.array_equal(logits(), before)
    with pytest.raises(ZeroDivisionError), ctxeval.scaled_rope(loaded, "pi", factor=2, native_window=512):
        raise ZeroDivisionError
    assert np.array_equal(logits(), before)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"scales": ("yarm",)}, "unknown scaling 'yarm'"),
        ({"probes": ("needles",)}, "unknown probe 'needles'. Did you mean 'needle'"),
        ({"protocol": "tial"}, "unknown protocol 'tial'"),
        ({"perplexity_documents": -1}, "perplexity_documents is -1"),
        ({"stride": 0}, "stride is 0"),
        ({"lengths": ()}, "no lengths in the grid"),
        ({"depths": (150.0,)}, "depth 150 is outside"),
        ({"documents": 0}, "documents is 0"),
        ({"scales": ()}, "no scaling"),
    ],
)
def test_a_spec_is_checked_as_a_command_line_is(fields: dict[str, Any], words: str, model: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        ctxeval.run(ctxeval.RunSpec(ctxeval.ModelSpec(model), **{**GRID, **fields}), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_another_spec_cannot_resume_a_run(model: str, tmp_path: Path) -> None:
    spec = ctxeval.RunSpec(ctxeval.ModelSpec(model, dtype="fp32", device="cpu"), probes=("perplexity",), **GRID)
    ctxeval.run(spec, tmp_path / "run")
    other = ctxeval.RunSpec(spec.model, probes=("perplexity",), scales=("none", "pi"), **GRID)
    with pytest.raises(UsageError, match=r"begun with other options: scales \('none',\) → \('none', 'pi'\)"):
        ctxeval.run(other, resume=tmp_path / "run")
