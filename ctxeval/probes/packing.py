"""Which needles share a context in the packed plan, so that every cell of the grid gets about equally many. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ctxeval.probes.task import Needle

#: Needles of one context are at least this many tokens apart, or a quarter of a smaller native window.
MIN_APART = 128


def least_apart(native_window: int) -> int:
    """Return the smallest distance in tokens between two needles of one context."""
    return min(MIN_APART, native_window // 4)


GridCell = tuple[int, float]


@dataclass(frozen=True)
class Candidate:
    """A needle that could be hidden at `site` (text token), and the grid cells it would then serve."""

    site: int
    needle: Needle
    cells: tuple[GridCell, ...]


def choose(
    candidates: Sequence[Candidate],
    counts: Counter[GridCell],
    most: int,
    shuffle: Callable[[int], float],
    apart: int = MIN_APART,
) -> list[Candidate]:
    """Choose up to `most` needles for one context, sorted by site, and add their cells to `counts`.

    Greedy: the needle whose cells have been served least so far comes first; `shuffle(site)` breaks ties. No two of a
    context share a wording, a key or a value, or stand closer than `apart` tokens.
    """
    chosen: list[Candidate] = []
    remaining = list(candidates)
    while remaining and len(chosen) < most:
        best = max(remaining, key=lambda one: (_need(one, counts), shuffle(one.site)))
        chosen.append(best)
        counts.update(best.cells)
        remaining = [one for one in remaining if _compatible(one, best, apart)]
    return sorted(chosen, key=lambda one: one.site)


def _need(candidate: Candidate, counts: Counter[GridCell]) -> float:
    """Weigh a needle by its worst-served cell first, then by how much all its cells lack."""
    if not candidate.cells:
        return 0.0
    least = min(counts[cell] for cell in candidate.cells)
    return 1 / (1 + least) + 1e-3 * sum(1 / (1 + counts[cell]) for cell in candidate.cells) / len(candidate.cells)


def _compatible(one: Candidate, other: Candidate, apart: int) -> bool:
    a, b = one.needle, other.needle
    return abs(one.site - other.site) >= apart and a.wording != b.wording and a.key != b.key and a.value != b.value
