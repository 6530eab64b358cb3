"""Training sequences: prose of the training speeches, and prose with needles that are asked for at the end."""

import random
import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from tokenizers import Tokenizer

from ctxeval.demo.needles import Needle, NeedleMaker

SHARE_PROSE = 1 / 3  # sequences without any needle
SHARE_SINGLE = 0.4  # of the others: one needle, one question
SHARE_ANYWHERE = 0.1  # needles between any two tokens instead of between sentences
LEAD_IN = 8  # tokens of prose before the first needle, at least
SHORTEST_FULL = 96  # shorter sequences have no room for a statement and a whole question
WEIGHT_ANSWER, WEIGHT_QUESTION = 3.0, 0.3
SENTENCE_END = re.compile(r"[.?!;:][\"')]*(?=\s)|\n+")


@dataclass(frozen=True)
class Prose:
    """All training speeches as one stream of tokens, and the places where a sentence begins."""

    ids: np.ndarray  # (T,) int64
    starts: np.ndarray  # sorted positions in ids before which a needle may be put


def encode_prose(tokenizer: Tokenizer, texts: list[str], eos: int) -> Prose:
    """Join speeches with `<eos>`; a sentence starts at the first token that begins at or after a full stop."""
    ids: list[int] = []
    starts: list[int] = []
    for text, encoding in zip(texts, tokenizer.encode_batch(texts), strict=True):
        begins = np.array([begin for begin, _ in encoding.offsets])
        ends = np.array([match.end() for match in SENTENCE_END.finditer(text)], dtype=np.int64)
        inside = np.searchsorted(begins, ends)
        starts.extend((np.unique(inside[inside < len(begins)]) + len(ids)).tolist())
        ids.extend([*encoding.ids, eos])
    return Prose(np.array(ids, dtype=np.int64), np.array(starts, dtype=np.int64))


class SequenceMaker:
    """Draws (ids, loss weights) of an exact length."""

    def __init__(self, tokenizer: Tokenizer, prose: Prose, needles: NeedleMaker) -> None:
        self.tokenizer, self.prose, self.needles = tokenizer, prose, needles
        self.digits = np.array([tokenizer.token_to_id(str(d)) for d in range(10)])
        self.encode = lru_cache(maxsize=4096)(lambda text: np.array(tokenizer.encode(text).ids, dtype=np.int64))

    def window(self, rng: random.Random, length: int) -> int:
        """Start of a stretch of prose: anywhere, or (a quarter of the time) at a sentence."""
        last = len(self.prose.ids) - length - 1
        if rng.random() < 0.25:
            return min(int(rng.choice(self.prose.starts)), last)
        return rng.randrange(last)

    def draw(self, rng: random.Random, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Prose alone, or prose with needles."""
        if rng.random() < SHARE_PROSE:
            start = self.window(rng, length)
            return self.prose.ids[start : start + length], np.ones(length)
        return self.recall(rng, length)

    def recall(self, rng: random.Random, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Prose with needles inside, each of them asked for at the very end."""
        wanted = 1 if rng.random() < SHARE_SINGLE else rng.randint(1, max(1, length // 32))
        short = length < SHORTEST_FULL or rng.random() < 0.5
        statements, questions = self.fit(rng, self.needles.draw(rng, wanted), length, short)
        room = length - sum(len(part) for part in statements + questions)
        if not statements:
            return self.recall(rng, length)
        body, weights = self.hide(rng, statements, room)
        ids = np.concatenate([body, *questions])
        weights = np.concatenate([weights, *(self.question_weights(part) for part in questions)])
        assert len(ids) == length, (len(ids), length)
        return ids, weights

    def fit(
        self, rng: random.Random, needles: list[Needle], length: int, short: bool
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Statements and questions of as many needles as leave some prose.

        `short`: only the first is asked in full, the others by lead and value alone, which packs
        more recall into a window; in very short sequences the first is short as well.
        """
        room = length - LEAD_IN
        statements: list[np.ndarray] = []
        questions: list[np.ndarray] = []
        for needle in needles:
            full = not short or (not questions and length >= SHORTEST_FULL)
            statement = self.encode(needle.statement)
            question = self.encode(needle.question if full else needle.repeat)
            room -= len(statement) + len(question)
            if room < 0:
                break
            statements.append(statement)
            questions.append(question)
        return statements, questions

    def hide(self, rng: random.Random, statements: list[np.ndarray], room: int) -> tuple[np.ndarray, np.ndarray]:
        """`room` tokens of prose with the statements between its sentences, in random order."""
        start = self.window(rng, room)
        text = self.prose.ids[start : start + room]
        lead_in = min(LEAD_IN, room)
        low, high = np.searchsorted(self.prose.starts, [start + lead_in, start + room])
        sites = (self.prose.starts[low:high] - start).tolist()
        if len(sites) < len(statements) or rng.random() < SHARE_ANYWHERE:
            sites = list(range(lead_in, room + 1))
        places = sorted(rng.choices(sites, k=len(statements)))
        order = rng.sample(statements, len(statements))
        parts: list[np.ndarray] = []
        weights: list[np.ndarray] = []
        previous = 0
        for place, statement in zip([*places, room], [*order, None], strict=True):
            parts.append(text[previous:place])
            weights.append(np.ones(place - previous))
            previous = place
            if statement is not None:  # its words and digits cannot be foreseen: nothing to learn there
                parts.append(statement)
                weights.append(np.zeros(len(statement)))
        return np.concatenate(parts), np.concatenate(weights)

    def question_weights(self, ids: np.ndarray) -> np.ndarray:
        """Weight of each token as a target: high for the answer and the full stop that ends it."""
        weights = np.full(len(ids), WEIGHT_QUESTION)
        weights[np.isin(ids, self.digits)] = WEIGHT_ANSWER
        weights[-1] = WEIGHT_ANSWER
        weights[0] = 0.0  # that a question comes cannot be foreseen
        return weights

    def batch(self, rng: random.Random, tokens: int, length: int) -> tuple[np.ndarray, np.ndarray]:
        """(rows, length) ids and weights, rows * length = tokens."""
        rows = [self.draw(rng, length) for _ in range(tokens // length)]
        return np.stack([ids for ids, _ in rows]), np.stack([weights for _, weights in rows]).astype(np.float32)
