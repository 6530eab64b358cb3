"""What a run becomes once the native window is known."""

from __future__ import annotations

from typing import Any

import pytest

from ctxeval.errors import UsageError
from ctxeval.resolve import Resolved, resolve
from ctxeval.spec import ModelSpec, RunSpec, ScalingSpec

NATIVE = 4096


def resolved(**fields: Any) -> Resolved:
    return resolve(RunSpec(ModelSpec("demo"), **fields), NATIVE)


def test_the_factor_is_target_over_native() -> None:
    found = resolved(scales=("none", "yarn", "pi"), length=16384)
    assert found.scalings == (ScalingSpec("none"), ScalingSpec("yarn", 4.0), ScalingSpec("pi", 4.0))
    assert found.target == 16384
    assert found.lengths == (2048, 4096, 5120, 6144, 8192, 12288, 16384)
    assert found.depths == (0, 12.5, 25, 37.5, 50, 62.5, 75, 87.5, 100)
    assert found.native_window == NATIVE


def test_a_given_factor_is_taken_and_none_keeps_1() -> None:
    found = resolved(scales=("none", "yarn"), length=8192, factor=8.0)
    assert [one.factor for one in found.scalings] == [1.0, 8.0]
    assert found.target == 8192
    assert resolved(scales=("yarn",), factor=2.0).target == 8192
    assert resolved(scales=("yarn",), factor=2.0, length=2048).scalings[0].factor == 2.0


def test_lengths_override_the_grid_and_give_the_target_where_there_is_none() -> None:
    found = resolved(scales=("yarn",), lengths=(12288, 6144))
    assert (found.lengths, found.target, found.scalings[0].factor) == ((6144, 12288), 12288, 3.0)
    assert resolved(scales=("yarn",), lengths=(6144,), length=16384).scalings[0].factor == 4.0


@pytest.mark.parametrize("length", [1024, 4096])
def test_a_target_within_the_native_window_is_refused_without_a_factor(length: int) -> None:
    with pytest.raises(
        UsageError, match=f"--len {length} is not above the native window of 4096 tokens.*yarn, pi would"
    ):
        resolved(scales=("none", "yarn", "pi"), length=length)
    assert resolved(scales=("none",), length=length).target == length


def test_a_target_is_needed_but_for_none() -> None:
    with pytest.raises(UsageError, match="no target length.*--len"):
        resolved(scales=("none", "yarn"))
    assert resolved(scales=("none",)).lengths == (2048, 4096)


@pytest.mark.parametrize("factor", [0.5, 0.0, -2.0, float("nan"), float("inf")])
def test_a_factor_below_1_is_refused(factor: float) -> None:
    with pytest.raises(UsageError, match="factor"):
        resolved(scales=("yarn",), factor=factor)


def test_lengths_beyond_the_target_are_refused() -> None:
    with pytest.raises(UsageError, match=r"--lengths 32768 is beyond --len 16384.*--factor instead"):
        resolved(scales=("yarn",), lengths=(8192, 32768), length=16384)
    found = resolved(scales=("yarn",), lengths=(8192, 32768), factor=2.0)  # to see where a scaling ends
    assert (found.target, found.lengths) == (8192, (8192, 32768))


@pytest.mark.parametrize("lengths", [(0, 4096), (1, 8192), (-5, 8192)])
def test_lengths_below_2_are_refused(lengths: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="lengths are tokens, at least 2"):
        resolved(scales=("none",), lengths=lengths)


def test_the_reference_is_none_at_half_and_whole_window_whatever_is_asked() -> None:
    found = resolved(scales=("yarn",), lengths=(8192, 16384))
    assert found.reference_lengths == (2048, 4096)
    assert found.all_lengths == (2048, 4096, 8192, 16384)
    none, yarn = found.with_reference
    assert none == ScalingSpec("none")
    assert [length for length in found.all_lengths if found.measures(none, length)] == [2048, 4096]
    assert [length for length in found.all_lengths if found.measures(yarn, length)] == [8192, 16384]


def test_none_comes_first_and_once() -> None:
    found = resolved(scales=("yarn", "none", "pi"), length=8192)
    assert [one.method for one in found.with_reference] == ["none", "yarn", "pi"]
    assert all(found.measures(found.with_reference[0], length) for length in found.all_lengths)


