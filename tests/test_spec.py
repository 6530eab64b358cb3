"""What the user may write, and what is said where it is wrong."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxeval.errors import ExitCode, UsageError
from ctxeval.spec import (
    ALIASES,
    METHODS,
    ModelSpec,
    RunSpec,
    ScalingSpec,
    default_lengths,
    differences,
    parse_depths,
    parse_length,
    parse_lengths,
    parse_method,
    parse_methods,
    spec_from_dict,
)

MODEL = ModelSpec("demo")


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("32768", 32768),
        ("32k", 32768),
        (" 32K ", 32768),
        ("1m", 1048576),
        ("1.5k", 1536),
        ("0.5k", 512),
        ("8_192", 8192),
    ],
)
def test_lengths_in_tokens(text: str, tokens: int) -> None:
    assert parse_length(text) == tokens


@pytest.mark.parametrize(
    "text", ["", "k", "many", "32 thousand", "0", "-4k", "1.0001k", "nan", "inf", "infk", "32kk", "3.5"]
)
def test_what_is_not_a_length(text: str) -> None:
    with pytest.raises(UsageError, match="length .* is not a") as caught:
        parse_length(text)
    assert repr(text) in caught.value.message
    assert caught.value.hint == "write 32768 or 32k"
    assert caught.value.exit_code == ExitCode.USAGE


def test_lists_of_lengths_are_sorted_and_unique() -> None:
    assert parse_lengths("8k, 2k,8192,,4k") == (2048, 4096, 8192)
    with pytest.raises(UsageError, match="no lengths in ' , '"):
        parse_lengths(" , ")
    with pytest.raises(UsageError, match="'4x'"):
        parse_lengths("2k,4x")


@given(st.integers(1, 2**24))
def test_a_number_of_tokens_is_read_back(tokens: int) -> None:
    assert parse_length(str(tokens)) == tokens
    assert parse_length(f"{tokens}k") == tokens * 1024


@pytest.mark.parametrize(
    ("text", "depths"),
    [
        ("0,25,50,75,100", (0, 25, 50, 75, 100)),
        ("11", tuple(range(0, 101, 10))),
        ("2", (0, 100)),
        ("50,", (50,)),
        ("100, 0 ,0,12.5", (0, 12.5, 100)),
    ],
)
def test_depths(text: str, depths: tuple[float, ...]) -> None:
    assert parse_depths(text) == depths


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0,120", "depth 120 is outside 0 to 100"),
        ("-1,50", "depth -1 is outside"),
        ("nan,50", "depth nan is outside"),
        ("a,b", "are not numbers"),
        ("", "no depths"),
        (",", "no depths"),
        ("1", "1 depths"),
        ("0", "0 depths"),
        ("2.5", "2.5 depths"),
        ("inf", "inf depths"),
    ],
)
def test_what_is_not_a_depth(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_depths(text)


def test_methods_and_their_aliases() -> None:
    assert parse_methods("none,yarn, PI ,linear,ntk_by_parts,ntk-aware") == ("none", "yarn", "pi", "ntk-parts", "ntk")
    assert parse_methods(["default"]) == ("none",)
    assert set(ALIASES.values()) <= set(METHODS)
    assert not set(ALIASES) & set(METHODS)


@pytest.mark.parametrize(
    ("name", "nearest"), [("yran", "yarn"), ("ntk-part", "ntk-parts"), ("linaer", "linear"), ("nonne", "none")]
)
def test_an_unknown_method_names_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_method(name)
    assert caught.value.message == f"unknown scaling {name!r}"
    assert caught.value.hint.startswith(f"Did you mean {nearest!r}? Known: ")
    assert all(method in caught.value.hint for method in METHODS)


def test_no_method_at_all() -> None:
    with pytest.raises(UsageError, match="no scaling in ' '"):
        parse_methods(" ")
    with pytest.raises(UsageError) as caught:
        parse_method("zzzzzz")
    assert caught.value.hint.startswith("Known: ")


def test_the_default_grid() -> None:
    assert default_lengths(4096, 32768) == (2048, 4096, 5120, 6144, 8192, 12288, 16384, 24576, 32768)
    assert default_lengths(4096, 4096) == (2048, 4096)
    assert default_lengths(4096, 9000) == (2048, 4096, 5120, 6144, 8192, 9000)
    assert default_lengths(4096, 131072)[-3:] == (32768, 65536, 131072)
    assert default_lengths(4096, 140000)[-3:] == (65536, 131072, 140000)
    assert default_lengths(8192, 1000) == (1000,)


@given(st.integers(16, 65536), st.integers(2, 2**20))
def test_the_default_grid_ends_at_the_target(native: int, target: int) -> None:
    lengths = default_lengths(native, target)
    assert lengths[-1] == target
    assert list(lengths) == sorted(set(lengths))
    if target >= native:
        assert {native // 2, native} <= set(lengths)


def test_labels_tell_options() -> None:
    assert ScalingSpec("yarn", 4.0).label == "yarn"
    assert ScalingSpec("yarn", 4.0, {"beta_slow": 2, "beta_fast": 16}).label == "yarn[beta_fast=16,beta_slow=2]"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"documents": 0}, "documents is 0"),
        ({"trials": 0}, "trials is 0"),
        ({"needles_per_context": -1}, "needles_per_context is -1"),
        ({"chunk": 0}, "chunk is 0"),
        ({"stride": 0}, "stride is 0"),
        ({"stride": -5}, "stride is -5"),
        ({"stride": 64, "protocol": "all"}, "stride 64 with the protocol all"),
        ({"perplexity_documents": 0}, "perplexity_documents is 0"),
        ({"scales": ()}, "no scaling in"),
        ({"scales": ("yran",)}, "unknown scaling 'yran'.*'yarn'"),
        ({"probes": ()}, "no probe given"),
        ({"probes": ("neddle",)}, "unknown probe 'neddle'.*'needle'"),
        ({"protocol": "tial"}, "unknown protocol 'tial'.*'tail'"),
        ({"depths": (0.0, 101.0)}, "depth 101 is outside"),
    ],
)
def test_a_spec_that_cannot_be_run_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        RunSpec(MODEL, **fields)


def test_aliases_count_as_what_they_stand_for() -> None:
    assert RunSpec(MODEL, scales=("default", "linear", "pi")).scales == ("none", "pi")


def test_a_spec_survives_the_way_through_a_manifest() -> None:
    spec = RunSpec(
        MODEL, scales=("none", "yarn"), lengths=(512, 1024), depths=(0.0, 50.0), scaling_options={"beta_fast": 16}
    )
    plain = asdict(spec) | {"scales": ["none", "yarn"], "lengths": [512, 1024], "depths": [0.0, 50.0]}
    assert spec_from_dict(plain | {"probes": list(spec.probes)}) == spec
    before = {name: value for name, value in plain.items() if name not in ("from_scratch", "pretrain_window")}
    assert spec_from_dict(before) == spec


def test_lists_of_factors_come_back_as_they_were_given() -> None:
    spec = RunSpec(MODEL, scaling_options={"long_factor": (1.0, 2.0)})
    assert spec_from_dict(json.loads(json.dumps(asdict(spec)))) == spec


@pytest.mark.parametrize(
    "data", [{}, {"model": {"name_or_path": "demo"}, "colour": 1}, {"model": {"path": "demo"}}, {"model": 3}]
)
def test_a_spec_of_another_version_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="the run's spec cannot be read"):
        spec_from_dict(data)


def test_differences_name_field_and_values() -> None:
    spec = RunSpec(MODEL)
    other = replace(spec, seed=1, model=ModelSpec("other"))
    assert differences(spec, spec) == []
    assert differences(spec, other) == ["seed 0 → 1", "name_or_path 'demo' → 'other'"]
