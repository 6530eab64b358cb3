"""The prefix tree: every shared prefix of a document's prompts is forwarded once. Pure, numpy only.

Prompts that ask for one needle at several lengths, or for several needles in one haystack, begin alike. A depth-first
walk over their prefix tree, cropping the KV cache on the way back, forwards each distinct prefix once: with nested
haystacks that is plan B of the design (exact), and with several needles in one haystack plan C (packed). The tree
knows nothing of needles or perplexity; it sees token ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

TokenIds = NDArray[np.int32]

#: A shared stretch shorter than this is forwarded again for each branch: a forward pass of its own would cost more.
MIN_SHARED_TOKENS = 48


@dataclass(frozen=True, eq=False)
class Prompt:
    """A token sequence of which some tokens are scored.

    ids: (length,) token ids. Tokens [score_start, score_stop) are scored, each given all tokens before it; position
    `len(ids)` may be included: nothing is there to score, but the arg-max (what would come next) is recorded.
    """

    ids: TokenIds
    score_start: int
    score_stop: int

    def __post_init__(self) -> None:
        if not 1 <= self.score_start < self.score_stop <= len(self.ids) + 1:
            raise ValueError(f"scored range [{self.score_start}, {self.score_stop}) of {len(self.ids)} tokens")


@dataclass(eq=False)
class Node:
    """A stretch of tokens [start, stop) that all prompts in `members` share; `children` diverge at `stop`."""

    start: int
    stop: int
    members: tuple[int, ...]
    children: list[Node] = field(default_factory=list)

    def walk(self) -> Iterator[Node]:
        """Yield this node and all below it, in the order of execution."""
        yield self
        for child in self.children:
            yield from child.walk()


def common_prefix(ids: Sequence[TokenIds], start: int) -> int:
    """Return the length of the prefix shared by all sequences, which agree up to `start` already."""
    first = ids[0]
    shared = min(len(one) for one in ids)
    for other in ids[1:]:
        differs = np.flatnonzero(first[start:shared] != other[start:shared])
        if len(differs):
            shared = start + int(differs[0])
    return shared


def build_tree(prompts: Sequence[Prompt], min_shared: int = MIN_SHARED_TOKENS) -> list[Node]:
    """Return the roots of the prefix tree over `prompts`.

    A root begins at token 0. Branches are ordered so that short ones (questions) come before the trunk goes on.
    """
    return _branches(prompts, tuple(range(len(prompts))), 0, min_shared)


def unshared(prompts: Sequence[Prompt]) -> list[Node]:
    """Return one root a prompt: the plan for a cache that cannot be cropped, and the reference in tests."""
    return [Node(0, len(prompt.ids), (index,)) for index, prompt in enumerate(prompts)]


def _branches(prompts: Sequence[Prompt], members: tuple[int, ...], start: int, min_shared: int) -> list[Node]:
    groups: dict[int, list[int]] = {}
    for index in members:
        ids = prompts[index].ids
        groups.setdefault(int(ids[start]) if start < len(ids) else -1, []).append(index)
    nodes: list[Node] = []
    for token, group in groups.items():
        if token == -1:
            continue  # these prompts end here: the parent has scored them
        stop = common_prefix([prompts[index].ids for index in group], start)
        children = _branches(prompts, tuple(group), stop, min_shared)
        ends_here = any(len(prompts[index].ids) == stop for index in group)
        if children and not ends_here and stop - start < min_shared:
            for child in children:
                nodes.append(Node(start, child.stop, child.members, child.children))
        else:
            nodes.append(Node(start, stop, tuple(group), children))
    return sorted(nodes, key=lambda node: max(len(prompts[index].ids) for index in node.members))


def segments(start: int, stop: int, chunk: int) -> Iterator[tuple[int, int]]:
    """Cut [start, stop) at the absolute multiples of `chunk`, so that no cut depends on where a branch began."""
    while start < stop:
        end = min(stop, (start // chunk + 1) * chunk)
        yield start, end
        start = end


def forwarded_tokens(roots: Sequence[Node]) -> int:
    """Count the tokens that executing the tree forwards."""
    return sum(node.stop - node.start for root in roots for node in root.walk())


def prune(roots: Sequence[Node], wanted: frozenset[int]) -> list[Node]:
    """Drop the branches without a wanted prompt. What is left keeps its cuts, so that resuming changes no value."""
    kept = []
    for node in roots:
        members = tuple(index for index in node.members if index in wanted)
        if members:
            kept.append(Node(node.start, node.stop, members, prune(node.children, wanted)))
    return kept
