"""The budget is what really happens: tokens, FLOPs against torch's own count, bytes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from ctxeval.engine.budget import Cost, Geometry, Speed, describe, duration, segment_cost, total, tree_cost
from ctxeval.engine.execute import execute
from ctxeval.engine.plan import Prompt, build_tree, forwarded_tokens
from ctxeval.model.geometry import read_geometry
from ctxeval.model.load import load_model, read_config
from ctxeval.model.reader import Reader
from ctxeval.spec import ModelSpec

GEOMETRY = Geometry(
    dense_parameters=1000,
    layers=2,
    query_width=64,
    kv_width=32,
    hidden_size=64,
    vocabulary=512,
    weight_bytes=4096,
    bytes_per_value=2,
)


@pytest.fixture(scope="module")
def folder(tiny_llama: Any) -> str:
    return str(tiny_llama())


def prompts() -> list[Prompt]:
    random = np.random.default_rng(0)
    trunk = random.integers(3, 512, 200).astype(np.int32)
    ends = [random.integers(3, 512, 20).astype(np.int32) for _ in range(3)]
    return [
        Prompt(np.concatenate([trunk[:cut], end]), cut + 15, cut + 21)
        for cut, end in zip((90, 90, 200), ends, strict=True)
    ]


def test_dense_and_head_flops_are_those_that_torch_counts(folder: str) -> None:
    model, geometry = load_model(folder, dtype="fp32").model, read_geometry(read_config(ModelSpec(folder)))
    reader = Reader(model, 101)
    with FlopCounterMode(display=False) as counter:
        reader.read(np.arange(3, 103, dtype=np.int32), [0, 50, 99])
    matrices = sum(count for op, count in counter.get_flop_counts()["Global"].items() if op in (torch.ops.aten.mm,))
    rotary = 2 * 8 * 100  # the outer product of frequencies and positions
    assert geometry.dense_flops(100) + geometry.head_flops(3) == pytest.approx(matrices, abs=rotary)


def test_attention_flops_count_each_pair_of_tokens_once() -> None:
    brute = sum(4 * 64 * 2 * (position + 1) for position in range(50, 80))  # scores and values: 2 FLOPs a product each
    assert GEOMETRY.attention_flops(50, 30) == brute


def test_cost_does_not_depend_on_how_a_sequence_is_cut() -> None:
    whole, halves = segment_cost(GEOMETRY, 0, 100), segment_cost(GEOMETRY, 0, 40) + segment_cost(GEOMETRY, 40, 60)
    assert (whole.tokens, whole.flops) == (halves.tokens, halves.flops)
    assert (whole.passes, halves.passes) == (1, 2)
    assert total([whole, halves, Cost()]) == whole + halves


@pytest.mark.parametrize("chunk", [32, 1024])
def test_the_predicted_tokens_and_passes_are_those_that_are_executed(folder: str, chunk: int) -> None:
    some = prompts()
    roots = build_tree(some)
    reader = Reader(load_model(folder, dtype="fp32").model, 300)
    seen: Counter[str] = Counter()
    list(execute(reader, some, roots, chunk, lambda _, tokens: seen.update(tokens=tokens, passes=1)))
    cost = tree_cost(GEOMETRY, roots, some, chunk)
    assert (cost.tokens, cost.passes) == (seen["tokens"], seen["passes"])
    assert cost.tokens == forwarded_tokens(roots) == 220 + 2 * 20


def test_a_tree_costs_its_segments_and_its_scored_rows() -> None:
    some = prompts()
    cost = tree_cost(GEOMETRY, build_tree(some), some, 1024)
    assert cost.dense_flops == 2 * 1000 * 260 + 2 * 64 * 512 * 18
    pieces = [segment_cost(GEOMETRY, 0, 90), *[segment_cost(GEOMETRY, 90, 20)] * 2, segment_cost(GEOMETRY, 90, 130)]
    assert cost.attention_flops == total(pieces).attention_flops


def test_cache_bytes_are_those_of_the_cache(folder: str) -> None:
    model, geometry = load_model(folder, dtype="bf16").model, read_geometry(read_config(ModelSpec(folder)))
    reader = Reader(model, 100)
    reader.read(np.arange(3, 103, dtype=np.int32), [])
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in reader._cache.layers)
    assert geometry.kv_bytes(100) == held
    assert geometry.weight_bytes == pytest.approx(sum(one.nbytes for one in model.parameters()), rel=0.01)


def test_speeds_turn_work_into_seconds() -> None:
    assert Speed(100.0, 10.0, 0.5).seconds(Cost(tokens=1, dense_flops=300, attention_flops=40, passes=2)) == 3 + 4 + 1


@pytest.mark.parametrize(
    ("seconds", "text"), [(44.6, "45 s"), (95, "2 min"), (7100, "118 min"), (12000, "3 h 20 min"), (7260, "2 h 01 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_description_names_tokens_work_memory_and_time() -> None:
    big = Geometry(10**9, 32, 4096, 1024, 4096, 32000, 2 * 2**30, 2)
    line = describe(Cost(1_234_567, 5 * 10**12, 10**12, 9), big, 8192, 600)
    assert line == (
        "1,234,567 tokens to forward, 6.0 TFLOP, 2.00 GiB of weights + 1.00 GiB of KV cache = 3.00 GiB, about 10 min"
    )
    assert "about" not in describe(Cost(), big, 8192)
