"""What a scaling starts from on checkpoints that are scaled already: their own frequencies, or plain RoPE."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ctxeval.errors import UsageError
from ctxeval.model.reader import Reader
from ctxeval.rope.patch import RopePatch
from ctxeval.rope.scaled import scaled_rope
from ctxeval.rope.verify import prove
from tests.rope.zoo import build, tiny_config

Make = Callable[..., Any]
ORIGINAL, NATIVE, TARGET = 64, 256, 1024
PLAIN = 1e4 ** (-np.arange(0, 16, 2) / 16)
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": ORIGINAL,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": ORIGINAL}
LISTS = {
    "short_factor": [1.0, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6],
    "long_factor": [1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0],
}
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": ORIGINAL, **LISTS}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
SCALED = {
    "llama3": LLAMA3,
    "yarn": YARN,
    "longrope": LONGROPE,
    "dynamic": DYNAMIC,
    "linear": {**DYNAMIC, "rope_type": "linear"},
}


def table(patch: RopePatch) -> Any:
    return patch.sites[0].inv_freq.double().numpy()


@pytest.mark.parametrize("kind", SCALED)
@pytest.mark.parametrize("method", ["pi", "ntk", "ntk-dynamic", "yarn", "llama3"])
@pytest.mark.parametrize("from_scratch", [False, True])
def test_every_scaling_is_proved_on_every_scaled_checkpoint(
    make: Make, kind: str, method: str, from_scratch: bool
) -> None:
    model = make("llama", rope=SCALED[kind])
    window = ORIGINAL if from_scratch else NATIVE
    with scaled_rope(model, method, factor=TARGET / window, native_window=window, from_scratch=from_scratch) as patch:
        prove(patch, native_window=window, target_length=TARGET)


@pytest.mark.parametrize("kind", SCALED)
def test_from_scratch_is_the_official_scaling_of_plain_rope(make: Make, logits: Any, kind: str) -> None:
    """Phi, Llama and Qwen alike: as if the checkpoint's own scaling had never been in the configuration."""
    model = make("llama", rope=SCALED[kind])
    official = make("llama", rope={**YARN, "factor": 16.0}, weights=model.state_dict())
    with scaled_rope(model, "yarn", factor=16, native_window=ORIGINAL, from_scratch=True) as patch:
        np.testing.assert_allclose(table(patch), official.model.rotary_emb.inv_freq.double().numpy(), rtol=2e-6)
        np.testing.assert_allclose(logits(model), logits(official), atol=1e-3)  # fp64 arithmetic against fp32
        assert patch.applied.from_scratch
        assert patch.sites[0].attention_scaling == official.model.rotary_emb.attention_scaling


def test_composing_divides_what_the_checkpoint_has(make: Make) -> None:
    for kind, native in (
        ("llama3", None),
        ("yarn", None),
        ("dynamic", PLAIN),
        ("longrope", PLAIN / LISTS["long_factor"]),
    ):
        model = make("llama", rope=SCALED[kind])
        expected = model.model.rotary_emb.inv_freq.double().numpy() if native is None else native
        with scaled_rope(model, "pi", factor=4, native_window=NATIVE) as patch:
            np.testing.assert_allclose(table(patch), expected / 4, rtol=1e-6)


def test_a_yarn_checkpoints_temperature_is_multiplied_by_the_methods_own(make: Make) -> None:
    model = make("qwen2", rope=YARN)
    native = 0.1 * np.log(4) + 1
    for method, from_scratch, factor in (
        ("pi", False, native),
        ("yarn", False, native * (0.1 * np.log(2) + 1)),
        ("pi", True, 1.0),
        ("yarn", True, 0.1 * np.log(2) + 1),
    ):
        with scaled_rope(model, method, factor=2, native_window=NATIVE, from_scratch=from_scratch) as patch:
            assert patch.sites[0].attention_scaling == pytest.approx(factor)
    with scaled_rope(model, "yarn", factor=2, native_window=NATIVE, attention_factor=1.0) as patch:
        assert patch.sites[0].attention_scaling == pytest.approx(native)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
