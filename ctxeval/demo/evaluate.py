"""Recall and perplexity of the demo model inside its window, on speeches, keys and values it has not seen.

    python -m ctxeval.demo.evaluate            # the shipped model
    python -m ctxeval.demo.evaluate DIR        # another one

A plain, independent check of the model: it shares no code with the evaluation that ctxeval ships.
"""

import json
import random
import re
import sys
from dataclasses import asdict, dataclass
from functools import cache
from math import exp, sqrt
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn

from ctxeval.demo import MODEL_DIR, held_out_files
from ctxeval.demo.needles import asked_task

WINDOW = 256
LEAD_IN = 16  # native / 16, as in the needle probe


@dataclass(frozen=True)
class Prompt:
    """One prompt that ends with the answer (and its full stop)."""

    ids: np.ndarray  # (length + 1,): the window, and the token that must not continue the number
    answer: slice
    needle: slice


@dataclass(frozen=True)
class Recall:
    """Hits among trials, and the 95 % Wilson interval's lower end."""

    hits: int
    trials: int
    lower: float


@cache
def load_tokenizer(folder: Path = MODEL_DIR) -> Tokenizer:
    """The tokenizer of a saved model, without transformers around it."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@cache
def held_out_ids(folder: Path = MODEL_DIR) -> np.ndarray:
    """All held-out speeches as one stream of tokens."""
    texts = [path.read_text(encoding="utf-8") for path in held_out_files()]
    return np.concatenate([np.array(e.ids) for e in load_tokenizer(folder).encode_batch(texts)])


def make_prompt(tokenizer: Tokenizer, stream: np.ndarray, index: int, depth: float, length: int) -> Prompt:
    """Held-out prose with one needle at `depth` in [0, 1]; the answer's last digit is token `length` - 1."""
    rng = random.Random(f"demo evaluation {index}")
    wordings, keys = asked_task().wordings, asked_task().keys
    wording, key = wordings[index % len(wordings)], rng.choice(sorted(keys))
    value = str(rng.randrange(10002, 100000, 3))
    needle = tokenizer.encode(" " + wording.statement.format(key=key, value=value)).ids
    lead = wording.lead.format(key=key)
    tail = tokenizer.encode(f"\n\n{wording.question.format(key=key)} {lead} {value}.").ids
    prose = length + 1 - len(needle) - len(tail)
    text = stream[(start := rng.randrange(len(stream) - prose)) : start + prose].tolist()
    site = round(LEAD_IN + depth * (prose - LEAD_IN))
    site = back_to_sentence(tokenizer, text, site)
    ids = np.array(text[:site] + needle + text[site:] + tail)
    assert len(ids) == length + 1, (len(ids), length)
    return Prompt(ids, slice(length - len(value), length), slice(site, site + len(needle)))


def back_to_sentence(tokenizer: Tokenizer, text: list[int], site: int) -> int:
    """The nearest end of a sentence at or before `site`, but not inside the lead-in."""
    for place in range(site, LEAD_IN - 1, -1):
        if re.search(r"[.?!][\"')]*$", tokenizer.decode(text[place - 3 : place])):
            return place
    return site


def is_correct(logits: torch.Tensor, prompt: Prompt, digits: frozenset[int | None]) -> bool:
    """Whether every digit is the arg-max, and no sixth digit follows; logits: (length + 1, V)."""
    best = logits.argmax(-1).tolist()
    first, last = prompt.answer.start, prompt.answer.stop
    return best[first - 1 : last - 1] == prompt.ids[prompt.answer].tolist() and best[last - 1] not in digits


def wilson_lower(hits: int, trials: int, z: float = 1.96) -> float:
    """Lower end of the Wilson score interval."""
    p, n = hits / trials, trials
    return (p + z * z / (2 * n) - z * sqrt(p * (1 - p) / n + z * z / (4 * n * n))) / (1 + z * z / n)


@torch.inference_mode()
def hits_by_trial(model: nn.Module, trials: int, length: int = WINDOW, folder: Path = MODEL_DIR) -> list[bool]:
    """One prompt a trial, depths evenly spread over [0, 1]."""
    tokenizer, stream = load_tokenizer(folder), held_out_ids(folder)
    digits = frozenset(tokenizer.token_to_id(str(d)) for d in range(10))
    hits: list[bool] = []
    step = max(1, 8192 // length)
    for begin in range(0, trials, step):
        which = range(begin, min(trials, begin + step))
        prompts = [make_prompt(tokenizer, stream, i, i / max(1, trials - 1), length) for i in which]
        logits = model(torch.from_numpy(np.stack([p.ids for p in prompts])), use_cache=False).logits
        hits += [is_correct(row, prompt, digits) for row, prompt in zip(logits, prompts, strict=True)]
    return hits


def recall(model: nn.Module, trials: int, length: int = WINDOW, folder: Path = MODEL_DIR) -> Recall:
    """Single-needle recall at one length."""
    hits = sum(hits_by_trial(model, trials, length, folder))
    return Recall(hits, trials, round(wilson_lower(hits, trials), 4))


def scored_windows(stream: np.ndarray, windows: int, length: int) -> np.ndarray:
    """Evenly spread, non-overlapping windows: (windows, length)."""
    starts = np.linspace(0, len(stream) - length, windows).astype(int)
    assert windows == 1 or (np.diff(starts) >= length).all(), "the windows overlap"
    return np.stack([stream[s : s + length] for s in starts])


@torch.inference_mode()
def mean_nll(model: nn.Module, windows: int, length: int = WINDOW, first: int = 1, folder: Path = MODEL_DIR) -> float:
    """Mean NLL in nats of the tokens `first`.. of held-out windows, each read from its own start."""
    rows = torch.from_numpy(scored_windows(held_out_ids(folder), windows, length))
    total, count = 0.0, 0
    for chunk in rows.split(max(1, 8192 // length)):
        logits = model(chunk, use_cache=False).logits[:, first - 1 : -1].float()
        target = chunk[:, first:]
        total += nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum").item()
        count += target.numel()
    return total / count


def main(folder: Path) -> None:
    """Print recall and perplexity of one saved model."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found = asdict(recall(model, 200, folder=folder))
    print(json.dumps({"recall": found, "perplexity": round(exp(mean_nll(model, 500, folder=folder)), 3)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else MODEL_DIR)
