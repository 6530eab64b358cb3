"""What the demo model was trained on is kept apart from what it is asked for."""

import random
import subprocess
import sys

import numpy as np
import pytest
from tokenizers import Tokenizer

from ctxeval.demo import MODEL_DIR, held_out_files, speech_files, training_files
from ctxeval.demo.data import SENTENCE_END, SequenceMaker, encode_prose
from ctxeval.demo.needles import NeedleMaker, asked_task, common_words, draw_value, training_nouns
from ctxeval.demo.tokenizer import train_tokenizer


def test_import_is_light() -> None:
    heavy = "{'torch', 'transformers', 'pandas', 'numpy'}"
    code = f"import sys, ctxeval.demo as d; d.held_out_files(); print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_speeches_are_kept_apart() -> None:
    held_out, training = held_out_files(), training_files()
    assert not set(held_out) & set(training)
    assert sorted([*held_out, *training]) == speech_files()
    assert len(held_out) == 50


def test_keys_and_values_are_kept_apart() -> None:
    keys = set(asked_task().keys)
    maker = NeedleMaker(common_words(path.read_text(encoding="utf-8") for path in training_files()[:40]))
    assert len(maker.nouns) > 500 and not keys & set(training_nouns()) and not keys & set(maker.words)
    rng = random.Random(0)
    values = [draw_value(rng) for _ in range(2000)]
    assert all(int(value) % 3 for value in values)
    assert {len(value) for value in values} == {3, 4, 5, 6}
    for needle in maker.draw(rng, 24):
        words = set(needle.statement.strip(" .").split())
        assert not words & keys, needle.statement


@pytest.fixture(scope="module")
def maker() -> SequenceMaker:
    texts = [path.read_text(encoding="utf-8") for path in training_files()[:6]]
    tokenizer, _ = train_tokenizer(texts, 256)
    return SequenceMaker(tokenizer, encode_prose(tokenizer, texts, 0), NeedleMaker(common_words(texts)))


@pytest.mark.parametrize("length", [64, 128, 256])
def test_sequences_have_exact_length_and_answers(maker: SequenceMaker, length: int) -> None:
    rng = random.Random(1)
    for _ in range(50):
        ids, weights = maker.recall(rng, length)
        assert len(ids) == len(weights) == length
        text = maker.tokenizer.decode(ids.tolist())
        value = text.rstrip(".").split()[-1]
        assert value.isdigit() and text.count(value) >= 2, text
        answer = ids[-len(value) - 1 : -1]
        assert (weights[-len(value) - 1 :] == 3).all() and np.isin(answer, maker.digits).all()


def test_batches_depend_on_the_seed_alone(maker: SequenceMaker) -> None:
    one, other = (maker.batch(random.Random("0 7"), 1024, 64)[0] for _ in range(2))
    assert (one == other).all()


def test_sentence_starts_follow_a_sentence(maker: SequenceMaker) -> None:
    for start in maker.prose.starts[5:300:7].tolist():
        before = maker.tokenizer.decode(maker.prose.ids[start - 4 : start].tolist())
        assert SENTENCE_END.search(before + " "), before


def test_shipped_tokenizer_is_the_trained_one() -> None:
    tokenizer, _ = train_tokenizer((p.read_text(encoding="utf-8") for p in training_files()), 256)
    assert tokenizer.to_str() == Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json")).to_str()


def test_task_file_has_what_the_demo_reads() -> None:
    wordings, keys = asked_task().wordings, asked_task().keys
    assert len(wordings) >= 16 and len(keys) >= 32
    assert all("{key}" in w.lead and "{value}" in w.statement for w in wordings)
