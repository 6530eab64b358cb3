"""The two windows, as published checkpoints configure them."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoConfig

from ctxeval.errors import UsageError
from ctxeval.rope.windows import Windows, read_windows

LLAMA31 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("kind", "settings", "native", "pretrain"),
    [
        ("llama", {"max_position_embeddings": 4096}, 4096, 4096),
        ("llama", {"max_position_embeddings": 131072, "rope_parameters": LLAMA31}, 131072, 8192),
        ("qwen2", {"max_position_embeddings": 32768, "rope_parameters": YARN}, 131072, 32768),
        ("qwen2", {"max_position_embeddings": 131072, "rope_parameters": YARN}, 131072, 32768),
        ("gpt_oss", {}, 131072, 4096),
        ("gemma3_text", {"max_position_embeddings": 131072}, 131072, 131072),
        ("gemma3", {"text_config": {"max_position_embeddings": 32768}}, 32768, 32768),
        ("gpt2", {}, 1024, 1024),
    ],
)
def test_published_configurations(kind: str, settings: dict[str, Any], native: int, pretrain: int) -> None:
    windows = read_windows(AutoConfig.for_model(kind, **settings))
    assert (windows.native, windows.pretrain) == (native, pretrain)


def test_sources_are_named() -> None:
    config = SimpleNamespace(max_position_embeddings=32768, rope_scaling={"type": "yarn", **YARN})
    assert read_windows(config) == Windows(
        131072,
        32768,
        "factor 4 * rope_parameters.original_max_position_embeddings",
        "rope_parameters.original_max_position_embeddings",
    )


def test_the_top_level_key_wins() -> None:
    config = SimpleNamespace(
        max_position_embeddings=131072,
        original_max_position_embeddings=4096,
        rope_parameters={"rope_type": "longrope", "original_max_position_embeddings": 99},
    )
    assert read_windows(config) == Windows(131072, 4096, "max_position_embeddings", "original_max_position_embeddings")


def test_global_layers_decide() -> None:
    rope = {"sliding_attention": {"rope_type": "default"}, "full_attention": YARN}
    windows = read_windows(SimpleNamespace(max_position_embeddings=32768, rope_parameters=rope))
    assert (windows.native, windows.pretrain) == (131072, 32768)


def test_unscaled_is_not_stretched_by_left_over_keys() -> None:
    rope = {**YARN, "rope_type": "default"}
    windows = read_windows(SimpleNamespace(max_position_embeddings=2048, rope_parameters=rope))
    assert (windows.native, windows.pretrain) == (2048, 2048)


def test_overrides() -> None:
    config = SimpleNamespace(max_position_embeddings=4096)
    assert read_windows(config, native_override=2048) == Windows(
        2048, 4096, "--native-window", "max_position_embeddings"
    )
    assert read_windows(config, pretrain_override=1024) == Windows(
        4096, 1024, "max_position_embeddings", "--pretrain-window"
    )
    with pytest.raises(UsageError, match="native window 0"):
        read_windows(config, native_override=0)


def test_no_window_at_all() -> None:
    with pytest.raises(UsageError, match=r"no context window in the odd configuration\. give --native-window"):
        read_windows(SimpleNamespace(model_type="odd"))
    assert read_windows(SimpleNamespace(model_type="odd"), native_override=512).pretrain == 512


def test_pure_modules_import_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, ctxeval.rope.scaling, ctxeval.rope.windows, ctxeval.rope.facts;"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
