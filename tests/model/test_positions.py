"""What is said of models without rotary frequencies, held against what they can really read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import XLNetConfig

from ctxeval.errors import UsageError
from ctxeval.model.geometry import read_geometry
from ctxeval.model.positions import check_positions, make_room, read_positions
from ctxeval.model.skeleton import skeleton
from ctxeval.rope.sites import has_sites
from ctxeval.rope.windows import read_windows
from ctxeval.spec import ModelSpec
from tests.model.tiny_models import build

DECODER = {"d_model": 64, "decoder_layers": 1, "decoder_attention_heads": 4, "decoder_ffn_dim": 64}
ROWS: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "openai-gpt": {},
    "opt": {"word_embed_proj_dim": 64, "ffn_dim": 64},
    "biogpt": {},
    "bart": DECODER,
    "pegasus": DECODER,
    "roberta": {"is_decoder": True},
    "bert": {"is_decoder": True},
    "ctrl": {"dff": 64},
    "gptj": {"n_embd": 64, "n_head": 4, "n_layer": 1, "rotary_dim": 8, "n_positions": 512},
    "codegen": {"n_embd": 64, "n_head": 4, "n_layer": 1, "rotary_dim": 8, "n_positions": 512},
}
NO_LIMIT: dict[str, dict[str, Any]] = {
    "xglm": {"d_model": 64, "num_layers": 1, "attention_heads": 4, "ffn_dim": 64},
    "bloom": {},
    "mpt": {"max_seq_len": 64},
    "mamba": {},
    "jamba": {},
    "rwkv": {"attention_hidden_size": 64, "context_length": 64},
}


def reads(model: Any, count: int) -> bool:
    try:
        with torch.inference_mode():
            model(torch.full((1, count), 7))
    except (IndexError, RuntimeError):
        return False
    return True


@pytest.mark.parametrize("kind", ROWS)
def test_rows_are_as_many_tokens_as_the_model_can_read(kind: str) -> None:
    model = build(kind, **ROWS[kind])
    rows = read_positions(model).rows
    assert rows is not None
    assert reads(model, rows)
    assert not reads(model, rows + 1)


@pytest.mark.parametrize("kind", NO_LIMIT)
def test_what_has_no_rows_reads_on(kind: str) -> None:
    model = build(kind, **NO_LIMIT[kind])
    assert read_positions(model).rows is None
    make_room(model, 600)
    assert reads(model, 600)


def test_room_changes_no_bias() -> None:
    model = build("mpt", max_seq_len=256)
    ids = torch.randint(3, 512, (1, 200), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        before = model(ids).logits
        make_room(model, 1000)
        assert torch.equal(model(ids).logits, before)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("cpmant", "relative position biases"),
        ("xglm", "fixed sinusoid table"),
        ("rwkv", "state-space or recurrent model"),
        ("jamba", "whose attention has no positions (NoPE)"),
    ],
)
def test_the_scheme_is_named(kind: str, text: str) -> None:
    model = build(kind, **NO_LIMIT.get(kind, {}))
    assert not has_sites(model)
    assert text in read_positions(model).text
    with pytest.raises(UsageError, match="yarn on .* has no rotary frequencies"):
        check_positions(model, ["none", "yarn"], 10)


@pytest.mark.parametrize("kind", ["gpt2", "opt", "gptj", "mamba", "phi3", "deepseek_v3"])
def test_a_skeleton_says_what_the_model_says(kind: str) -> None:
    model = build(kind)
    bare = skeleton(ModelSpec("unused"), model.config)
    assert bare is not None
    assert all(parameter.is_meta for parameter in bare.parameters())
    assert has_sites(bare) == has_sites(model)
    assert read_positions(bare) == read_positions(model)
    assert read_geometry(model.config, bare) == read_geometry(model.config, model)


def test_a_configuration_that_refuses_to_name_its_window_has_none() -> None:
    with pytest.raises(UsageError, match="no context window in the xlnet configuration"):
        read_windows(XLNetConfig())


def test_layers_without_keys_cost_no_attention() -> None:
    mamba, jamba = (read_geometry(model.config, model) for model in (build("mamba"), build("jamba")))
    assert mamba.attention_flops(0, 100) == mamba.kv_bytes(100) == 0
    assert jamba.kv_bytes(100) == 2 * 1 * 2 * 16 * 100 * 2
    assert read_geometry(build("gpt2").config).dense_parameters > 0  # without a model: no crash, an upper bound


def test_dense_parameters_are_the_matrices() -> None:
    geometry = read_geometry(build("gpt2").config, build("gpt2"))
    assert geometry.dense_parameters == 2 * (64 * 3 * 64 + 64 * 64 + 2 * 64 * 256)
