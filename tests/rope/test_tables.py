"""Models that look sin and cos up: their tables are read, rewritten for the target, and given back."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ctxeval.errors import RunError
from ctxeval.rope.emission import emit
from ctxeval.rope.patch import RopePatch
from ctxeval.rope.scaled import scaled_rope
from ctxeval.rope.tables import TableSite, plain_frequencies
from ctxeval.rope.verify import prove
from tests.rope.examine import forward
from tests.rope.zoo import WINDOW, build, tiny_config

KINDS = ["gptj", "codegen", "roformer"]


def model_of(kind: str) -> Any:
    return build(tiny_config(kind))


def table_of(patch: RopePatch) -> torch.Tensor:
    (site,) = patch.sites
    assert isinstance(site, TableSite)
    return site.table


@pytest.mark.parametrize("kind", KINDS)
def test_the_frequencies_are_read_from_the_table(kind: str) -> None:
    patch = RopePatch(model_of(kind))
    (site,) = patch.sites
    assert torch.equal(site.inv_freq, plain_frequencies(2 * site.inv_freq.numel()))
    assert (site.attention_scaling, site.original_inv_freq, site.rope_type) == (1.0, None, "default")
    sin, cos = table_of(patch)[7].chunk(2)
    torch.testing.assert_close(sin, (7 * site.inv_freq).sin(), rtol=0, atol=1e-6)
    torch.testing.assert_close(cos, (7 * site.inv_freq).cos(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_interpolated_rows_are_the_native_ones_further_apart(kind: str) -> None:
    model = model_of(kind)
    native = table_of(RopePatch(model)).clone()
    with scaled_rope(model, "pi", factor=4, native_window=WINDOW) as patch:
        table = table_of(patch)
        assert table.shape == (4 * WINDOW, native.shape[1])
        torch.testing.assert_close(table[::4], native, rtol=0, atol=3e-5)
        cos, sin = emit(patch.sites[0], [0, 4, 1020])
        assert cos.shape == sin.shape == (3, native.shape[1] // 2)
        assert cos[1] == pytest.approx(native[1].chunk(2)[1].numpy(), abs=1e-6)
    assert torch.equal(table_of(RopePatch(model)), native)


@pytest.mark.parametrize("kind", KINDS)
def test_unscaled_it_reads_on_with_the_same_frequencies(kind: str) -> None:
    """What other models do beyond their window: the first rows keep every bit."""
    model = model_of(kind)
    ids = torch.randint(3, 250, (1, WINDOW), generator=torch.Generator().manual_seed(3))
    before, native = forward(model, ids), table_of(RopePatch(model)).clone()
    patch = RopePatch(model)
    patch.apply("none", target_length=2 * WINDOW)
    assert len(table_of(patch)) == 2 * WINDOW
    assert torch.equal(table_of(patch)[:WINDOW], native)
    assert prove(patch, native_window=WINDOW, target_length=2 * WINDOW).logits_change == 0
    assert torch.equal(forward(model, ids), before)
    patch.restore()
    assert torch.equal(table_of(patch), native)


def test_the_temperature_is_in_the_table() -> None:
    with scaled_rope(model_of("gptj"), "yarn", factor=4, native_window=WINDOW) as patch:
        (site,) = patch.sites
        assert site.attention_scaling == pytest.approx(1.1386294, rel=1e-6)
        site.write_attention_scaling(2.0)
        assert site.attention_scaling == pytest.approx(2.0, rel=1e-6)


def test_a_table_in_bf16_is_known_and_proved() -> None:
    """RoFormer's is a parameter, which loading in bf16 rounds: its values lose bits, its angles do not."""
    model = model_of("roformer").to(torch.bfloat16)
    patch = RopePatch(model)
    (site,) = patch.sites
    assert torch.equal(site.inv_freq, plain_frequencies(2 * site.inv_freq.numel()))
    patch.apply("pi", factor=4, native_window=WINDOW)
    assert table_of(patch).dtype == torch.bfloat16
    assert prove(patch, native_window=WINDOW, target_length=4 * WINDOW).max_error < 2**-8


def test_a_position_without_a_row_is_said() -> None:
    patch = RopePatch(model_of("gptj"))
    with pytest.raises(RunError, match=r"transformer\.rotary_emb has 256 rows: there is none for position 256"):
        prove(patch, native_window=WINDOW, target_length=WINDOW + 1)


def test_sinusoids_that_are_added_are_not_taken_for_rotations() -> None:
    from ctxeval.errors import UsageError

    with pytest.raises(UsageError, match="fixed sinusoid table"):
        RopePatch(build(tiny_config("marian")))
