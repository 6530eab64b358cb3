"""Checkpoints that are scaled already: what can be told of both, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from ctxeval.errors import UsageError
from tests.export.conftest import configuration, ship

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 256}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 16,
    "long_factor": [2.0] * 16,
    "original_max_position_embeddings": 256,
    "factor": 4.0,
}


def scaled(rope: dict[str, Any]) -> Any:
    return configuration(rope_parameters=dict(rope), max_position_embeddings=1024)


@pytest.mark.parametrize("engine", ["hf", "hf-v4", "vllm", "sglang", "llama.cpp"])
@pytest.mark.parametrize("rope", [LLAMA3, YARN, DYNAMIC, LONGROPE])
def test_nothing_is_told_on_top(engine: str, rope: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"scaling yarn on a checkpoint that is scaled already.*{rope['rope_type']}"):
        ship(engine, scaled(rope), "yarn", length=4096)


@pytest.mark.parametrize("engine", ["hf", "hf-v4"])
@pytest.mark.parametrize("rope", [LLAMA3, YARN, LINEAR, LONGROPE])
def test_none_is_read_back_as_it_was(engine: str, rope: dict[str, Any]) -> None:
    made = ship(engine, scaled(rope), "none", length=1024).config or {}
    told = made["rope_parameters" if engine == "hf" else "rope_scaling"]
    assert told["rope_type"] == rope["rope_type"] and told["factor"] == rope["factor"]
    assert made["max_position_embeddings"] == 1024


@pytest.mark.parametrize("engine", ["hf", "hf-v4"])
@pytest.mark.parametrize(("scale", "options"), [("pi", {}), ("ntk", {}), ("abf", {"rope_theta": 1e6})])
def test_on_top_of_linear_scaling(engine: str, scale: str, options: dict[str, Any]) -> None:
    made = ship(engine, scaled(LINEAR), scale, length=4096, **options).config or {}
    scaling = made["rope_parameters" if engine == "hf" else "rope_scaling"]
    assert scaling["factor"] == (16.0 if scale == "pi" else 4.0)


@pytest.mark.parametrize("rope", [LLAMA3, YARN, LONGROPE])
@pytest.mark.parametrize("engine", ["hf", "hf-v4"])
def test_from_scratch_replaces_what_was_there(engine: str, rope: dict[str, Any]) -> None:
    made = ship(engine, scaled(rope), "yarn", length=2048, from_scratch=True).config or {}
    scaling = made["rope_parameters" if engine == "hf" else "rope_scaling"]
    assert (scaling["factor"], scaling["original_max_position_embeddings"]) == (8.0, 256)
    assert "low_freq_factor" not in scaling and "long_factor" not in scaling
    assert made["max_position_embeddings"] == 2048


def test_flags_do_not_undo_what_a_gguf_file_has() -> None:
    with pytest.raises(UsageError, match="a checkpoint scaled by llama3: its GGUF file has factors of its own"):
        ship("llama.cpp", scaled(LLAMA3), "yarn", length=2048, from_scratch=True)
    assert "--rope-scale" in ship("llama.cpp", scaled(LINEAR), "pi", length=4096).flags


def test_a_model_without_rope_is_refused() -> None:
    with pytest.raises(UsageError, match="GPT2LMHeadModel has no rotary"):
        ship("hf", configuration("gpt2"), "yarn", length=4096)
