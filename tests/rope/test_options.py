"""Options and factors that are refused, and what is said then."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ctxeval.errors import UsageError
from ctxeval.rope.options import validate_factor, validate_options, validate_window


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("none", {}),
        ("pi", {"attention_factor": 1.1}),
        ("yarn", {"beta_fast": 16, "beta_slow": 2, "truncate": False, "attention_factor": 1}),
        ("ntk-parts", {"beta_fast": 64.0}),
        ("abf", {"rope_theta": 5e5}),
        ("ntk-dynamic", {"dynamic_factor": 2}),
        ("llama3", {"low_freq_factor": 1, "high_freq_factor": 4.0, "original_window": 8192}),
        ("longrope", {"short_factor": (1.0, 1), "long_factor": [1.0, 2.5]}),
    ],
)
def test_good_options(method: str, options: dict[str, Any]) -> None:
    validate_options(method, options)


@pytest.mark.parametrize(
    ("method", "options", "text"),
    [
        ("yarm", {}, "unknown scaling 'yarm'. Did you mean 'yarn'?"),
        ("yarn", {"beta_fst": 32}, "unknown option of scaling yarn 'beta_fst'. Did you mean 'beta_fast'?"),
        ("pi", {"beta_fast": 32}, "scaling pi takes no option 'beta_fast'. it belongs to ntk-parts, yarn"),
        ("none", {"attention_factor": 1.1}, "scaling none takes no option 'attention_factor'"),
        ("none", {"x": 1}, "scaling none takes no options, got 'x'"),
        ("abf", {}, "scaling abf without rope_theta. give --rope-theta"),
        ("abf", {"rope_theta": 1}, "rope_theta 1. it must be a finite number above 1"),
        ("longrope", {}, "scaling longrope without short_factor. give --rope-factors"),
        ("longrope", {"short_factor": [1], "long_factor": [1, 0]}, "long_factor with 2 values"),
        ("longrope", {"short_factor": "1", "long_factor": [1]}, "short_factor with '1'"),
        ("ntk-dynamic", {"dynamic_factor": 0.5}, "dynamic_factor 0.5. it must be a finite number of at least 1"),
        ("llama3", {"high_freq_factor": 1}, "high_freq_factor 1 is not above low_freq_factor 1"),
        ("llama3", {"original_window": 8192.0}, "original_window 8192.0. it must be a whole number of tokens"),
        ("yarn", {"attention_factor": 0}, "attention_factor 0. it must be a finite number above 0"),
        ("yarn", {"attention_factor": math.nan}, "attention_factor nan"),
        ("yarn", {"attention_factor": "1"}, "attention_factor '1'"),
        ("yarn", {"attention_factor": True}, "attention_factor True"),
        ("yarn", {"truncate": 1}, "truncate 1. it must be true or false"),
        ("yarn", {"beta_slow": 0}, "beta_slow 0"),
        ("yarn", {"beta_fast": 1}, "beta_fast 1 is not above beta_slow 1"),
        ("yarn", {"beta_slow": 32}, "beta_fast 32 is not above beta_slow 32"),
    ],
)
def test_bad_options(method: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        validate_options(method, options)
    assert text in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize("factor", [0.99, 0, -2, math.inf, math.nan, "2", None, True])
def test_bad_factors(factor: Any) -> None:
    with pytest.raises(UsageError, match=r"factor .* at least 1"):
        validate_factor(factor)


@pytest.mark.parametrize("window", [0, -1, 4096.0, "4096", True])
def test_bad_windows(window: Any) -> None:
    with pytest.raises(UsageError, match=r"native window .* whole number"):
        validate_window(window)
