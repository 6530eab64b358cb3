"""How many needles of each length a document will have, before there is a model or a text. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import numpy as np

from ctxeval.probes.packing import Candidate, GridCell, choose, least_apart
from ctxeval.probes.sites import SiteRule, lead_in, nearest_depth
from ctxeval.probes.task import Needle

#: Tokens that needle, question and answer take, about.
RESERVE = 64
#: Needles of one context differ in wording; the tasks that ship have about so many.
WORDINGS = 24
CONTEXTS = 24


def exact_needles(lengths: Sequence[int], depths: Sequence[float], trials: int) -> dict[int, float]:
    """Return the needles a document at each length: one a depth and trial."""
    return {length: float(len(depths) * trials) for length in lengths}


def packed_needles(
    lengths: Sequence[int], depths: Sequence[float], native_window: int, trials: int, most: int
) -> dict[int, float]:
    """Return the needles a document at each length, on average, where `most` share a context.

    They are packed as a run packs them, into text in which a sentence may start at any token.
    """
    rule = SiteRule(lead_in(native_window), RESERVE, 0)
    anywhere = np.arange(max(lengths))
    inside = [length for length in lengths if rule.fits(length)]
    sites = {rule.site(depth, length, anywhere) for length in inside for depth in depths}
    cells = {site: found for site in sorted(sites) if (found := _cells(site, rule, inside, depths))}
    counts: Counter[GridCell] = Counter()
    for context in range(CONTEXTS):
        random = Random(context)
        candidates = [Candidate(site, _needle(site, random), cells[site]) for site in cells]
        ties = {site: random.random() for site in cells}
        choose(candidates, counts, most, ties.__getitem__, least_apart(native_window))
    total = {length: sum(counts[length, depth] for depth in depths) for length in lengths}
    return {length: trials * number / CONTEXTS for length, number in total.items()}


def _needle(site: int, random: Random) -> Needle:
    name = str(site)
    return Needle(name, random.randrange(WORDINGS), name, name, "", "", "")


def _cells(site: int, rule: SiteRule, lengths: Sequence[int], depths: Sequence[float]) -> tuple[GridCell, ...]:
    near = ((length, nearest_depth(rule.depth(site, length), depths)) for length in lengths)
    return tuple((length, depth) for length, depth in near if depth is not None and site + rule.reserve <= length)
