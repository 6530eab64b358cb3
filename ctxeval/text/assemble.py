"""Token-exact prompts. Pieces are encoded once and joined as ids; nothing is ever decoded and encoded again.

A prompt is: prefix (BOS or chat header) + haystack with needles in it + question + answer. Its length is exact, the
span of every needle is recorded and checked, and too little text is an error, never a shorter prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctxeval.engine.plan import TokenIds
from ctxeval.errors import UsageError

#: Characters before a piece of text, so that it is tokenised as a continuation. The first is used whose end is also
#: a token boundary (".\n\n" is one token for some vocabularies, "x\n\n" for none that we know).
_ANCHORS = ("x", ".", "")
_SENTINEL = "\u2063haystack\u2063"


@dataclass(frozen=True, eq=False)
class Question:
    """Question and gold answer, encoded together and split by text offsets.

    ids: (q,) tokens of the question; answer_ids: (a,) tokens of the answer, which may share its first token with the
    space before it where the tokenizer merges them.
    """

    ids: TokenIds
    answer_ids: TokenIds

    def __len__(self) -> int:
        return len(self.ids) + len(self.answer_ids)


@dataclass(frozen=True, eq=False)
class Insertion:
    """A needle statement (n,) token ids, to be inserted before text token `site` of the document."""

    site: int
    ids: TokenIds


class Frame:
    """What surrounds a haystack for one tokenizer: prefix, question form, and the encoding of pieces."""

    def __init__(self, tokenizer: Any, *, chat: bool = False) -> None:
        """Read the prefix (one BOS where the tokenizer wants one) and, with `chat`, the model's chat template."""
        self.tokenizer = tokenizer
        self._tail = ""
        probe = tokenizer("x", add_special_tokens=True)["input_ids"]
        bos = tokenizer.bos_token_id
        wants_bos = bos is not None and probe[:1] == [bos]
        head: list[int] = []
        if chat:
            head = self._read_template()
        if wants_bos and head[:1] != [bos]:
            head = [bos, *head]
        if bos is not None and wants_bos and head.count(bos) != 1:
            raise UsageError(
                f"the chat template writes {head.count(bos)} BOS tokens", "one is right; mend the model's chat template"
            )
        self.prefix: TokenIds = np.array(head, dtype=np.int32)

    def _read_template(self) -> list[int]:
        if not getattr(self.tokenizer, "chat_template", None):
            raise UsageError("this model has no chat template", "leave --chat out, or use an instruction-tuned model")
        text = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": _SENTINEL}], tokenize=False, add_generation_prompt=True
        )
        head, found, self._tail = text.partition(_SENTINEL)
        if not found:
            raise UsageError("the chat template drops or rewrites the user's text", "it cannot be used with --chat")
        return list(self.tokenizer(head, add_special_tokens=False)["input_ids"])

    def statement(self, text: str) -> TokenIds:
        """Encode a sentence that stands between two others, with a space before it."""
        return _encode_after(self.tokenizer, f" {text}")[0]

    def question(self, question: str, lead: str, answer: str) -> Question:
        """Encode a question on a line of its own, the beginning of its reply, and the gold answer.

        Base models complete `lead`; with a chat template the question ends the user's turn and `lead` opens the reply.
        """
        asked = f"\n\n{question}{self._tail or ' '}{lead} "
        ids, ends = _encode_after(self.tokenizer, f"{asked}{answer}")
        first = int(np.searchsorted(ends, len(asked), side="right"))
        return Question(ids[:first], ids[first:])

    def continues(self, token: int, answer: str) -> bool:
        """Tell whether `token` after `answer` would prolong it (12345|6), digit after digit or letter after letter."""
        raw = self.tokenizer.convert_ids_to_tokens(int(token)) or ""
        first, last = raw[:1], answer[-1:]
        return first.isascii() and ((first.isdigit() and last.isdigit()) or (first.isalpha() and last.isalpha()))


def _encode_after(tokenizer: Any, text: str) -> tuple[TokenIds, np.ndarray]:
    """Encode `text` as a continuation: (n,) ids, and the end of each token as an offset into `text`."""
    for anchor in _ANCHORS:
        encoded = tokenizer(anchor + text, add_special_tokens=False, return_offsets_mapping=True)
        offsets = np.array(encoded["offset_mapping"]) - len(anchor)
        own = offsets[:, 1] > 0
        if (offsets[own, 0] >= 0).all():
            return np.array(encoded["input_ids"], dtype=np.int32)[own], offsets[own, 1]
    raise UsageError(f"the tokenizer merges {text[:12]!r} with whatever precedes it", "use another tokenizer or task")


@dataclass(frozen=True, eq=False)
class Assembled:
    """A complete prompt. positions: absolute offset of each insertion's first token, in the order given."""

    ids: TokenIds
    positions: tuple[int, ...]
    question_position: int
    answer_position: int


def assemble(
    frame: Frame, text: TokenIds, insertions: Sequence[Insertion], question: Question, length: int
) -> Assembled:
    """Build a prompt of exactly `length` tokens.

    text: (m,) haystack tokens, of which as many as fit are used, from the first. Insertions must be sorted by site
    and lie within the text that is used.

    Raises:
        UsageError: the text is too short, or a needle would not fit whole.
    """
    inserted = sum(len(one.ids) for one in insertions)
    used = length - len(frame.prefix) - inserted - len(question)
    if used < 0 or used > len(text):
        raise UsageError(
            f"{length} tokens need {used} tokens of text beside needle and question, and there are {len(text)}",
            "use longer lengths or more text",
        )
    pieces, positions, cursor, at = [frame.prefix], [], len(frame.prefix), 0
    for one in insertions:
        if not at <= one.site <= used:
            raise UsageError(
                f"a needle at text token {one.site} does not fit whole into {length} tokens", "raise --lengths"
            )
        pieces += [text[at : one.site], one.ids]
        cursor += one.site - at
        positions.append(cursor)
        cursor, at = cursor + len(one.ids), one.site
    pieces += [text[at:used], question.ids, question.answer_ids]
    ids = np.concatenate(pieces).astype(np.int32)
    if len(ids) != length:
        raise AssertionError(f"assembled {len(ids)} tokens instead of {length}")
    for one, position in zip(insertions, positions, strict=True):
        if not np.array_equal(ids[position : position + len(one.ids)], one.ids):
            raise AssertionError(f"the needle at {position} is not intact")
    return Assembled(ids, tuple(positions), length - len(question), length - len(question.answer_ids))


def reach(frame: Frame, needles: Sequence[Insertion], question: Question, length: int) -> int:
    """Return how many text tokens a prompt of `length` holds beside prefix, `needles` and `question`."""
    return length - len(frame.prefix) - sum(len(one.ids) for one in needles) - len(question)
