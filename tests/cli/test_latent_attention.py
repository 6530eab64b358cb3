"""Multi-head latent attention, part of whose YaRN is in the softmax scale: what is shown and shipped of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctxeval.errors import UsageError
from tests.export.conftest import ship
from tests.rope.zoo import WINDOW, tiny_config


def deepseek() -> Any:
    """A DeepSeek-V3 that was extended fourfold by YaRN, as the published one by 40."""
    config = tiny_config("deepseek_v3")
    own = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": WINDOW}
    config.rope_parameters = {**config.rope_parameters, **own, "mscale": 1.0, "mscale_all_dim": 1.0}
    config.max_position_embeddings = 4 * WINDOW
    return config


@pytest.mark.parametrize("engine", ["hf", "hf-v4"])
def test_yarn_from_scratch_is_refused(engine: str) -> None:
    """Written without `mscale_all_dim`, it would turn cos and sin up instead of the softmax."""
    with pytest.raises(UsageError, match="yarn from scratch on a checkpoint with mscale_all_dim: its softmax"):
        ship(engine, deepseek(), "yarn", length=8 * WINDOW, from_scratch=True)


@pytest.mark.parametrize("scale", ["pi", "ntk", "ntk-parts"])
def test_from_scratch_without_a_temperature_it_ships(scale: str) -> None:
    made = ship("hf", deepseek(), scale, length=8 * WINDOW, from_scratch=True).config or {}
    assert "mscale_all_dim" not in made["rope_parameters"]


def test_rope_shows_the_temperature_that_the_patch_applies(invoke: Callable[..., Any], tmp_path: Path) -> None:
    """With mscale = mscale_all_dim cos and sin keep their factor, and the softmax takes (0.1 ln 4 + 1)² = 1.29648."""
    deepseek().save_pretrained(tmp_path / "mla")
    done = invoke("rope", "-m", tmp_path / "mla", "--scale", "yarn", "--factor", "4", "--format", "json")
    assert done.code == 0, done.err
    (shown,) = json.loads(done.out)["scalings"]
    assert shown["attention_factor"] == 1.0
    assert "note: yarn multiplies the softmax scale by 1.29648" in done.err


def test_rope_refuses_what_the_patch_refuses(invoke: Callable[..., Any], tmp_path: Path) -> None:
    deepseek().save_pretrained(tmp_path / "mla")
    options = ("--scale", "pi", "--factor", "4", "--attention-factor", "1.2")
    done = invoke("rope", "-m", tmp_path / "mla", *options)
    assert done.code == 2 and "its softmax holds a YaRN temperature already" in done.err
