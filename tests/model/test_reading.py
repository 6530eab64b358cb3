"""Whether a cache may be used is proved on the model: caches that lose, keep or ignore something are found out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ctxeval.engine.execute import execute
from ctxeval.engine.plan import Prompt, build_tree, forwarded_tokens, unshared
from ctxeval.errors import RunError
from ctxeval.model import reader as reader_module
from ctxeval.model.cache import PreallocatedLayer
from ctxeval.model.precise import in_fp32
from ctxeval.model.reader import Reader
from ctxeval.model.reading import Reading, choose_reading
from tests.model.tiny_models import build

LONGEST, CHUNK = 400, 100
COPIED, WHOLE = "are copied where prompts part", "every prompt is read whole"


def tokens(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, 512, count).astype(np.int32)


def full(model: Any, ids: np.ndarray) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.as_tensor(ids.astype(np.int64))[None], use_cache=False).logits[0]
    return logits


# --- the proof


@pytest.mark.parametrize(
    ("kind", "settings", "note"),
    [
        ("llama", {}, ""),
        ("bloom", {}, ""),
        ("gemma3_text", {}, "({1} DynamicSlidingWindowLayer, of 2 layers)".replace("{1}", "1")),
        ("mamba2", {}, "(2 LinearAttentionLayer, of 2 layers)"),
        ("mamba", {}, "logits are off by"),  # its scan begins every piece with an empty state
        ("rwkv", {"attention_hidden_size": 64}, "logits are off by"),  # takes no cache, and says nothing
        ("xlstm", {"num_heads": 4}, "the model takes no cache"),
    ],
)
def test_the_way_of_reading_is_found(kind: str, settings: dict[str, Any], note: str) -> None:
    reading = choose_reading(build(kind, **settings), LONGEST, CHUNK)
    assert note in reading.note
    assert bool(note) == bool(reading.note)
    assert reading.whole == reading.note.startswith(WHOLE)


def test_half_precision_does_not_hide_a_lost_state() -> None:
    """In bf16 Jamba's lost states are less than what rounding may do: only the fp32 pass sees them."""
    model = build("jamba").to(torch.bfloat16)
    assert choose_reading(model, LONGEST, CHUNK).whole
    fine = build("mamba2").to(torch.bfloat16)
    assert not choose_reading(fine, LONGEST, CHUNK).whole
    assert not choose_reading(build("llama").to(torch.bfloat16), LONGEST, CHUNK).whole


def share_the_state(cache: Any) -> dict[int, Any]:
    return {index: copy.copy(layer) for index, layer in enumerate(cache.layers)}


def copy_nothing(cache: Any) -> dict[int, Any]:
    return dict(enumerate(cache.layers))


@pytest.mark.parametrize("wrong", [share_the_state, copy_nothing])
@pytest.mark.parametrize("kind", ["mamba2", "gemma3_text"])
def test_a_state_that_is_lost_at_a_branch_is_found_out(
    monkeypatch: pytest.MonkeyPatch, kind: str, wrong: Callable[..., Any]
) -> None:
    model = build(kind)
    monkeypatch.setattr(reader_module, "copy_states", wrong)
    monkeypatch.setattr("ctxeval.model.cache.copy.deepcopy", lambda layer: layer)
    assert choose_reading(model, LONGEST, CHUNK).whole


def crop_too_little(layer: PreallocatedLayer, tokens_to_remove: int) -> None:
    layer._show(layer.length + tokens_to_remove + 1)


def start_afresh_at_every_piece(layer: PreallocatedLayer, keys: Any, values: Any, *_: Any, **__: Any) -> Any:
    layer.length += keys.shape[2]
    return keys, values


@pytest.mark.parametrize(("name", "wrong"), [("crop", crop_too_little), ("update", start_afresh_at_every_piece)])
def test_a_wrong_cache_is_found_out(monkeypatch: pytest.MonkeyPatch, name: str, wrong: Callable[..., Any]) -> None:
    model = build("bloom")
    assert choose_reading(model, LONGEST, CHUNK) == Reading()
    monkeypatch.setattr(PreallocatedLayer, name, wrong)
    assert choose_reading(model, LONGEST, CHUNK).whole


def test_a_window_that_only_fails_when_full_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.cache_utils import DynamicSlidingWindowLayer

    def forget_too_early(layer: Any, keys: Any, values: Any, *_: Any, **__: Any) -> Any:
        full_keys, full_values = original(layer, keys, values)
        layer.keys, layer.values = (one[:, :, -layer.sliding_window + 9 :] for one in (full_keys, full_values))
        return full_keys, full_values

    original = DynamicSlidingWindowLayer.update
    model = build("gemma3_text", sliding_window=200)
    assert not choose_reading(model, 1000, 1000).whole
    monkeypatch.setattr(DynamicSlidingWindowLayer, "update", forget_too_early)
    assert choose_reading(model, 1000, 1000).whole