@pytest.mark.parametrize("length", [40, ORIGINAL + 1, NATIVE + 1, TARGET])
def test_none_frozen_at_a_length_is_what_the_checkpoint_does_at_that_length(make: Make, kind: str, length: int) -> None:
    model = make("llama", rope=SCALED[kind])
    fresh = make("llama", rope=SCALED[kind], weights=model.state_dict())
    ids = torch.randint(3, 256, (1, length), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = fresh(input_ids=ids, use_cache=False).logits
    patch = RopePatch(model)
    patch.apply("none", context_length=length)
    prove(patch, native_window=NATIVE, target_length=length)
    # Read in two pieces: keys of the first are those of the whole, which the checkpoint left alone does not give.
    reader = Reader(model, length)
    numbers = ids[0].numpy().astype(np.int32)
    pieces = [reader.read(numbers[:30], [0, 29]), reader.read(numbers[30:], [0, length - 31])]
    np.testing.assert_allclose(torch.cat(pieces), expected[0, [0, 29, 30, length - 1]], atol=1e-3)
    patch.restore()
    with torch.no_grad():
        np.testing.assert_array_equal(model(input_ids=ids, use_cache=False).logits, expected)


def test_freezing_does_not_depend_on_what_was_read_before(make: Make) -> None:
    model = make("llama", rope=LONGROPE)
    with torch.no_grad():
        model(input_ids=torch.arange(1, 100)[None], use_cache=False)  # leaves the long table in the module
    patch = RopePatch(model)
    patch.apply("none", context_length=ORIGINAL)
    np.testing.assert_allclose(table(patch), PLAIN / LISTS["short_factor"], rtol=1e-6)
    patch.apply("none", context_length=ORIGINAL + 1)
    np.testing.assert_allclose(table(patch), PLAIN / LISTS["long_factor"], rtol=1e-6)


def test_longrope_takes_the_checkpoints_factors_from_scratch_only(make: Make) -> None:
    model = make("phi3", rope=LONGROPE, original_max_position_embeddings=ORIGINAL)
    with (
        pytest.raises(UsageError, match=r"apply its factors a second time\. none is the checkpoint as it is"),
        scaled_rope(model, "longrope", factor=4),
    ):
        pass
    with scaled_rope(model, "longrope", factor=4, from_scratch=True, context_length=ORIGINAL) as patch:
        np.testing.assert_allclose(table(patch), PLAIN / LISTS["short_factor"], rtol=1e-6)
        assert patch.applied.native_window == ORIGINAL
    with scaled_rope(model, "longrope", factor=4, **LISTS) as patch:
        np.testing.assert_allclose(table(patch), PLAIN / np.square(LISTS["long_factor"]), rtol=1e-6)
        assert patch.applied.native_window == NATIVE
    with (
        pytest.raises(UsageError, match="longrope without factors: the checkpoint has none. give --rope-factors"),
        scaled_rope(make("llama"), "longrope", factor=4),
    ):
        pass


def test_from_scratch_on_a_plain_checkpoint_is_composing(make: Make) -> None:
    model = make("gpt_neox")  # partial rotary
    with scaled_rope(model, "yarn", factor=4) as patch:
        composed = table(patch)
    with scaled_rope(model, "yarn", factor=4, from_scratch=True) as patch:
        np.testing.assert_array_equal(table(patch), composed)


def test_from_scratch_needs_to_know_what_the_checkpoint_was_pre_trained_on() -> None:
    """A linear scaling does not say: its extended window, taken for L, would ask four times too much."""
    config = tiny_config("qwen2")
    config.rope_parameters = {**config.rope_parameters, "rope_type": "linear", "factor": 4.0}
    model = build(config)
    with (
        pytest.raises(UsageError, match="linear checkpoint that does not say.*native_window="),
        scaled_rope(model, "yarn", factor=4, from_scratch=True),
    ):
        raise AssertionError
    with scaled_rope(model, "yarn", factor=4, from_scratch=True, native_window=64) as patch:
        assert patch.applied.native_window == 64


def test_a_scaled_phimoe_is_refused() -> None:
    """Its forward heeds neither the length nor the module's factor: `none` would not be the checkpoint."""
    config = tiny_config("phimoe")
    pairs = config.hidden_size // config.num_attention_heads // 2
    factors = {"short_factor": [1.0] * pairs, "long_factor": [2.0] * pairs, "short_mscale": 1.2, "long_mscale": 1.2}
    own = {"rope_type": "longrope", **factors, "original_max_position_embeddings": ORIGINAL}
    config.rope_parameters = {**config.rope_parameters, **own}
    with pytest.raises(UsageError, match="rotary_emb .PhimoeRotaryEmbedding. with rope type longrope.*long_mscale"):
        RopePatch(build(config))
