"""Mutants of the evaluator: caches, branches, positions and masks, see `tests.rope.mutants`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

from ctxeval.errors import RunError
from ctxeval.model import attention, reader
from ctxeval.model.agreement import cache_agreement
from ctxeval.model.cache import PreallocatedLayer
from ctxeval.model.reader import Reader, choose_attention
from ctxeval.model.reading import choose_reading
from tests.rope.mutants import mutant, patched
from tests.rope.zoo import WINDOW, build, tiny_config

CHUNK = 64


def read_alarm(model: Any) -> str:
    """Return what is said of how a model reads: an error, a fall back to whole prompts, or caches that differ."""
    try:
        reading = choose_reading(model, WINDOW, CHUNK)
        if reading.whole:
            return reading.note
        found = cache_agreement(model, WINDOW // 2)
    except RunError as error:
        return str(error)
    healthy = found.chunked <= found.tolerance and found.forked <= found.tolerance
    return "" if healthy else f"chunked off by {found.chunked:.2g} σ, forked by {found.forked:.2g} σ"


def attention_alarm(broken: Callable[..., Any]) -> str:
    """Return what is said where the prefix attention is `broken`: that the stock path stays."""
    config = tiny_config("llama")
    model = build(config)
    model.set_attn_implementation("sdpa")
    with mock.patch.object(attention, "prefix_attention", broken):
        path = choose_attention(model)
    attention.register()
    return "" if path == attention.NAME else f"prefix attention refused, {path} stays"


def llama_with(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Return a tiny Llama whose forward gets other keyword arguments."""
    model = build(tiny_config("llama"))
    forward = model.model.forward
    model.model.forward = lambda *args, **kwargs: forward(*args, **change(kwargs))
    return model


@mutant("huggingface/transformers #25104, #27227: keys cached under one base are read under another")
def stale_cached_keys() -> str:
    patch = patched()
    scaled = patch.state()

    def change(given: dict[str, Any]) -> dict[str, Any]:
        cache = given.get("cache")
        first = cache is not None and cache.get_seq_length() == 0
        patch.set_native() if first else patch.set_state(scaled)
        return given

    forward = patch.model.model.forward
    patch.model.model.forward = lambda *args, **kwargs: forward(*args, **change(kwargs))
    return read_alarm(patch.model)


@mutant("jquesnelle/yarn and all that patch in place: the cache outlives the patch")
def restart_keeps_the_cache() -> str:
    def restart(self: Any) -> None:
        self.length = 0

    with mock.patch.object(Reader, "restart", restart):
        return read_alarm(build(tiny_config("llama")))


@mutant("huggingface/transformers #47720: crop takes tokens to remove, not tokens to keep; off by one")
def crop_off_by_one() -> str:
    right = reader.return_to
    with mock.patch.object(reader, "return_to", lambda cache, length, kept: right(cache, length + 1, kept)):
        return read_alarm(build(tiny_config("llama")))


@mutant("huggingface/transformers #47720: a crop that does nothing, so that a branch reads the one before it")
def crop_does_nothing() -> str:
    with mock.patch.object(PreallocatedLayer, "crop", lambda self, tokens: None):
        return read_alarm(build(tiny_config("llama")))


@mutant("huggingface/transformers #18887: positions start again at 0 in every window")
def positions_restart_in_every_piece() -> str:
    def change(given: dict[str, Any]) -> dict[str, Any]:
        count = given["input_ids"].shape[1]
        return {**given, "position_ids": torch.arange(count)[None]}

    return read_alarm(llama_with(change))


@mutant("EleutherAI/lm-evaluation-harness loglikelihood_rolling: disjoint windows, nothing of the past is seen")
def cache_is_ignored() -> str:
    return read_alarm(llama_with(lambda given: {**given, "cache": None}))


@mutant("transformers BertLMHeadModel and RoFormer without is_decoder: later tokens are seen")
def later_tokens_are_seen() -> str:
    config = tiny_config("roformer")
    config.is_decoder = False
    return read_alarm(build(config))


@mutant("state-space layers update in place: states that are shared, not copied, where prompts part")
def states_shared_between_branches() -> str:
    with mock.patch.object(reader, "copy_states", lambda cache: dict(enumerate(cache.layers))):
        return read_alarm(build(tiny_config("mamba2")))


@mutant("pytorch scaled_dot_product_attention: is_causal aligns to the top left, so new tokens miss their own past")
def causal_mask_aligned_top_left() -> str:
    def broken(module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: Any = None, **more: Any) -> Any:
        key, value = (states.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for states in (key, value))
        out = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
        return out.transpose(1, 2).contiguous(), None

    return attention_alarm(broken)


@mutant("Dao et al. 2022 section 3.1 without its log-sum-exp: prefix and new tokens averaged with equal weights")
def prefix_merged_with_equal_weights() -> str:
    right = attention.prefix_attention

    def broken(*args: Any, **kwargs: Any) -> Any:
        with mock.patch.object(attention.torch, "sigmoid", lambda values: torch.full_like(values, 0.5)):
            return right(*args, **kwargs)

    return attention_alarm(broken)
