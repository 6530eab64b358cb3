"""The cache, the attention path, the reader and the scores: each against transformers' own, or against brute force."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DynamicCache, Gemma2Config, MistralConfig, MistralForCausalLM

from ctxeval.engine.budget import Geometry
from ctxeval.engine.execute import execute
from ctxeval.engine.plan import Prompt, unshared
from ctxeval.errors import RunError
from ctxeval.model import attention
from ctxeval.model.cache import PreallocatedLayer, can_rewind, new_cache
from ctxeval.model.calibrate import calibrate
from ctxeval.model.load import load_model
from ctxeval.model.reader import Reader, choose_attention
from ctxeval.model.scoring import score_rows

STOCK = attention.prefix_attention
SIZES = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
}


@pytest.fixture
def model(tiny_llama: Any) -> Any:
    return load_model(str(tiny_llama()), dtype="fp32").model


@pytest.fixture(params=["sdpa", "ctxeval_prefix"])
def either(request: pytest.FixtureRequest, model: Any) -> Any:
    """The tiny Llama on the stock path, and on ours."""
    if request.param == "ctxeval_prefix":
        assert choose_attention(model) == "ctxeval_prefix"
    return model


@pytest.fixture
def registered() -> Iterator[None]:
    """Put the real function back after a test has registered another."""
    yield
    attention.prefix_attention = STOCK
    attention.register()


def random_weights(model: Any, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.2, generator=generator)
    return model.float().eval()


def tokens(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, 512, count).astype(np.int32)


def full(model: Any, ids: np.ndarray) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.as_tensor(ids.astype(np.int64))[None]).logits[0]


def read(reader: Reader, ids: np.ndarray, chunk: int) -> torch.Tensor:
    pieces = [ids[start : start + chunk] for start in range(0, len(ids), chunk)]
    return torch.cat([reader.read(piece, range(len(piece))) for piece in pieces])


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-4) -> bool:
    return float((found - expected).abs().max()) <= tolerance * float(expected.std())


# --- the cache


def test_the_cache_holds_what_transformers_own_would(model: Any) -> None:
    ids = torch.as_tensor(tokens(90).astype(np.int64))[None]
    ours, theirs = new_cache(model.config, 128), DynamicCache(config=model.config)
    with torch.inference_mode():
        for part in ids.split(40, dim=1):
            logits = [model(part, cache=cache, use_cache=True).logits for cache in (ours, theirs)]
            assert torch.equal(*logits)
    for mine, other in zip(ours.layers, theirs.layers, strict=True):
        assert isinstance(mine, PreallocatedLayer)
        assert torch.equal(mine.keys, other.keys)
        assert torch.equal(mine.values, other.values)
    assert ours.get_seq_length() == theirs.get_seq_length() == 90
    ours.crop(-50)
    theirs.crop(-50)
    assert all(torch.equal(a.keys, b.keys) for a, b in zip(ours.layers, theirs.layers, strict=True))


def test_appending_and_cropping_move_nothing() -> None:
    layer = PreallocatedLayer(10)
    states = torch.randn(1, 2, 4, 8)
    keys, _ = layer.update(states, states)
    assert torch.equal(keys, states)
    storage = keys.data_ptr()
    layer.crop(-2)
    keys, values = layer.update(states, states)
    assert keys.data_ptr() == storage
    assert torch.equal(keys, torch.cat([states[:, :, :2], states], dim=2))
    assert torch.equal(values, keys)
    layer.reset()
    assert layer.get_seq_length() == 0 == layer.keys.shape[2]


def test_neither_more_nor_less_than_the_storage_holds() -> None:
    layer = PreallocatedLayer(5)
    states = torch.randn(1, 1, 4, 8)
    layer.update(states, states)
    with pytest.raises(IndexError, match="8 tokens in a cache of 5"):
        layer.update(states, states)
    with pytest.raises(IndexError, match="-1 tokens in a cache of 5"):
        layer.crop(-5)


# --- reading and rewinding


@pytest.mark.parametrize("chunk", [1, 17, 64, 200])
def test_reading_in_pieces_equals_one_pass(either: Any, chunk: int) -> None:
    ids = tokens(120)
    assert close(read(Reader(either, 128), ids, chunk), full(either, ids))


def test_a_rewound_reader_gives_the_same_logits_again(either: Any) -> None:
    ids, other = tokens(100), tokens(40, seed=1)
    reader = Reader(either, 200)
    assert reader.can_rewind
    reader.read(ids[:60], [])
    first = reader.read(ids[60:], range(40))
    reader.rewind(60)
    reader.read(other, range(40))
    reader.rewind(60)
    assert reader.length == 60
    assert torch.equal(reader.read(ids[60:], range(40)), first)
    reader.rewind(0)
    assert reader.length == 0
    assert close(reader.read(other, range(40)), full(either, other))


def test_only_the_wanted_rows_come_back(model: Any) -> None:
    ids = tokens(50)
    expected = full(model, ids)
    assert close(Reader(model, 64).read(ids, [3, 3, 49]), expected[[3, 3, 49]])
    reader = Reader(model, 64)
    assert reader.read(ids, []).shape == (0, 512)
    assert reader.length == 50


# --- the attention path


@pytest.mark.parametrize(("n", "p"), [(7, 0), (1, 30), (16, 1), (33, 64)])
@pytest.mark.parametrize(("h", "g"), [(4, 4), (6, 2), (4, 1)])
@pytest.mark.parametrize("scaling", [None, 0.5])
def test_prefix_attention_equals_masked_softmax(n: int, p: int, h: int, g: int, scaling: float | None) -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(1, h, n, 16), torch.randn(1, g, p + n, 16), torch.randn(1, g, p + n, 16)
    found, weights = attention.prefix_attention(torch.nn.Module(), query, key, value, None, scaling)
    grouped = (one.double().repeat_interleave(h // g, dim=1) for one in (key, value))
    keys, values = grouped
    scores = query.double() @ keys.transpose(-1, -2) * (scaling or 16**-0.5)
    later = torch.arange(p + n)[None] > torch.arange(p, p + n)[:, None]
    expected = scores.masked_fill(later, -math.inf).softmax(-1) @ values
    assert weights is None
    torch.testing.assert_close(found.double(), expected.transpose(1, 2), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    "special",
    [
        {"sliding_window": 64},
        {"softcap": 30.0},
        {"s_aux": torch.ones(4)},
        {"attention_mask": torch.ones(1)},
        {"dropout": 0.1},
    ],
    ids=lambda special: next(iter(special)),
)
def test_prefix_attention_refuses_what_it_does_not_have(special: dict[str, Any]) -> None:
    states = torch.randn(1, 4, 3, 16)
    with pytest.raises(ValueError, match="prefix attention cannot serve"):
        attention.prefix_attention(torch.nn.Module(), states, states, states, **{"attention_mask": None, **special})


def test_a_plain_model_gets_prefix_attention_and_a_requested_path_stays(model: Any) -> None:
    assert choose_attention(model, "sdpa") == "sdpa" == model.config._attn_implementation
    assert choose_attention(model) == "ctxeval_prefix" == model.config._attn_implementation


def forget_the_prefix(module: Any, query: Any, key: Any, value: Any, mask: Any, *args: Any, **kwargs: Any) -> Any:
    n = query.shape[2]
    return STOCK(module, query, key[:, :, -n:], value[:, :, -n:], mask, *args, **kwargs)


def see_the_future(module: Any, query: Any, key: Any, value: Any, *_: Any, **kwargs: Any) -> Any:
    out = torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=kwargs["scaling"], enable_gqa=True)
    return out.transpose(1, 2).contiguous(), None


def lose_the_last_cached_token(module: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    n = query.shape[2]
    if key.shape[2] > n:
        key, value = (torch.cat([one[:, :, : -n - 1], one[:, :, -n:]], dim=2) for one in (key, value))
    return STOCK(module, query, key, value, *args, **kwargs)


def another_temperature(module: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Any:
    return STOCK(module, query, key, value, mask, **{**kwargs, "scaling": 0.2})


def raises(*_: Any, **__: Any) -> Any:
    raise ValueError("this layer wants a mask")


@pytest.mark.parametrize(
    ("wrong", "dtype"),
    [
        *((wrong, dtype) for wrong in (forget_the_prefix, see_the_future, raises) for dtype in ("fp32", "bf16")),
        # A 48th of the prefix: in half precision not to be told from rounding.
        (lose_the_last_cached_token, "fp32"),
        (another_temperature, "fp32"),
    ],
)
def test_an_attention_function_that_differs_is_not_chosen(
    tiny_llama: Any, registered: None, wrong: Callable[..., Any], dtype: str
) -> None:
    model = load_model(str(tiny_llama()), dtype=dtype).model
    attention.prefix_attention = wrong
    assert choose_attention(model) == "sdpa" == model.config._attn_implementation
    attention.prefix_attention = STOCK
    assert choose_attention(model) == "ctxeval_prefix"


def test_what_asks_for_more_than_plain_attention_keeps_the_stock_path(model: Any) -> None:
    plain = {**SIZES, "sliding_window": None, "layer_types": ["full_attention"] * 2}
    assert attention.is_plain(Gemma2Config(**plain, attn_logit_softcapping=None))
    assert not attention.is_plain(Gemma2Config(**plain))  # soft-capping is Gemma 2's default
    assert not attention.is_plain(Gemma2Config(**SIZES, attn_logit_softcapping=None))  # as are alternating windows
    assert not attention.is_plain(MistralConfig(**SIZES, sliding_window=64))
    assert attention.is_plain(MistralConfig(**SIZES, sliding_window=None))
    assert not attention.is_plain(SimpleNamespace(layer_types=["full_attention", "chunked_attention"]))
    model.config.attn_logit_softcapping = 30.0
    assert choose_attention(model) == "sdpa" == model.config._attn_implementation


def test_a_model_that_gives_nan_is_refused(model: Any) -> None:
    with torch.no_grad():
        model.model.norm.weight.fill_(math.nan)
    with pytest.raises(RunError, match="logits are not finite"):
        choose_attention(model)


# --- a sliding window


@pytest.fixture
def mistral() -> Any:
    return random_weights(MistralForCausalLM(MistralConfig(**SIZES, sliding_window=64)))


def test_a_sliding_window_keeps_the_stock_path_and_cannot_rewind(mistral: Any) -> None:
    assert choose_attention(mistral) == "sdpa"
    reader = Reader(mistral, 256)
    assert not reader.can_rewind
    assert not can_rewind(new_cache(mistral.config, 256))


@pytest.mark.parametrize("chunk", [50, 256])
def test_a_sliding_window_is_measured_right_without_sharing(mistral: Any, chunk: int) -> None:
    some = [Prompt(tokens(length, seed=length), length - 40, length + 1) for length in (150, 200)]
    assert not close(full(mistral, some[0].ids)[-1:], full(mistral, some[0].ids[-40:])[-1:])
    for index, score in execute(Reader(mistral, 256), some, unshared(some), chunk):
        logits = full(mistral, some[index].ids).double()
        rows = logits[some[index].score_start - 1 :]
        gold = torch.as_tensor(some[index].ids[some[index].score_start :].astype(np.int64))
        nll = -rows.log_softmax(-1)[:-1].gather(1, gold[:, None])[:, 0]
        np.testing.assert_allclose(score.nll[:-1], nll.numpy(), atol=1e-4)
        assert score.argmax.tolist() == rows.argmax(-1).tolist()


# --- scores


def test_scores_are_loss_argmax_and_margin() -> None:
    torch.manual_seed(0)
    logits, gold = torch.randn(600, 50) * 3, np.random.default_rng(0).integers(0, 50, 600)
    scores = score_rows(logits, gold)
    exact = logits.double().log_softmax(-1)
    np.testing.assert_allclose(scores.nll, -exact[range(600), gold].numpy(), atol=1e-5)
    top = exact.sort(dim=1, descending=True)
    assert scores.argmax.tolist() == top.indices[:, 0].tolist()
    np.testing.assert_allclose(scores.margin, (top.values[:, 0] - top.values[:, 1]).numpy(), atol=1e-5)
    assert scores.nll.dtype == scores.margin.dtype == np.float64


def test_without_a_gold_token_there_is_no_loss_but_an_argmax() -> None:
    scores = score_rows(torch.eye(3), np.array([0, -1, 2]))
    assert np.isnan(scores.nll).tolist() == [False, True, False]
    assert scores.argmax.tolist() == [0, 1, 2]


def test_uniform_logits_lose_the_log_of_the_vocabulary() -> None:
    scores = score_rows(torch.zeros(4, 512), np.array([0, 5, 511, 7]))
    np.testing.assert_allclose(np.exp(scores.nll), 512, rtol=1e-6)
    assert scores.margin.tolist() == [0] * 4


def test_half_precision_logits_are_summed_in_fp32() -> None:
    logits = torch.zeros(1, 4096, dtype=torch.bfloat16)
    assert score_rows(logits, np.array([0])).nll[0] == pytest.approx(math.log(4096), rel=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_show_in_loss_and_margin(bad: float) -> None:
    logits = torch.randn(2, 10)
    logits[0, 4] = bad
    scores = score_rows(logits, np.array([1, 1]))
    assert not np.isfinite(scores.nll[0])
    assert not np.isfinite(scores.margin[0])
    assert np.isfinite(scores.nll[1])
    assert np.isfinite(scores.margin[1])


# --- speed


def test_calibration_gives_positive_speeds_and_leaves_the_reader_empty(model: Any) -> None:
    reader = Reader(model, 256)
    geometry = Geometry(73728, 2, 64, 32, 64, 512, 0, 4)
    speed = calibrate(reader, geometry, 64, 256)
    assert min(speed.dense, speed.attention, speed.per_pass) > 0
    assert reader.length == 0
    ids = tokens(80)
    assert close(reader.read(ids, range(80)), full(model, ids))
