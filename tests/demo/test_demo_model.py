"""The shipped weights keep what the demo promises: retrieval and prose inside the window of 256.

All figures are on speeches, keys and values that training never saw. The quick versions always run;
the full ones are marked slow:  python -m pytest tests/demo -m slow
"""

import json
import math
from functools import cache

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from ctxeval.demo import MODEL_DIR, training_files
from ctxeval.demo.evaluate import (
    LEAD_IN,
    WINDOW,
    held_out_ids,
    load_tokenizer,
    make_prompt,
    mean_nll,
    recall,
    scored_windows,
    wilson_lower,
)
from tests.demo.kneser_ney import KneserNey

FIRST = 4  # the first token that has the n-gram's whole context inside its window


@cache
def load(dtype: torch.dtype) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=dtype).eval()


def test_size_and_shape() -> None:
    files = {path.name: path.stat().st_size for path in MODEL_DIR.iterdir()}
    needed = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "TRAINING.json"}
    assert needed <= set(files)
    assert sum(files.values()) < 8_000_000
    config = load(torch.float32).config
    assert config.model_type == "llama" and config.max_position_embeddings == WINDOW
    assert config.rope_parameters["rope_type"] == "default" and config.rope_parameters["rope_theta"] == 10000
    assert config.tie_word_embeddings and config.bos_token_id is None and config.vocab_size == 1024


def test_tokenizer_is_fast_with_offsets_and_without_bos() -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
    text = " The access code of the windmill is 48213.\n\nÉtat of the Union, 1862."
    encoded = tokenizer(text, return_offsets_mapping=True)
    assert tokenizer.is_fast and tokenizer.bos_token is None and tokenizer.eos_token == "<eos>"
    assert tokenizer.decode(encoded["input_ids"]) == text
    assert encoded["input_ids"] == tokenizer(text, add_special_tokens=False)["input_ids"]
    pieces = [text[a:b] for a, b in encoded["offset_mapping"]]
    assert [piece for piece in pieces if piece.strip().isdigit()] == list("482131862")
    assert encoded["input_ids"] == load_tokenizer().encode(text).ids


@pytest.mark.parametrize("length", [WINDOW, 512])
def test_prompts_are_exact(length: int) -> None:
    tokenizer = load_tokenizer()
    for index in range(24):
        prompt = make_prompt(tokenizer, held_out_ids(), index, index / 23, length)
        text = tokenizer.decode(prompt.ids.tolist())
        value = tokenizer.decode(prompt.ids[prompt.answer].tolist())
        assert len(prompt.ids) == length + 1 and prompt.answer.stop == length
        assert len(value) == 5 and int(value) % 3 == 0 and text.count(value) == 2
        assert prompt.needle.start >= LEAD_IN and value in tokenizer.decode(prompt.ids[prompt.needle].tolist())


def test_enough_held_out_text() -> None:
    assert len(held_out_ids()) >= 16 * 2048


def test_recall_quick() -> None:
    found = recall(load(torch.float32), trials=60)
    assert found.hits >= 57, found


@torch.inference_mode()
def test_no_needle_no_answer() -> None:
    """The control: with its needle cut out of the prompt, the answer is not to be had."""
    for index in range(24):
        prompt = make_prompt(load_tokenizer(), held_out_ids(), index, index / 23, WINDOW)
        ids = np.delete(prompt.ids, prompt.needle)
        best = load(torch.float32)(torch.from_numpy(ids)[None]).logits[0].argmax(-1)
        assert best[-7:-2].tolist() != ids[-6:-1].tolist()


def test_perplexity_quick() -> None:
    assert math.exp(mean_nll(load(torch.float32), windows=40)) < 20


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_recall(dtype: torch.dtype) -> None:
    found = recall(load(dtype), trials=200)
    assert found.hits >= 190 and found.lower >= 0.92, found


@pytest.mark.slow
def test_perplexity_is_below_a_five_gram() -> None:
    tokenizer = load_tokenizer()
    texts = [path.read_text(encoding="utf-8") for path in training_files()]
    eos = tokenizer.token_to_id("<eos>")
    stream = np.concatenate([np.array([*encoding.ids, eos]) for encoding in tokenizer.encode_batch(texts)])
    baseline = KneserNey(stream).perplexity(scored_windows(held_out_ids(), 500, WINDOW))
    model = math.exp(mean_nll(load(torch.float32), windows=500, first=FIRST))
    print(f"perplexity {model:.2f}, five-gram {baseline:.2f}")
    assert model < baseline


def test_training_record() -> None:
    record = json.loads((MODEL_DIR / "TRAINING.json").read_text(encoding="utf-8"))
    assert record["tokens"] == record["recipe"]["steps"] * record["recipe"]["tokens"]
    assert record["held_out"]["recall"]["trials"] == 200


def test_wilson_lower() -> None:
    assert wilson_lower(190, 200) == pytest.approx(0.9104, abs=1e-3)
    assert 0 < wilson_lower(200, 200) < 1
