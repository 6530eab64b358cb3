"""Effective lengths as others define them: one number a model, from point estimates, without error bars."""

from __future__ import annotations

from collections.abc import Mapping

#: RULER (Hsieh et al. 2024, section 4): the score of Llama-2-7B-chat at 4k. NoLiMa (Modarressi et al. 2025, section 4).
RULER_THRESHOLD = 0.856
NOLIMA_SHARE = 0.85
#: NoLiMa reads its base score at contexts of up to this many tokens.
NOLIMA_SHORT = 1024


def ruler_length(scores: Mapping[int, float], threshold: float = RULER_THRESHOLD) -> int | None:
    """Return RULER's effective length: the longest, in tokens, whose score is above `threshold` (a share of 0 to 1).

    `scores` maps lengths in tokens to scores. Shorter lengths may lie below; `None` where no length is above.
    """
    return max((length for length, score in scores.items() if score > threshold), default=None)


def nolima_length(scores: Mapping[int, float], share: float = NOLIMA_SHARE) -> int | None:
    """Return NoLiMa's effective length: the longest, in tokens, with at least `share` of the base score.

    The base score is the highest at lengths of up to 1,024 tokens, or, where there is none so short, that at the
    shortest. It is the model's own: one that finds nothing anywhere has no effective length (`None`).
    """
    if not scores:
        return None
    short = [length for length in scores if length <= NOLIMA_SHORT] or [min(scores)]
    base = max(scores[length] for length in short)
    return max((length for length, score in scores.items() if 0 < share * base <= score), default=None)
