"""The prefix tree forwards no token twice, shows every prompt its own prefix, and cuts where it always cuts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from ctxeval.engine.plan import (
    Node,
    Prompt,
    build_tree,
    common_prefix,
    forwarded_tokens,
    prune,
    segments,
    unshared,
)


def prompt(*ids: int) -> Prompt:
    return Prompt(np.array(ids, dtype=np.int32), 1, len(ids) + 1)


def random_prompts(seed: int) -> list[Prompt]:
    """Up to 9 prompts of up to 14 tokens out of two: many share prefixes, some end inside others, some are equal."""
    random = np.random.default_rng(seed)
    return [prompt(*random.integers(0, 2, random.integers(1, 15))) for _ in range(random.integers(1, 10))]


def replay(prompts: Sequence[Prompt], roots: Sequence[Node]) -> tuple[set[int], int]:
    """Walk the tree with a list for a cache; returns the prompts that were read whole, and the tokens forwarded."""
    cache: list[int] = []
    complete, forwarded = set(), 0
    for root in roots:
        for node in root.walk():
            assert node.start <= len(cache)
            del cache[node.start :]
            cache += prompts[node.members[0]].ids[node.start : node.stop].tolist()
            forwarded += node.stop - node.start
            for index in node.members:
                assert prompts[index].ids[: node.stop].tolist() == cache
                if len(prompts[index].ids) == node.stop:
                    complete.add(index)
    return complete, forwarded


@pytest.mark.parametrize("seed", range(60))
def test_every_distinct_prefix_is_forwarded_once_and_no_more(seed: int) -> None:
    prompts = random_prompts(seed)
    roots = build_tree(prompts, min_shared=1)
    minimum = len({tuple(one.ids[:stop].tolist()) for one in prompts for stop in range(1, len(one.ids) + 1)})
    assert forwarded_tokens(roots) == minimum
    assert replay(prompts, roots) == (set(range(len(prompts))), minimum)


@pytest.mark.parametrize("min_shared", [2, 4, 100])
@pytest.mark.parametrize("seed", range(20))
def test_short_shared_stretches_are_read_again_and_nothing_else_changes(seed: int, min_shared: int) -> None:
    prompts = random_prompts(seed)
    roots = build_tree(prompts, min_shared)
    complete, forwarded = replay(prompts, roots)
    assert complete == set(range(len(prompts)))
    assert forwarded == forwarded_tokens(roots) <= forwarded_tokens(unshared(prompts))
    for root in roots:
        for node in root.walk():
            ends = any(len(prompts[index].ids) == node.stop for index in node.members)
            assert not node.children or ends or node.stop - node.start >= min_shared


def test_short_branches_come_before_the_trunk_goes_on() -> None:
    trunk = list(range(100, 200))
    prompts = [prompt(*trunk, *range(10)), prompt(*trunk[:60], 1), prompt(*trunk[:60], 2, 3)]
    (root,) = build_tree(prompts, 10)
    assert [(node.start, node.stop, node.members) for node in root.walk()] == [
        (0, 60, (0, 1, 2)),
        (60, 61, (1,)),
        (60, 62, (2,)),
        (60, 110, (0,)),
    ]


def test_prompts_that_share_nothing_have_roots_of_their_own() -> None:
    assert [root.members for root in build_tree([prompt(1, 2, 3), prompt(2, 2)], 1)] == [(1,), (0,)]


def test_common_prefix_counts_from_the_start() -> None:
    ids = [np.array(one, dtype=np.int32) for one in ([1, 2, 3, 4], [1, 2, 3, 5, 6], [1, 2, 3])]
    assert common_prefix(ids, 0) == 3
    assert common_prefix(ids[:2], 2) == 3
    assert common_prefix(ids[:1], 0) == 4


@pytest.mark.parametrize("seed", range(30))
def test_pruning_keeps_the_cuts_and_drops_what_nobody_wants(seed: int) -> None:
    prompts = random_prompts(seed)
    roots = build_tree(prompts, 3)
    cuts = {(node.start, node.stop) for root in roots for node in root.walk()}
    wanted = frozenset(np.random.default_rng(seed).permutation(len(prompts))[: (len(prompts) + 1) // 2].tolist())
    kept = prune(roots, wanted)
    assert {(node.start, node.stop) for root in kept for node in root.walk()} <= cuts
    assert {index for root in kept for node in root.walk() for index in node.members} == wanted
    complete, forwarded = replay(prompts, kept)
    assert complete == wanted
    assert forwarded <= forwarded_tokens(roots)
    assert prune(roots, frozenset()) == []


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_segments_end_at_absolute_multiples_of_the_chunk(chunk: int) -> None:
    for start, stop in ((0, 200), (5, 200), (63, 64), (64, 129), (10, 10)):
        pieces = list(segments(start, stop, chunk))
        assert [at for a, b in pieces for at in range(a, b)] == list(range(start, stop))
        assert all(b % chunk == 0 for _, b in pieces[:-1])
        assert all(0 < b - a <= chunk for a, b in pieces)


@pytest.mark.parametrize(("start", "stop"), [(0, 3), (2, 2), (3, 2), (1, 6)])
def test_a_scored_range_outside_the_prompt_is_refused(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="scored range"):
        Prompt(np.zeros(4, np.int32), start, stop)
