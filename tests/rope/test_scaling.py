"""The formulas, against transformers' own, hand-worked values, and what each method must keep."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ctxeval import spec
from ctxeval.errors import UsageError
from ctxeval.rope.options import OPTIONS
from ctxeval.rope.scaling import SCALINGS, pair_at_turns, scale_frequencies, turns, wavelengths

Array = NDArray[np.float64]
GRID = list(itertools.product([1e4, 5e5, 1e6], [16, 64, 128], [256, 4096, 131072], [1.0, 2.0, 7.3, 32.0]))
factors = st.floats(1, 64)
windows = st.integers(256, 200_000)
thetas = st.floats(500, 1e8)
dims = st.sampled_from([8, 16, 64, 96, 128])


def plain(theta: float = 1e4, dim: int = 128) -> Array:
    """fp32 frequencies as a rotary module holds them, in fp64."""
    return (1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.float) / dim))).double().numpy()


def official(kind: str, theta: float, dim: int, window: int, factor: float, **rope: object) -> tuple[Array, float]:
    parameters = {"rope_type": kind, "rope_theta": theta, "factor": factor, "original_max_position_embeddings": window}
    config = LlamaConfig(
        hidden_size=2 * dim,
        num_attention_heads=2,
        max_position_embeddings=int(window * factor),
        rope_parameters={**parameters, **rope},
    )
    table, attention = ROPE_INIT_FUNCTIONS[kind](config)
    return table.double().numpy(), attention


def close(got: Array, expected: Array, factor: float) -> None:
    # The official fp32 blend of w and w/s cancels to about one rounding of w, that is s roundings of the result.
    np.testing.assert_allclose(got, expected, rtol=3e-7 + 1e-7 * factor, atol=0)


def test_methods_are_those_of_the_spec() -> None:
    assert tuple(SCALINGS) == spec.METHODS == tuple(OPTIONS)


@pytest.mark.parametrize(("theta", "dim", "window", "factor"), GRID)
def test_pi_is_transformers_linear(theta: float, dim: int, window: int, factor: float) -> None:
    expected, attention = official("linear", theta, dim, window, factor)
    scaled = scale_frequencies("pi", plain(theta, dim), native_window=window, factor=factor)
    close(scaled.inv_freq, expected, 1)
    assert scaled.attention_factor == attention


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize(("theta", "dim", "window", "factor"), GRID)
def test_yarn_is_transformers_yarn(theta: float, dim: int, window: int, factor: float, truncate: bool) -> None:
    expected, attention = official("yarn", theta, dim, window, factor, truncate=truncate)
    scaled = scale_frequencies("yarn", plain(theta, dim), native_window=window, factor=factor, truncate=truncate)
    close(scaled.inv_freq, expected, factor)
    assert scaled.attention_factor == pytest.approx(attention, rel=1e-12)


def test_yarn_options_are_transformers_options() -> None:
    options = {"beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.25}
    expected, attention = official("yarn", 5e5, 128, 8192, 4.0, **options)
    scaled = scale_frequencies("yarn", plain(5e5), native_window=8192, factor=4, **options)
    close(scaled.inv_freq, expected, 4)
    assert scaled.attention_factor == attention == 1.25
    default = scale_frequencies("yarn", plain(5e5), native_window=8192, factor=4)
    assert np.abs(scaled.inv_freq / default.inv_freq - 1).max() > 0.01


def test_ntk_parts_is_yarn_without_temperature() -> None:
    expected, attention = official("yarn", 1e4, 128, 4096, 8.0, attention_factor=1.0)
    scaled = scale_frequencies("ntk-parts", plain(), native_window=4096, factor=8)
    close(scaled.inv_freq, expected, 8)
    assert scaled.attention_factor == attention == 1.0


@pytest.mark.parametrize(("theta", "dim", "window", "factor"), GRID)
def test_ntk_is_the_larger_base(theta: float, dim: int, window: int, factor: float) -> None:
    base = theta * factor ** (dim / (dim - 2))
    scaled = scale_frequencies("ntk", plain(theta, dim), native_window=window, factor=factor)
    np.testing.assert_allclose(scaled.inv_freq, base ** (-np.arange(0, dim, 2) / dim), rtol=3e-7, atol=0)
    assert scaled.attention_factor == 1.0


def test_abf_replaces_the_base() -> None:
    scaled = scale_frequencies("abf", plain(1e4), native_window=4096, factor=8, rope_theta=5e5)
    np.testing.assert_allclose(scaled.inv_freq, 5e5 ** (-np.arange(0, 128, 2) / 128), rtol=1e-12)
    interpolated = scale_frequencies("abf", plain(1e4) / 4, native_window=16384, factor=2, rope_theta=5e5)
    np.testing.assert_allclose(interpolated.inv_freq, scaled.inv_freq / 4, rtol=1e-6)


@pytest.mark.parametrize(("theta", "dim", "window", "factor"), GRID)
def test_llama3_is_transformers_llama3(theta: float, dim: int, window: int, factor: float) -> None:
    expected, attention = official("llama3", theta, dim, window, factor, low_freq_factor=1.0, high_freq_factor=4.0)
    scaled = scale_frequencies("llama3", plain(theta, dim), native_window=window, factor=factor)
    close(scaled.inv_freq, expected, factor)
    assert scaled.attention_factor == attention == 1.0


def test_llama3_with_options_of_its_own() -> None:
    expected, _ = official("llama3", 5e5, 128, 2048, 32.0, low_freq_factor=2.0, high_freq_factor=16.0)
    options = {"low_freq_factor": 2.0, "high_freq_factor": 16.0, "original_window": 2048}
    scaled = scale_frequencies("llama3", plain(5e5), native_window=8192, factor=32, **options)
    close(scaled.inv_freq, expected, 32)


def test_llama3_worked_by_hand() -> None:
    """L = 64: pairs of 8, 2.5 and 0.5 turns. The middle one is half-way from 1 to 4: (1 + 1/8) / 2 of itself."""
    native = 2 * math.pi / 64 * np.array([8, 2.5, 0.5])
    scaled = scale_frequencies("llama3", native, native_window=64, factor=8)
    np.testing.assert_allclose(scaled.inv_freq, native * [1, 0.5625, 0.125], rtol=1e-14)


def test_worked_by_hand() -> None:
    """theta 16, d 8: w = 1, 1/2, 1/4, 1/8. L = 4 pi: 2, 1, 1/2, 1/4 turns, about; s = 4."""
    native = np.array([1, 0.5, 0.25, 0.125])
    options = {"native_window": 13, "factor": 4}
    np.testing.assert_array_equal(scale_frequencies("pi", native, **options).inv_freq, native / 4)
    # 4**(-i/3): 1, 0.63, 0.397, 0.25
    ntk = scale_frequencies("ntk", native, **options).inv_freq
    np.testing.assert_allclose(ntk, [1, 0.5 * 4 ** (-1 / 3), 0.25 * 4 ** (-2 / 3), 0.03125], rtol=1e-15)
    # Turns 13/(2 pi) = 2.069 at index 0. 2 turns at index log2(1.0345) = 0.049, 0.5 turns at index 2.049:
    # floor 0, ceil 3, so the ramp is 0, 1/3, 2/3, 1 and the ratios 1, 0.75, 0.5, 0.25.
    parts = scale_frequencies("ntk-parts", native, beta_fast=2.0, beta_slow=0.5, **options)
    np.testing.assert_allclose(parts.inv_freq, native * [1, 0.75, 0.5, 0.25], rtol=1e-15)
    yarn = scale_frequencies("yarn", native, beta_fast=2.0, beta_slow=0.5, **options)
    assert yarn.attention_factor == pytest.approx(1.138629436, abs=1e-9)
    # Untruncated: (1 - 0.049) / 2 = 0.4755 of the way at index 1.
    smooth = scale_frequencies("ntk-parts", native, beta_fast=2.0, beta_slow=0.5, truncate=False, **options)
    assert smooth.inv_freq[1] == pytest.approx(0.5 * (1 - 0.75 * 0.47551), abs=1e-5)


@given(thetas, dims, windows, factors)
def test_pi_divides_exactly(theta: float, dim: int, window: int, factor: float) -> None:
    native = plain(theta, dim)
    np.testing.assert_array_equal(
        scale_frequencies("pi", native, native_window=window, factor=factor).inv_freq, native / factor
    )


@given(thetas, dims, windows, factors)
def test_ntk_keeps_the_fastest_and_divides_the_slowest(theta: float, dim: int, window: int, factor: float) -> None:
    native = plain(theta, dim)
    scaled = scale_frequencies("ntk", native, native_window=window, factor=factor).inv_freq
    assert scaled[0] == native[0]
    assert scaled[-1] == pytest.approx(native[-1] / factor, rel=1e-15)


@given(thetas, dims, windows, factors, st.booleans())
def test_yarn_lies_between(theta: float, dim: int, window: int, factor: float, truncate: bool) -> None:
    native = plain(theta, dim)
    ratio = scale_frequencies("yarn", native, native_window=window, factor=factor, truncate=truncate).inv_freq / native
    assert np.all(ratio <= 1 + 1e-12) and np.all(ratio >= (1 - 1e-12) / factor)
    assert np.all(np.diff(ratio) <= 1e-12)
    count = turns(native, window)
    np.testing.assert_allclose(ratio[count > 32.001], 1.0, rtol=1e-12)
    np.testing.assert_allclose(ratio[count < 0.999], 1 / factor, rtol=1e-12)


@given(thetas, dims, windows, st.sampled_from(["none", "pi", "ntk", "ntk-dynamic", "ntk-parts", "yarn", "llama3"]))
def test_factor_1_is_the_identity(theta: float, dim: int, window: int, method: str) -> None:
    native = plain(theta, dim)
    scaled = scale_frequencies(method, native, native_window=window, factor=1)
    np.testing.assert_allclose(scaled.inv_freq, native, rtol=1e-15)
    assert scaled.attention_factor == 1.0


@given(thetas, dims, windows, st.floats(0.5, 64))
def test_ramp_index_is_the_published_one(theta: float, dim: int, window: int, number: float) -> None:
    published = dim * math.log(window / (2 * math.pi * number)) / (2 * math.log(theta))
    assert pair_at_turns(plain(theta, dim), window, number) == pytest.approx(published, abs=2e-5)


@pytest.mark.parametrize("number", [1.0, 8.0, 32.0, 1e5, 1e-3])
def test_ramp_index_on_scaled_frequencies_is_where_pairs_turn_that_often(number: float) -> None:
    parts = scale_frequencies("ntk-parts", plain(5e5), native_window=8192, factor=8).inv_freq
    index = pair_at_turns(parts, 65536, number)
    count = turns(parts, 65536)
    if 0 <= index <= 63:
        below, above = count[math.floor(index)], count[math.ceil(index)]
        assert below >= number * (1 - 1e-9) and above <= number * (1 + 1e-9)
    else:
        assert index > 63 if number < count[-1] else index < 0


def test_yarn_composes_on_a_llama3_checkpoint() -> None:
    config = LlamaConfig(
        hidden_size=256,
        num_attention_heads=2,
        max_position_embeddings=131072,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 5e5,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    )
    native = ROPE_INIT_FUNCTIONS["llama3"](config)[0].double().numpy()
    ratio = scale_frequencies("yarn", native, native_window=131072, factor=2).inv_freq / native
    count = turns(native, 131072)
    np.testing.assert_allclose(ratio[count > 32], 1.0)
    np.testing.assert_allclose(ratio[count < 1], 0.5)
    assert np.any((ratio < 0.99) & (ratio > 0.51))


def rotate(vector: Array, inv_freq: Array, position: int, attention: float) -> Array:
    """Turn interleaved pairs of `vector` (2n,), written here anew, as complex numbers."""
    pairs = vector[0::2] + 1j * vector[1::2]
    turned = pairs * np.exp(1j * position * inv_freq) * attention
    return np.stack([turned.real, turned.imag], axis=1).reshape(-1)


@given(
    st.sampled_from(["none", "pi", "ntk", "ntk-parts", "yarn"]),
    st.integers(0, 5000),
    st.integers(0, 5000),
    st.integers(0, 5000),
    st.integers(0, 2**32 - 1),
)
def test_scores_depend_on_distance_and_norms_are_kept(method: str, m: int, n: int, shift: int, seed: int) -> None:
    scaled = scale_frequencies(method, plain(dim=32), native_window=4096, factor=4)
    q, k = np.random.default_rng(seed).normal(size=(2, 32))

    def turned(vector: Array, position: int) -> Array:
        return rotate(vector, scaled.inv_freq, position, scaled.attention_factor)

    score, moved = turned(q, m) @ turned(k, n), turned(q, m + shift) @ turned(k, n + shift)
    assert score == pytest.approx(moved, abs=1e-9)
    assert np.linalg.norm(turned(q, m)) == pytest.approx(scaled.attention_factor * np.linalg.norm(q), rel=1e-12)


def test_wavelengths_and_turns() -> None:
    table = np.array([1.0, 0.5, 0.0])
    np.testing.assert_allclose(wavelengths(table), [2 * math.pi, 4 * math.pi, math.inf])
    np.testing.assert_allclose(turns(table, 100), [15.9155, 7.9577, 0], atol=1e-4)


def test_pairs_that_do_not_turn_stay_still() -> None:
    native = np.concatenate([plain(dim=32), np.zeros(4)])
    for method in ("pi", "ntk", "ntk-dynamic", "ntk-parts", "yarn", "llama3"):
        scaled = scale_frequencies(method, native, native_window=4096, factor=4).inv_freq
        np.testing.assert_array_equal(scaled[-4:], 0)
        assert scaled[15] == pytest.approx(native[15] / 4)


@pytest.mark.parametrize(
    ("method", "table", "text"),
    [
        ("ntk", [1.0], "ntk on 1 rotary pairs"),
        ("yarn", [1.0, 1.0], "fastest first"),
        ("pi", [1.0, math.nan], "finite"),
        ("pi", [[1.0, 0.5]], "shape (1, 2)"),
        ("abf", [1.0, 0.5, 0.1], "no single base"),
    ],
)
def test_frequencies_that_cannot_be_scaled(method: str, table: list[float], text: str) -> None:
    options = {"rope_theta": 5e5} if method == "abf" else {}
    with pytest.raises(UsageError) as caught:
        scale_frequencies(method, table, native_window=4096, factor=2, **options)
    assert text in str(caught.value)


def test_the_input_is_never_written_to() -> None:
    native = plain()
    before = native.copy()
    lists = {"short_factor": [1.0] * 64, "long_factor": [2.0] * 64}
    for method in SCALINGS:
        options: dict[str, Any] = {"abf": {"rope_theta": 5e5}, "longrope": lists}.get(method, {})
        scaled = scale_frequencies(method, native, native_window=4096, factor=4, **options)
        scaled.inv_freq[:] = 0
    np.testing.assert_array_equal(native, before)