def test_where_memory_ends_the_proof_is_shorter_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def small_memory(reader: Any, ids: np.ndarray, wanted: Any) -> torch.Tensor:
        if len(ids) > 250:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original(reader, ids, wanted)

    original = Reader.read
    monkeypatch.setattr(Reader, "read", small_memory)
    reading = choose_reading(build("gemma3_text", sliding_window=200), 1000, 1000)
    assert not reading.whole
    assert COPIED in reading.note
    assert reading.note.endswith("was proved on 144 tokens only, not beyond 200: out of memory")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_sees_later_tokens_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(RunError, match="BertLMHeadModel sees later tokens"):
        choose_reading(build("bert").to(dtype), LONGEST, CHUNK)
    assert choose_reading(build("bert", is_decoder=True).to(dtype), LONGEST, CHUNK) == Reading()


def test_a_model_that_cannot_be_read_is_refused() -> None:
    model = build("deepseek_v3", num_key_value_heads=2)  # a configuration that transformers accepts and cannot run
    with pytest.raises(RunError, match="DeepseekV3ForCausalLM cannot read a prompt in one pass"):
        choose_reading(model, LONGEST, CHUNK)


# --- reading so


@pytest.mark.parametrize("kind", ["gemma3_text", "mamba2", "falcon_h1"])
def test_a_tree_with_copied_states_gives_the_values_of_whole_passes(kind: str) -> None:
    model = build(kind)
    trunk = tokens(230)
    prompts = [
        Prompt(np.concatenate([trunk[:cut], tokens(60, seed=cut + end)]), cut + 20, cut + 61)
        for cut in (90, 150, 230)
        for end in range(2)
    ]
    roots = build_tree(prompts)
    assert forwarded_tokens(roots) < sum(len(one.ids) for one in prompts) / 1.5
    shared = dict(execute(Reader(model, 300), prompts, roots, CHUNK))
    alone = dict(execute(Reader(model, 300, whole=True), prompts, unshared(prompts), 300))
    for index, prompt in enumerate(prompts):
        logits = full(model, prompt.ids)[prompt.score_start - 1 :].double().log_softmax(-1)
        gold = torch.as_tensor(prompt.ids[prompt.score_start :].astype(np.int64))
        nll = -logits[:-1].gather(1, gold[:, None])[:, 0].numpy()
        for scores in (shared[index], alone[index]):
            np.testing.assert_allclose(scores.nll[:-1], nll, atol=1e-4)
            assert scores.argmax.tolist() == logits.argmax(-1).tolist()


def test_only_what_was_kept_can_be_come_back_to() -> None:
    reader = Reader(build("gemma3_text"), 300)
    reader.read(tokens(100), [])
    reader.keep()
    reader.read(tokens(50), [])
    with pytest.raises(RuntimeError, match="nothing was kept at 90 tokens"):
        reader.rewind(90)
    reader = Reader(build("gemma3_text"), 300)
    reader.read(tokens(100), [])
    reader.keep()
    first = reader.read(tokens(50, seed=1), range(50))
    reader.rewind(100)
    assert torch.equal(reader.read(tokens(50, seed=1), range(50)), first)
    reader.restart()
    assert reader.length == 0
    with pytest.raises(RuntimeError, match="nothing was kept at 100 tokens"):
        reader.read(tokens(120), [])
        reader.rewind(100)


def test_without_a_cache_nothing_can_be_appended() -> None:
    reader = Reader(build("gpt2"), 300, whole=True)
    reader.read(tokens(10), [])
    with pytest.raises(RuntimeError, match="a piece after 10 tokens without a cache"):
        reader.read(tokens(10), [])
    reader.rewind(0)
    reader.read(tokens(10), [])


# --- fp32 for a while


@pytest.mark.parametrize("kind", ["llama", "gpt2", "jamba", "deepseek_v3"])
def test_a_model_in_fp32_for_a_while_is_its_fp32_self(kind: str) -> None:
    half, wide = build(kind), build(kind)
    for parameter in half.parameters():  # not half.to(...), which casts the rotary tables as well
        parameter.data = parameter.data.bfloat16()
    wide.load_state_dict({name: value.float() for name, value in half.state_dict().items()})
    ids = tokens(60)
    before, held = full(half, ids), {name: value.data_ptr() for name, value in half.state_dict().items()}
    with in_fp32(half):
        logits = full(half, ids)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, full(wide, ids), atol=2e-5, rtol=1e-5)
    assert torch.equal(full(half, ids), before)
    assert {name: value.data_ptr() for name, value in half.state_dict().items()} == held


def test_weights_come_back_after_an_error() -> None:
    model = build("gpt2").to(torch.bfloat16)
    with in_fp32(model), pytest.raises(IndexError):
        full(model, np.full(10, 9999, dtype=np.int32))
    assert {value.dtype for value in model.parameters()} == {torch.bfloat16}
