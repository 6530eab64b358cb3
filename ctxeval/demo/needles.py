"""Needles for training: other keys and other values than those that tasks/needle.yaml asks for.

Kept apart from evaluation: its keys never occur as a key, and no value here is a multiple of 3
(the task asks for multiples of 3 only), so no trained answer can be an asked answer.
"""

import random
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources

from ctxeval.probes.task import NeedleTask, Wording, load_task

MODIFIERS = (
    "red", "old", "blue", "broken", "silver", "wooden", "tiny", "northern", "golden", "empty", "painted", "iron",
    "green", "hidden", "second", "royal", "stone", "white", "dusty", "marble", "little", "eastern", "copper", "black",
    "lonely", "captain's", "crooked", "glass", "yellow", "forgotten",
)  # fmt: skip
SHARE_PAIRS, SHARE_WORDS = 0.15, 0.25  # keys that are two-word names; keys that are just a word of the text
SHARE_OTHER_DIGITS = 0.25  # values that have 3, 4 or 6 digits instead of 5


@dataclass(frozen=True)
class Needle:
    """A statement to hide, the question (with its lead-in) and the value that answers it."""

    statement: str
    question: str
    repeat: str
    value: str


@cache
def asked_task() -> NeedleTask:
    """Return the task that the model is evaluated on: training shares its wordings, and none of its keys."""
    return load_task("needle")


def training_nouns() -> list[str]:
    """Concrete nouns written for training, without any key of the task."""
    text = resources.files("ctxeval.demo").joinpath("keys.txt").read_text(encoding="utf-8")
    return sorted(set(text.split()) - set(asked_task().keys))


def common_words(texts: Iterable[str], at_least: int = 8) -> list[str]:
    """Lower-case words of the training text: more key variety than a list of nouns has."""
    count = Counter(word for text in texts for word in re.findall(r"(?<=[ ])[a-z]{4,12}(?=[ ,.;])", text))
    return sorted(word for word, n in count.items() if n >= at_least and word not in asked_task().keys)


class NeedleMaker:
    """Draws needles; words that are no nouns widen the pool of keys."""

    def __init__(self, words: list[str]) -> None:
        self.nouns = training_nouns()
        self.words = words or self.nouns
        self.wordings = asked_task().wordings

    def key(self, rng: random.Random) -> str:
        """A noun, a two-word name or any word of the training text."""
        kind = rng.random()
        if kind < SHARE_WORDS:
            return rng.choice(self.words)
        noun = rng.choice(self.nouns)
        return f"{rng.choice(MODIFIERS)} {noun}" if kind < SHARE_WORDS + SHARE_PAIRS else noun

    def draw(self, rng: random.Random, count: int) -> list[Needle]:
        """`count` needles that can be told apart: by key always, mostly by wording too."""
        distinct_wordings = rng.random() < 0.8 and count <= len(self.wordings)
        wordings = rng.sample(self.wordings, count) if distinct_wordings else rng.choices(self.wordings, k=count)
        keys: list[str] = []
        while len(keys) < count:
            key = self.key(rng)
            if key not in keys:
                keys.append(key)
        return [make_needle(w, key, draw_value(rng)) for w, key in zip(wordings, keys, strict=True)]


def draw_value(rng: random.Random) -> str:
    """A number that is no multiple of 3, mostly of five digits."""
    digits = rng.choice((3, 4, 6)) if rng.random() < SHARE_OTHER_DIGITS else 5
    while True:
        value = rng.randrange(10 ** (digits - 1), 10**digits)
        if value % 3:
            return str(value)


def make_needle(wording: Wording, key: str, value: str) -> Needle:
    """Statement with its leading space; question, lead and value as the evaluation joins them."""
    statement = " " + wording.statement.format(key=key, value=value)
    lead = wording.lead.format(key=key)
    question = f"\n\n{wording.question.format(key=key)} {lead} {value}."
    return Needle(statement, question, f" {lead} {value}.", value)