def test_options_go_to_the_scalings_that_take_them() -> None:
    found = resolved(scales=("none", "pi", "yarn"), length=8192, scaling_options={"beta_fast": 16.0})
    assert [dict(one.options) for one in found.scalings] == [{}, {}, {"beta_fast": 16.0}]


def test_an_option_that_no_scaling_takes_is_refused() -> None:
    with pytest.raises(UsageError, match="no scaling of none, pi takes beta_fast. it belongs to ntk-parts, yarn"):
        resolved(scales=("none", "pi"), length=8192, scaling_options={"beta_fast": 16.0})
    with pytest.raises(UsageError, match="unknown RoPE option 'beta_fats'. Did you mean 'beta_fast'"):
        resolved(scales=("yarn",), length=8192, scaling_options={"beta_fats": 16.0})
    with pytest.raises(UsageError, match="scaling abf without rope_theta"):
        resolved(scales=("abf",), length=8192)
    with pytest.raises(UsageError, match="beta_fast -1"):
        resolved(scales=("yarn",), length=8192, scaling_options={"beta_fast": -1.0})


def test_from_scratch_stretches_the_pretrain_window() -> None:
    spec = RunSpec(ModelSpec("demo"), scales=("none", "yarn"), length=4096, from_scratch=True)
    found = resolve(spec, NATIVE, 1024)
    none, yarn = found.scalings
    assert (none, yarn) == (ScalingSpec("none"), ScalingSpec("yarn", 4.0, from_scratch=True))
    assert (found.window(none), found.window(yarn)) == (NATIVE, 1024)
    assert yarn.label == "yarn[from-scratch]"
    assert found.reference_lengths == (2048, 4096)
    assert found.lengths == (512, 1024, 1280, 1536, 2048, 3072, 4096)
    with pytest.raises(UsageError, match="--len 1024 is not above the pretrain window of 1024 tokens"):
        resolve(RunSpec(ModelSpec("demo"), scales=("yarn",), length=1024, from_scratch=True), NATIVE, 1024)
    with pytest.raises(UsageError, match="--from-scratch with none alone"):
        resolve(RunSpec(ModelSpec("demo"), from_scratch=True), NATIVE, 1024)


def test_composing_a_long_llama_stretches_its_native_window() -> None:
    """Llama 3.1 to 256k: twice its window; with the 8,192 it was pre-trained on it would be thirty-two times."""
    spec = RunSpec(ModelSpec("demo"), scales=("yarn",), length=2**18)
    assert resolve(spec, 2**17, 2**13).scalings[0].factor == 2
    assert (
        resolve(RunSpec(ModelSpec("demo"), scales=("yarn",), length=2**18, from_scratch=True), 2**17, 2**13)
        .scalings[0]
        .factor
        == 32
    )


def test_ntk_dynamic_goes_by_the_length_whatever_the_factor() -> None:
    found = resolved(scales=("yarn", "ntk-dynamic"), length=16384, factor=8.0)
    assert [one.factor for one in found.scalings] == [8.0, 4.0]
    with pytest.raises(UsageError, match="ntk-dynamic to 2048 tokens, within the native window of 4096"):
        resolved(scales=("ntk-dynamic",), length=2048, factor=8.0)


def test_what_depends_on_the_length_is_known_beforehand() -> None:
    assert resolved(scales=("none",)).varying == {"ntk-dynamic", "longrope"}
    assert "none" in resolve(RunSpec(ModelSpec("demo")), NATIVE, native_varies=True).varying


def test_factors_of_the_checkpoint_are_options_of_longrope_alone() -> None:
    lists = {"short_factor": (1.0, 1.0), "long_factor": (1.0, 2.0)}
    found = resolve(RunSpec(ModelSpec("demo"), scales=("yarn", "longrope"), length=8192), NATIVE, factors=lists)
    assert [dict(one.options) for one in found.scalings] == [{}, lists]
    assert len(found.scalings[1].label) == len("longrope[factors=123456]")
    other = ScalingSpec("longrope", 2.0, {**lists, "long_factor": (1.0, 3.0)})
    assert other.label != found.scalings[1].label


def test_perplexity_takes_all_documents_unless_told_otherwise() -> None:
    assert resolved(documents=5).perplexity_documents == 5
    assert resolved(documents=5, perplexity_documents=2).perplexity_documents == 2
    assert resolved(documents=5, perplexity_documents=9).perplexity_documents == 5
