"""The published run of SmolLM2 is whole, proved, and agrees with transformers alone. Run by `make acceptance`."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from ctxeval.prepare import prepare
from ctxeval.results.store import Run, load_run
from ctxeval.spec import spec_from_dict

FOLDER = Path(__file__).resolve().parents[2] / "results/smollm2-135m-instruct"
SCALES = ("none", "pi", "ntk", "yarn")
NEEDLE_DOCUMENTS, PERPLEXITY_DOCUMENTS, EXACT_ROWS = 16, 8, 12

pytestmark = pytest.mark.acceptance


@pytest.fixture(scope="module")
def published() -> Run:
    return load_run(FOLDER)


@pytest.mark.parametrize("scale", SCALES)
def test_it_is_whole(published: Run, scale: str) -> None:
    cells = published.cells[(published.cells["scale"] == scale) & (published.cells["control"] == "")]
    assert (cells["status"] == "ok").all()
    needles, losses = cells[cells["probe"] == "needle"], cells[cells["probe"] == "perplexity"]
    packed, exact = needles[needles["plan"] == "packed"], needles[needles["plan"] == "exact"]
    for length in (2048, 4096, 6144, 8192, 10240, 12288, 16384):
        assert packed.loc[packed["context_length"] == length, "document"].nunique() == NEEDLE_DOCUMENTS
        assert losses.loc[losses["context_length"] == length, "document"].nunique() == PERPLEXITY_DOCUMENTS
    assert packed.groupby(["context_length", "depth_percent"]).size().min() >= 5
    assert len(exact) >= EXACT_ROWS


def test_every_scaling_was_proved(published: Run) -> None:
    proofs = published.manifest["proofs"]
    assert set(proofs) == set(SCALES)
    assert proofs["none"]["logits_change"] == 0 and all(proofs[scale]["logits_change"] > 0 for scale in SCALES[1:])
    assert len({proof["frequencies_sha256"] for proof in proofs.values()}) == len(SCALES)


def test_what_is_not_there_is_not_found(published: Run) -> None:
    controls = published.cells[published.cells["control"] == "no-needle"]
    assert len(controls) >= len(SCALES) * 7 * NEEDLE_DOCUMENTS
    assert controls["correct"].astype(bool).mean() < 0.01


def test_a_loss_equals_that_of_transformers_alone(published: Run) -> None:
    from transformers import AutoModelForCausalLM, GgufConfig

    spec = spec_from_dict(published.manifest["spec"])
    folder = Path(spec.model.name_or_path)
    (gguf,) = folder.glob("*.gguf")
    document = prepare(spec).agenda.documents[0]
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=gguf.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    ).eval()
    ids = torch.as_tensor(document.ids[:2048].astype(np.int64))[None]
    with torch.inference_mode():
        rows = model(ids, logits_to_keep=1025).logits[0, :-1].float().log_softmax(-1)
    expected = -float(rows.gather(1, ids[0, -1024:, None]).sum())
    row = published.cells.query(
        "probe == 'perplexity' and scale == 'none' and control == '' and context_length == 2048 and document == 0"
    ).iloc[0]
    assert row["n_tokens"] == 1024
    # The run is in bf16; a token differs by hundredths of a nat, the mean of 1,024 by much less.
    assert math.isclose(row["nll"] / 1024, expected / 1024, abs_tol=0.01)
