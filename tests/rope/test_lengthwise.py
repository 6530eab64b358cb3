"""NTK-dynamic and LongRoPE, frozen at one length: against transformers' own, worked values, and what they promise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ctxeval.errors import UsageError
from ctxeval.rope.facts import broken_promise
from ctxeval.rope.scaling import Scaled, scale_frequencies, turns

L = 4096
SHORT = tuple(1 + index / 100 for index in range(64))
LONG = tuple(1 + index / 2 for index in range(64))
LISTS: dict[str, Any] = {"short_factor": SHORT, "long_factor": LONG}


def plain(theta: float = 1e4, dim: int = 128) -> NDArray[np.float64]:
    table: NDArray[np.float64] = theta ** (-np.arange(0, dim, 2) / dim)
    return table


def official(length: int, longest: int = L, **rope: Any) -> tuple[NDArray[np.float64], float]:
    """What transformers computes when the last position read is length - 1."""
    config = LlamaConfig(
        hidden_size=256,
        num_attention_heads=2,
        max_position_embeddings=longest,
        rope_parameters={"rope_theta": 1e4, **rope},
    )
    table, attention = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, seq_len=length)
    return table.double().numpy(), attention


@pytest.mark.parametrize("dynamic_factor", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("length", [100, L, L + 1, 2 * L, 33333])
def test_ntk_dynamic_is_transformers_dynamic_at_that_length(length: int, dynamic_factor: float) -> None:
    expected, attention = official(length, rope_type="dynamic", factor=dynamic_factor)
    scaled = scale_frequencies(
        "ntk-dynamic", plain(), native_window=L, factor=8, context_length=length, dynamic_factor=dynamic_factor
    )
    np.testing.assert_allclose(scaled.inv_freq, expected, rtol=1e-6)
    assert scaled.attention_factor == attention == 1.0


def test_ntk_dynamic_ends_where_ntk_is() -> None:
    """At the target it is NTK-aware with the target's factor, whatever factor it is called with; by default there."""
    wanted = scale_frequencies("ntk", plain(), native_window=L, factor=4).inv_freq
    for factor, length in ((4, None), (4, 4 * L), (9, 4 * L)):
        found = scale_frequencies("ntk-dynamic", plain(), native_window=L, factor=factor, context_length=length)
        np.testing.assert_allclose(found.inv_freq, wanted, rtol=1e-14)


def test_the_dynamic_factor_is_no_extension_ratio() -> None:
    """f = 4 at four times the window: 4 * 4 - 3 = 13."""
    scaled = scale_frequencies("ntk-dynamic", plain(), native_window=L, factor=4, dynamic_factor=4.0)
    assert scaled.inv_freq[-1] == pytest.approx(plain()[-1] / 13)


@given(st.floats(500, 1e8), st.integers(1, 64 * L))
def test_the_slowest_pair_never_turns_further_than_within_the_window(theta: float, length: int) -> None:
    scaled = scale_frequencies("ntk-dynamic", plain(theta), native_window=L, factor=2, context_length=length)
    assert scaled.inv_freq[0] == 1.0
    assert turns(scaled.inv_freq, length)[-1] <= turns(plain(theta), L)[-1] * (1 + 1e-12)


@pytest.mark.parametrize("length", [100, L, L + 1, 8 * L])
def test_longrope_is_transformers_longrope_at_that_length(length: int) -> None:
    expected, attention = official(
        length,
        longest=8 * L,
        rope_type="longrope",
        original_max_position_embeddings=L,
        **{name: list(values) for name, values in LISTS.items()},
    )
    scaled = scale_frequencies("longrope", plain(), native_window=L, factor=8, context_length=length, **LISTS)
    np.testing.assert_allclose(scaled.inv_freq, expected, rtol=1e-6)
    assert scaled.attention_factor == pytest.approx(attention, rel=1e-12)
    assert attention == pytest.approx(math.sqrt(1 + 3 / 12))  # ln 8 / ln 4096 = 3 / 12


def test_longrope_needs_a_factor_for_each_pair() -> None:
    with pytest.raises(UsageError, match="longrope with 63 factors on 64 rotary pairs"):
        scale_frequencies("longrope", plain(), native_window=L, factor=8, **{**LISTS, "long_factor": LONG[:63]})


def broken(method: str, scaled: Scaled, length: int, **options: Any) -> str:
    return broken_promise(method, plain(), scaled, native_window=L, factor=8, options=options, context_length=length)


@pytest.mark.parametrize("length", [1000, L, L + 1, 8 * L])
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("ntk-dynamic", {}),
        ("ntk-dynamic", {"dynamic_factor": 2.0}),
        ("longrope", LISTS),
        ("longrope", {**LISTS, "attention_factor": 1.5}),
        ("llama3", {}),
        ("llama3", {"original_window": 1024, "low_freq_factor": 2.0, "high_freq_factor": 20.0}),
    ],
)
def test_promises_hold(method: str, options: dict[str, Any], length: int) -> None:
    scaled = scale_frequencies(method, plain(), native_window=L, factor=8, context_length=length, **options)
    assert broken(method, scaled, length, **options) == ""


def test_slips_in_a_formula_break_a_promise() -> None:
    right = scale_frequencies("ntk-dynamic", plain(), native_window=L, factor=8, context_length=2 * L)
    assert "the slowest pair is multiplied by 0.5, promised was 0.25" in broken("ntk-dynamic", right, 4 * L)
    assert "within the window" in broken("ntk-dynamic", right, L)
    exponent_d = Scaled(plain() * 2.0 ** (-np.arange(64) / 64), 1.0)
    assert "the slowest pair" in broken("ntk-dynamic", exponent_d, 2 * L)

    short = scale_frequencies("longrope", plain(), native_window=L, factor=8, context_length=L, **LISTS)
    assert "over its long_factor" in broken("longrope", short, L + 1, **LISTS)
    multiplied = Scaled(plain() * np.array(SHORT), short.attention_factor)
    assert "over its short_factor" in broken("longrope", multiplied, L, **LISTS)
    assert "attention factor 1.25" in broken("longrope", Scaled(short.inv_freq, 1.25), L, **LISTS)

    llama3 = scale_frequencies("llama3", plain(), native_window=L, factor=8)
    swapped = Scaled(plain() * plain() / 8 / llama3.inv_freq, 1.0)
    assert broken("llama3", swapped, L)
    other = scale_frequencies("llama3", plain(), native_window=L, factor=8, original_window=2 * L)
    assert broken("llama3", other, L)
    smooth = Scaled(plain() * (llama3.inv_freq / plain()) ** 1.01, 1.0)
    assert "does not go with the turns" in broken("llama3", smooth, L)
