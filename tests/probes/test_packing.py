"""Needles that share a context differ, stand apart, and serve the grid evenly."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from random import Random

import numpy as np
import pytest

from ctxeval.probes.packing import Candidate, GridCell, choose
from ctxeval.probes.sites import SiteRule, lead_in, nearest_depth
from ctxeval.probes.task import Needle, load_task, make_needle

LENGTHS, NATIVE = (2048, 4096, 6144, 8192, 10240, 12288, 16384), 8192
DEPTHS = tuple(12.5 * step for step in range(9))
DOCUMENTS = 16


def candidates(document: int) -> list[Candidate]:
    """Sites of a realistic grid on a text with a sentence start every 5 to 60 tokens."""
    task, rule = load_task("needle"), SiteRule(lead_in(NATIVE), 70, 0)
    starts = np.cumsum(np.random.default_rng(document).integers(5, 60, 1000))
    made = []
    for site in sorted({rule.site(depth, length, starts) for length in LENGTHS for depth in DEPTHS}):
        cells = tuple(
            (length, depth)
            for length in LENGTHS
            if site + rule.reserve <= length and (depth := nearest_depth(rule.depth(site, length), DEPTHS)) is not None
        )
        made.append(Candidate(site, make_needle(task, seed=0, document=document, trial=0, site=site), cells))
    return made


def shuffled(document: int, site: int) -> float:
    return Random(f"{document}:{site}").random()


def pack(most: int = 10) -> tuple[list[list[Candidate]], Counter[GridCell]]:
    counts: Counter[GridCell] = Counter()
    contexts = [
        choose(candidates(document), counts, most, lambda site, document=document: shuffled(document, site))
        for document in range(DOCUMENTS)
    ]
    return contexts, counts


def test_needles_of_a_context_differ_in_all_parts_and_stand_apart() -> None:
    for context in pack()[0]:
        assert 8 <= len(context) <= 10
        for part in ("wording", "key", "value"):
            assert len({getattr(one.needle, part) for one in context}) == len(context)
        assert all(after.site - before.site >= 128 for before, after in pairwise(context))


def test_the_counter_says_how_often_each_cell_was_served() -> None:
    contexts, counts = pack()
    assert counts == Counter(cell for context in contexts for one in context for cell in one.cells)


def test_sixteen_documents_serve_every_cell_of_the_grid_about_equally() -> None:
    """A needle near the front serves all lengths, so only the least served cells can be made equal: 160 needles for
    the cells that nothing else serves."""
    _, counts = pack()
    least = [min(counts[length, depth] for depth in DEPTHS) for length in LENGTHS]
    assert min(least) >= 6
    assert max(least) - min(least) <= 1
    at_random = Counter(
        cell
        for document in range(DOCUMENTS)
        for one in choose(candidates(document), Counter(), 10, lambda site, document=document: shuffled(document, site))
        for cell in one.cells
    )
    assert min(at_random[length, depth] for length in LENGTHS for depth in DEPTHS) < min(least)


def test_no_more_than_asked() -> None:
    assert {len(context) for context in pack(3)[0]} == {3}


def test_the_worst_served_cell_goes_first_and_the_shuffle_breaks_ties() -> None:
    task = load_task("needle")
    two = [
        Candidate(site, make_needle(task, seed=0, document=0, trial=0, site=site), ((1024, depth),))
        for site, depth in ((100, 0.0), (600, 50.0))
    ]
    assert choose(two, Counter({(1024, 0.0): 1}), 1, lambda site: 0.0)[0].site == 600
    assert choose(two, Counter({(1024, 50.0): 1}), 1, lambda site: 0.0)[0].site == 100
    assert choose(two, Counter(), 1, lambda site: site)[0].site == 600
    assert choose(two, Counter(), 1, lambda site: -site)[0].site == 100


def test_where_the_worst_served_cells_are_equal_the_others_decide() -> None:
    task = load_task("needle")
    two = [
        Candidate(site, make_needle(task, seed=0, document=0, trial=0, site=site), ((1024, depth), (2048, depth / 2)))
        for site, depth in ((100, 0.0), (600, 50.0))
    ]
    assert choose(two, Counter({(2048, 0.0): 3}), 1, lambda site: -site)[0].site == 600
    assert choose(two, Counter({(2048, 25.0): 3}), 1, lambda site: site)[0].site == 100


@pytest.mark.parametrize("part", ["wording", "key", "value"])
def test_needles_that_share_a_part_never_share_a_context(part: str) -> None:
    task = load_task("needle")
    one, other = (make_needle(task, seed=0, document=0, trial=0, site=site) for site in (100, 600))
    twin = replace(other, **{part: getattr(one, part)})

    def sites(second: Needle) -> list[int]:
        pair = [Candidate(100, one, ((1024, 0.0),)), Candidate(600, second, ((1024, 50.0),))]
        return [chosen.site for chosen in choose(pair, Counter(), 10, lambda site: -site)]

    assert sites(other) == [100, 600]
    assert sites(twin) == [100]
