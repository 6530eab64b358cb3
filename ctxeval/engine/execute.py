"""Walk the prefix tree with a reader, and hand out the scores of each prompt as soon as they are complete."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ctxeval.engine.plan import Node, Prompt, segments
from ctxeval.model.reader import Reader
from ctxeval.model.scores import TokenScores
from ctxeval.model.scoring import score_rows

Progress = Callable[[int, int], None]


@dataclass(eq=False)
class _Collected:
    """Scores of one prompt while they come in."""

    nll: np.ndarray
    argmax: np.ndarray
    margin: np.ndarray
    missing: int


def execute(
    reader: Reader, prompts: Sequence[Prompt], roots: Sequence[Node], chunk: int, progress: Progress = lambda *_: None
) -> Iterator[tuple[int, TokenScores]]:
    """Yield (index of the prompt, its scores) in tree order.

    `progress` is called with (first position, number of tokens) after each forward pass. Tokens are forwarded in
    pieces that end at absolute multiples of `chunk`.
    """
    wanted = {index for root in roots for index in root.members}
    collected = {index: _empty(prompts[index]) for index in wanted}
    for root in roots:
        for node in root.walk():
            reader.rewind(node.start)
            for start, stop in segments(node.start, node.stop, chunk):
                ids = prompts[node.members[0]].ids[start:stop]
                _read_segment(reader, prompts, node, collected, start, ids)
                progress(start, stop - start)
            if node.children:
                reader.keep()
            for index in node.members:
                if index in collected and collected[index].missing == 0:
                    done = collected.pop(index)
                    yield index, TokenScores(done.nll, done.argmax, done.margin)


def _empty(prompt: Prompt) -> _Collected:
    count = prompt.score_stop - prompt.score_start
    return _Collected(np.full(count, np.nan), np.full(count, -1), np.full(count, np.nan), count)


def _read_segment(
    reader: Reader,
    prompts: Sequence[Prompt],
    node: Node,
    collected: dict[int, _Collected],
    start: int,
    ids: np.ndarray,
) -> None:
    """Forward `ids`, which begin at position `start`, and score what the node's prompts want of them.

    The logits after position t score the token at t + 1, which may differ between prompts: a row is a (position,
    next token) pair, projected once however many prompts ask for it.
    """
    stop = start + len(ids)
    pairs: dict[tuple[int, int], int] = {}
    uses: list[tuple[int, int, int]] = []
    for index in node.members:
        if index not in collected:
            continue
        prompt = prompts[index]
        for position in range(max(prompt.score_start, start + 1), min(prompt.score_stop, stop + 1)):
            gold = int(prompt.ids[position]) if position < len(prompt.ids) else -1
            row = pairs.setdefault((position, gold), len(pairs))
            uses.append((index, position - prompt.score_start, row))
    logits = reader.read(ids, [position - 1 - start for position, _ in pairs])
    if not pairs:
        return
    scores = score_rows(logits, np.array([gold for _, gold in pairs], dtype=np.int64))
    for index, offset, row in uses:
        target = collected[index]
        target.nll[offset], target.argmax[offset] = scores.nll[row], scores.argmax[row]
        target.margin[offset] = scores.margin[row]
        target.missing -= 1
