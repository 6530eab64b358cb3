"""The demo's tokenizer: byte-level BPE of 1,024 tokens in which every digit is a token of its own.

No BOS is added, neither by the tokenizer nor anywhere in training. `<eos>` ends a document.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

VOCABULARY = 1024
EOS, EOS_ID = "<eos>", 0  # special tokens come first


def train_tokenizer(texts: Iterable[str], window: int) -> tuple[Tokenizer, dict[str, object]]:
    """Train on `texts`; the second value is the content of tokenizer_config.json."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    # Offsets of a token include its leading space, so that offsets tile the text without gaps.
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    config: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": EOS,
        "pad_token": EOS,
        "bos_token": None,
        "add_bos_token": False,
        "add_eos_token": False,
        "model_max_length": window,
        "clean_up_tokenization_spaces": False,
    }
    return tokenizer, config


def save_tokenizer(tokenizer: Tokenizer, config: dict[str, object], folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json as AutoTokenizer expects them."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
