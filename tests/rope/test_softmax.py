"""YaRN's temperature on models with latent attention, where it is meant to be; and whether a model follows one."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from ctxeval.errors import UsageError
from ctxeval.rope.patch import RopePatch
from ctxeval.rope.verify import prove
from tests.rope.examine import set_rope
from tests.rope.references import MSCALE
from tests.rope.zoo import WINDOW, build, tiny_config

FACTOR = 4.0
ALL_DIM = 0.1 * math.log(FACTOR) + 1
ROTARY = (0.1 * 0.707 * math.log(FACTOR) + 1) / ALL_DIM


def patch_of(kind: str, **rope: Any) -> RopePatch:
    config = tiny_config(kind)
    set_rope(config, rope)
    return RopePatch(build(config))


def yarn(patch: RopePatch, **more: Any) -> None:
    patch.apply("yarn", **{"factor": FACTOR, "native_window": WINDOW, **more})


def test_it_is_split_between_rotation_and_softmax() -> None:
    patch = patch_of("deepseek_v3", **MSCALE)
    native = patch.native_softmax
    assert native == pytest.approx([32**-0.5] * 4)
    before = patch.frequencies_sha256()
    yarn(patch)
    assert [scale.value for scale in patch.softmax] == pytest.approx([32**-0.5 * ALL_DIM**2] * 4)
    assert patch.sites[0].attention_scaling == pytest.approx(ROTARY)
    assert patch.frequencies_sha256() != before
    proof = prove(patch, native_window=WINDOW, target_length=4 * WINDOW)
    assert (proof.softmax_factor, proof.temperature) == (pytest.approx(ALL_DIM**2), "effective")
    patch.restore()
    assert tuple(scale.value for scale in patch.softmax) == native
    assert patch.frequencies_sha256() == before


def test_other_methods_leave_the_softmax_alone() -> None:
    patch = patch_of("deepseek_v3", **MSCALE)
    yarn(patch)
    for method in ("pi", "ntk", "ntk-parts", "none"):
        patch.apply(method, factor=FACTOR, native_window=WINDOW)
        assert tuple(scale.value for scale in patch.softmax) == patch.native_softmax
        assert prove(patch, native_window=WINDOW, target_length=4 * WINDOW).softmax_factor == 1
    with pytest.raises(UsageError, match="ntk on a model with mscale_all_dim: its softmax holds a YaRN temperature"):
        patch.apply("ntk", factor=FACTOR, native_window=WINDOW, attention_factor=1.2)


def test_a_factor_that_was_chosen_is_for_cos_and_sin() -> None:
    patch = patch_of("deepseek_v3", **MSCALE)
    yarn(patch, attention_factor=1.0)
    assert patch.sites[0].attention_scaling == 1.0
    assert patch.softmax[0].value == pytest.approx(32**-0.5 * ALL_DIM**2)


def test_on_a_scaled_checkpoint_it_composes_or_starts_from_scratch() -> None:
    rope = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": WINDOW // 2, **MSCALE}
    patch = patch_of("deepseek_v3", **rope)
    own = (0.1 * math.log(2) + 1) ** 2
    assert patch.native_softmax[0] == pytest.approx(32**-0.5 * own)
    yarn(patch)
    assert patch.softmax[0].value == pytest.approx(32**-0.5 * own * ALL_DIM**2)
    yarn(patch, native_window=WINDOW // 2, from_scratch=True)
    assert patch.softmax[0].value == pytest.approx(32**-0.5 * ALL_DIM**2)
    assert prove(patch, native_window=WINDOW // 2, target_length=2 * WINDOW).temperature == "effective"


def test_without_mscale_all_dim_the_softmax_is_not_touched() -> None:
    patch = patch_of("deepseek_v3")
    yarn(patch)
    assert patch.softmax == ()
    assert patch.sites[0].attention_scaling == pytest.approx(ALL_DIM)


@pytest.mark.parametrize(
    ("kind", "method", "expected"),
    [
        ("llama", "yarn", "effective"),
        ("llama", "pi", "none"),
        ("hunyuan_v1_dense", "yarn", "inert"),
        ("llama4_text", "yarn", "inert"),
        ("nanochat", "yarn", "inert"),
        ("nanochat", "ntk-parts", "none"),
        ("qwen3", "yarn", "effective"),  # normalises q and k before RoPE
        ("phimoe", "yarn", "effective"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_whether_the_model_follows_a_temperature(kind: str, method: str, expected: str, dtype: torch.dtype) -> None:
    model = build(tiny_config(kind))
    model.to(dtype)
    patch = RopePatch(model)
    patch.apply(method, factor=FACTOR, native_window=WINDOW)
    assert prove(patch, native_window=WINDOW, target_length=4 * WINDOW).temperature == expected
