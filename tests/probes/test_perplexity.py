"""Every token is scored exactly once, losses are summed, and the two models are scored on the same tokens."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ctxeval.engine.execute import execute
from ctxeval.engine.plan import Prompt, build_tree, unshared
from ctxeval.model.load import load_model
from ctxeval.model.reader import Reader
from ctxeval.model.scores import TokenScores
from ctxeval.probes.measurement import Measurement
from ctxeval.probes.perplexity import BASELINE, PerplexityProbe, Window, sliding, tail_tokens
from ctxeval.text.assemble import Frame
from ctxeval.text.documents import Document

NATIVE = 64
LENGTHS = (32, 64, 100, 192)
Numbered = Callable[[int], Document]


@pytest.fixture(params=[True, False], ids=["bos", "no-bos"])
def frame(request: pytest.FixtureRequest, tiny_tokenizer: Callable[..., Any]) -> Frame:
    return Frame(tiny_tokenizer(request.param))


def scored(row: Measurement) -> list[int]:
    """Return the token ids that a row scores, in order."""
    return [int(token) for prompt in row.prompts for token in prompt.ids[prompt.score_start : prompt.score_stop]]


def scorable(frame: Frame, document: Document, length: int) -> list[int]:
    """Return what a context of `length` tokens holds beyond its first token, which nothing precedes."""
    return document.ids[1 - len(frame.prefix) : length - len(frame.prefix)].tolist()


@pytest.mark.parametrize(("window", "stride"), [(10, 3), (10, 9), (10, 1), (64, 16), (100, 50), (7, 6)])
def test_sliding_windows_score_every_token_once_with_enough_context(window: int, stride: int) -> None:
    for stop in range(2, 130):
        windows = list(sliding(1, stop, window, stride))
        positions = [at for one in windows for at in range(one.score_start, one.stop)]
        assert positions == list(range(1, stop))
        assert windows[0].start == 0
        for one in windows:
            assert one.stop - one.start <= window
            assert one.start == 0 or one.score_start - one.start >= window - stride
        assert all(one.stop - one.score_start <= stride for one in windows[1:])


def test_sliding_begins_with_one_full_window() -> None:
    assert list(sliding(1, 20, 10, 4)) == [Window(0, 10, 1), Window(4, 14, 10), Window(8, 18, 14), Window(10, 20, 18)]


@pytest.mark.parametrize("stride", [None, 1, 7, 31, 32, 64, 192, 10_000])
def test_strided_scores_every_token_of_the_document_once_at_every_length(
    frame: Frame, numbered: Numbered, stride: int | None
) -> None:
    document = numbered(max(LENGTHS))
    probe = PerplexityProbe(frame, LENGTHS, NATIVE, "strided", stride)
    for row in probe.measure(document) + probe.baseline(document):
        assert scored(row) == scorable(frame, document, max(LENGTHS))


@pytest.mark.parametrize("protocol", ["tail", "all", "strided"])
@pytest.mark.parametrize("stride", [None, 64, 500])
def test_both_models_are_scored_on_the_same_tokens(
    frame: Frame, numbered: Numbered, protocol: str, stride: int | None
) -> None:
    document = numbered(max(LENGTHS))
    probe = PerplexityProbe(frame, LENGTHS, NATIVE, protocol, stride)
    rows, baselines = probe.measure(document), probe.baseline(document)
    assert [row.columns["context_length"] for row in rows] == list(LENGTHS)
    for row, baseline in zip(rows, baselines, strict=True):
        assert scored(row) == scored(baseline)
        assert row.columns["n_tokens"] == baseline.columns["n_tokens"] == len(scored(row))
        assert row.columns["bytes"] == baseline.columns["bytes"]
        assert (row.columns["control"], baseline.columns["control"]) == ("", BASELINE)
        assert max(len(prompt.ids) for prompt in row.prompts) == row.columns["window"] == row.columns["context_length"]
        assert max(len(prompt.ids) for prompt in baseline.prompts) == baseline.columns["window"] <= NATIVE


def test_the_tail_is_a_quarter_of_the_window_up_to_1024() -> None:
    assert (tail_tokens(256), tail_tokens(4096), tail_tokens(8192)) == (64, 1024, 1024)


def test_tail_reads_all_before_it_and_the_baseline_only_the_last_native_window(
    frame: Frame, numbered: Numbered
) -> None:
    document, bos = numbered(max(LENGTHS)), frame.prefix.tolist()
    probe = PerplexityProbe(frame, LENGTHS, NATIVE, "tail")
    for length, row, baseline in zip(LENGTHS, probe.measure(document), probe.baseline(document), strict=True):
        assert scored(row) == scorable(frame, document, length)[-NATIVE // 4 :]
        text = document.ids[: length - len(bos)].tolist()
        assert row.prompts[0].ids.tolist() == bos + text
        assert baseline.prompts[0].ids.tolist() == bos + text[max(length - NATIVE, 0) :]
        assert row.columns["stride"] == baseline.columns["stride"] == 0


def test_all_scores_every_token_of_one_window(frame: Frame, numbered: Numbered) -> None:
    document = numbered(max(LENGTHS))
    for length, row in zip(LENGTHS, PerplexityProbe(frame, LENGTHS, NATIVE, "all").measure(document), strict=True):
        assert len(row.prompts) == 1
        assert scored(row) == scorable(frame, document, length)


def test_the_stride_in_the_row_is_the_one_that_was_used(frame: Frame, numbered: Numbered) -> None:
    document = numbered(max(LENGTHS))
    probe = PerplexityProbe(frame, LENGTHS, NATIVE, "strided")
    assert [row.columns["stride"] for row in probe.measure(document)] == [8, 16, 25, 48]
    assert [row.columns["stride"] for row in probe.baseline(document)] == [8, 16, 16, 16]
    clamped = PerplexityProbe(frame, LENGTHS, NATIVE, "strided", 64).measure(document)
    assert [row.columns["stride"] for row in clamped] == [31, 63, 64, 64]


@pytest.mark.parametrize("protocol", ["tail", "all", "strided"])
def test_bytes_are_those_of_the_scored_tokens(frame: Frame, numbered: Numbered, protocol: str) -> None:
    document = numbered(max(LENGTHS))
    for row in PerplexityProbe(frame, LENGTHS, NATIVE, protocol).measure(document):
        text = "".join(document.text[token - 1000] for token in scored(row))
        assert row.columns["bytes"] == len(text.encode()) > len(text)


def test_losses_are_summed_and_not_averaged_over_windows_of_unequal_size(frame: Frame, numbered: Numbered) -> None:
    row = PerplexityProbe(frame, (64, 100), NATIVE, "strided").measure(numbered(100))[0]
    sizes = [prompt.score_stop - prompt.score_start for prompt in row.prompts]
    assert len(set(sizes)) > 1
    losses = [np.full(size, 1.0 + index) for index, size in enumerate(sizes)]
    result = row.read([TokenScores(one, np.zeros(len(one), int), np.ones(len(one))) for one in losses])
    total = sum((1.0 + index) * size for index, size in enumerate(sizes))
    assert result == {"nll": pytest.approx(total)}
    assert total / row.columns["n_tokens"] != pytest.approx(np.mean([one.mean() for one in losses]), rel=0.05)


def test_a_loss_that_is_not_finite_is_nan_and_no_number(frame: Frame, numbered: Numbered) -> None:
    row = PerplexityProbe(frame, (32,), NATIVE, "all").measure(numbered(32))[0]
    count = row.columns["n_tokens"]
    for bad in (np.nan, np.inf):
        nll = np.ones(count)
        nll[3] = bad
        assert row.read([TokenScores(nll, np.zeros(count, int), np.ones(count))])["status"] == "nan"


# --- with a model


def measured(model: Any, row: Measurement, *, share: bool = True) -> dict[str, Any]:
    prompts = list(row.prompts)
    reader = Reader(model, max(len(one.ids) for one in prompts) + 1)
    scores = dict(execute(reader, prompts, build_tree(prompts) if share else unshared(prompts), 1024))
    return dict(row.read([scores[index] for index in range(len(prompts))]))


def small(document: Document) -> Document:
    """Return the numbered document with ids that the tiny vocabulary has."""
    ids = (document.ids * 37 % 500 + 3).astype(np.int32)
    return Document(0, "small", document.text, ids, document.starts, document.ends, document.sentence_starts)


@pytest.fixture(scope="module")
def model(tiny_llama: Any) -> Any:
    return load_model(str(tiny_llama()), dtype="fp32").model


@pytest.mark.parametrize("protocol", ["tail", "all", "strided"])
def test_uniform_logits_give_the_vocabulary_as_perplexity(
    tiny_llama: Any, frame: Frame, numbered: Numbered, protocol: str
) -> None:
    flat = load_model(str(tiny_llama(tie_word_embeddings=False)), dtype="fp32").model
    with torch.no_grad():
        flat.lm_head.weight.zero_()
    for row in PerplexityProbe(frame, (64, 100), NATIVE, protocol).measure(small(numbered(100))):
        assert math.exp(measured(flat, row)["nll"] / row.columns["n_tokens"]) == pytest.approx(512, rel=1e-6)


def test_a_window_as_long_as_the_document_is_one_single_pass(model: Any, frame: Frame, numbered: Numbered) -> None:
    document = small(numbered(128))
    (strided,) = PerplexityProbe(frame, (128,), 128, "strided", 40).measure(document)
    (single,) = PerplexityProbe(frame, (128,), 128, "all").measure(document)
    assert measured(model, strided)["nll"] == measured(model, single)["nll"]
    assert strided.columns["n_tokens"] == single.columns["n_tokens"]


def test_the_longest_stride_equals_single_passes_over_windows_side_by_side(
    model: Any, frame: Frame, numbered: Numbered
) -> None:
    document, prefix = small(numbered(127)), frame.prefix
    row = PerplexityProbe(frame, (32, 94), 32, "strided", 32).measure(document)[0]
    # Windows of 32 that overlap in the one token that the next window cannot score.
    total = 0.0
    for start in (0, 31, 62):
        ids = np.concatenate([prefix, document.ids[start : start + 32 - len(prefix)]]).astype(np.int32)
        with torch.inference_mode():
            logits = model(torch.as_tensor(ids.astype(np.int64))[None]).logits[0].double().log_softmax(-1)
        gold = torch.as_tensor(ids[1:].astype(np.int64))
        total -= float(logits[:-1].gather(1, gold[:, None]).sum())
    assert measured(model, row)["nll"] == pytest.approx(total, rel=1e-5)


def test_weights_that_give_nan_are_reported_as_such(tiny_llama: Any, frame: Frame, numbered: Numbered) -> None:
    broken = load_model(str(tiny_llama()), dtype="fp32").model
    with torch.no_grad():
        broken.model.norm.weight.fill_(math.nan)
    (row,) = PerplexityProbe(frame, (64,), NATIVE, "tail").measure(small(numbered(64)))
    assert measured(broken, row)["status"] == "nan"


def test_a_prompt_may_not_score_its_first_token() -> None:
    with pytest.raises(ValueError, match="scored range"):
        Prompt(np.zeros(4, np.int32), 0, 4)
