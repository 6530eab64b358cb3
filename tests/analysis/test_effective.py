"""Effective lengths against figures that the benchmarks' authors published."""

from __future__ import annotations

from ctxeval.analysis.effective import nolima_length, ruler_length

K = 1024
#: Llama-3.1-8B: RULER's table 3 and NoLiMa's table 3; Together-Llama-2-7B-32K: RULER.
RULER_LLAMA = dict(
    zip((4 * K, 8 * K, 16 * K, 32 * K, 64 * K, 128 * K), (95.5, 93.8, 91.6, 87.4, 84.7, 77.0), strict=True)
)
RULER_TOGETHER = dict(zip((4 * K, 8 * K, 16 * K, 32 * K), (88.2, 81.1, 69.4, 63.0), strict=True))
NOLIMA_LLAMA = {512: 76.7} | dict(
    zip((K, 2 * K, 4 * K, 8 * K, 16 * K, 32 * K), (65.7, 54.4, 44.1, 31.9, 22.6, 14.2), strict=True)
)


def shares(scores: dict[int, float]) -> dict[int, float]:
    return {length: score / 100 for length, score in scores.items()}


def test_published_lengths() -> None:
    assert ruler_length(shares(RULER_LLAMA)) == 32 * K
    assert ruler_length(shares(RULER_TOGETHER)) == 4 * K
    assert nolima_length(shares(NOLIMA_LLAMA)) == K  # 0.85 · 76.7 = 65.2


def test_edges() -> None:
    assert ruler_length({K: 0.856}) is None and ruler_length({K: 0.8561}) == K
    assert ruler_length({K: 0.5, 2 * K: 0.9}) == 2 * K and ruler_length({K: 0.9}, threshold=0.95) is None
    assert nolima_length({}) is None and nolima_length({K: 0.0, 2 * K: 0.0}) is None
    # Nothing is short: the shortest is the base. A later score above the bar counts, whatever lies between.
    assert nolima_length({4 * K: 0.8, 8 * K: 0.6, 16 * K: 0.68, 32 * K: 0.67}) == 16 * K
    # The base is that of short contexts, even where a longer one does better.
    assert nolima_length({512: 0.6, 2 * K: 0.9, 4 * K: 0.52, 8 * K: 0.5}) == 4 * K
