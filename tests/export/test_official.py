"""Scalings told as rope parameters, against values worked by hand and against transformers' own functions."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ctxeval.errors import UsageError
from ctxeval.export.official import meaning, official_parameters, plain_rope
from ctxeval.rope.scaling import Frequencies
from ctxeval.spec import ScalingSpec

PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
FACTORS = tuple(1 + pair / 8 for pair in range(64))


def native(theta: float = 10000.0, pairs: int = 64) -> Frequencies:
    return np.asarray(theta ** (-np.arange(pairs) / pairs))


def tell(method: str, base: dict[str, Any] = PLAIN, factor: float = 4.0, **options: Any) -> dict[str, Any]:
    inv_freq = native() / base.get("factor", 1.0)
    return official_parameters(ScalingSpec(method, factor, options), base, inv_freq, 4096).parameters


def test_pi_is_linear() -> None:
    assert tell("pi") == {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}


def test_ntk_is_another_base() -> None:
    """theta * 4**(128/126), worked by hand: 4**(128/126) = 4.08898…"""
    assert tell("ntk") == {"rope_type": "default", "rope_theta": pytest.approx(40889.8, rel=1e-5)}
    assert tell("abf", rope_theta=5e5) == {"rope_type": "default", "rope_theta": 5e5}


def test_yarn_leaves_nothing_to_an_engine() -> None:
    assert tell("yarn") == {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 4096,
        "attention_factor": pytest.approx(0.1 * math.log(4) + 1),
        "beta_fast": 32.0,
        "beta_slow": 1.0,
    }
    assert tell("ntk-parts")["attention_factor"] == 1.0
    own = tell("yarn", beta_fast=16, beta_slow=2, truncate=False, attention_factor=1.2)
    assert (own["beta_fast"], own["beta_slow"], own["truncate"], own["attention_factor"]) == (16.0, 2.0, False, 1.2)


def test_what_describes_the_model_is_kept() -> None:
    told = tell("yarn", {**PLAIN, "mrope_section": [16, 24, 24], "partial_rotary_factor": 0.5})
    assert told["mrope_section"] == [16, 24, 24] and told["partial_rotary_factor"] == 0.5


def test_on_top_of_linear_scaling_the_factors_multiply() -> None:
    assert tell("pi", LINEAR, 2.0) == {"rope_type": "linear", "rope_theta": 10000.0, "factor": 8.0}
    ntk = tell("ntk", LINEAR, 2.0)
    assert ntk["factor"] == 4.0 and ntk["rope_theta"] == pytest.approx(10000 * 2 ** (128 / 126))


@pytest.mark.parametrize("method", ["pi", "ntk", "yarn", "ntk-parts", "llama3", "abf"])
def test_nothing_is_told_on_top_of_llama3(method: str) -> None:
    options = {"rope_theta": 1e6} if method == "abf" else {}
    with pytest.raises(
        UsageError, match=rf"scaling {method} on a checkpoint that is scaled already.*llama3.*says both"
    ):
        tell(method, LLAMA3, **options)


def test_yarn_is_not_told_on_top_of_linear() -> None:
    with pytest.raises(UsageError, match=r"rope_type linear.*abf, ntk, pi can be told on top of linear"):
        tell("yarn", LINEAR)


def test_none_is_the_checkpoint_as_it_is() -> None:
    assert tell("none", LLAMA3) == LLAMA3


def test_a_table_that_is_not_that_of_its_base_is_refused() -> None:
    """The numbers decide, not the names: a checkpoint whose frequencies deviate from its theta says so here."""
    odd = native() * np.linspace(1, 0.99, 64)
    with pytest.raises(UsageError, match=r"rope_type linear would turn pair 63 at .* measured was"):
        official_parameters(ScalingSpec("pi", 4.0), PLAIN, odd, 4096)


@pytest.mark.parametrize("key", ["mscale_all_dim", "llama_4_scaling_beta"])
def test_what_acts_outside_the_tables_is_refused(key: str) -> None:
    with pytest.raises(UsageError, match=f"a checkpoint with {key}"):
        tell("pi", {**PLAIN, key: 0.1})


def test_plain_rope_drops_the_scaling_and_keeps_the_model() -> None:
    parameters, inv_freq = plain_rope({**LLAMA3, "partial_rotary_factor": 0.5}, native() / 3)
    assert parameters == {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    np.testing.assert_allclose(inv_freq, native())


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("pi", {}),
        ("yarn", {}),
        ("ntk-parts", {"beta_fast": 16.0}),
        ("yarn", {"truncate": False, "attention_factor": 1.3}),
        ("llama3", {"original_window": 1024}),
        ("longrope", {"short_factor": FACTORS, "long_factor": FACTORS[::-1]}),
        ("ntk-dynamic", {"dynamic_factor": 2.0}),
    ],
)
@pytest.mark.parametrize("length", [4096, 16384])
def test_parameters_mean_to_transformers_what_they_mean_here(method: str, options: dict[str, Any], length: int) -> None:
    parameters = tell(method, **options)
    config = SimpleNamespace(
        rope_parameters=parameters,
        standardize_rope_params=lambda: None,
        head_dim=128,
        hidden_size=4096,
        num_attention_heads=32,
        max_position_embeddings=4096,
    )
    table, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, seq_len=length)
    ours = meaning(parameters, 64, 4096, length)
    np.testing.assert_allclose(table.double().numpy(), ours.inv_freq, rtol=1e-6)
    assert factor == pytest.approx(ours.attention_factor)
