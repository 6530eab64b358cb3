"""Where needles go: depth in percent to a sentence start in the text, and back. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: A needle in the very first tokens is unreliable even inside the window, so depth 0 means after a lead-in.
MAX_LEAD_IN = 64

#: A needle counts for a grid depth from which it really is no further than this, in percent: half the default spacing.
DEPTH_TOLERANCE = 6.25


@dataclass(frozen=True)
class SiteRule:
    """How a depth becomes a site.

    lead_in: tokens before depth 0; reserve: most tokens that needle, question and answer take, whatever the wording;
    prefix: tokens before the text (BOS, chat header).
    """

    lead_in: int
    reserve: int
    prefix: int

    def position(self, depth_percent: float, length: int) -> float:
        """Return the absolute position that a depth asks for: lead_in + d/100 · (L - lead_in - reserve)."""
        return self.lead_in + depth_percent / 100 * (length - self.lead_in - self.reserve)

    def depth(self, position: int, length: int) -> float:
        """Return the depth in percent of a real position: the inverse of `position`, clipped to 0 to 100."""
        room = max(length - self.lead_in - self.reserve, 1)
        return float(np.clip(100 * (position - self.lead_in) / room, 0, 100))

    def fits(self, length: int) -> bool:
        """Tell whether a needle fits into a context of `length` tokens at all."""
        return length >= max(self.lead_in, self.prefix) + self.reserve

    def site(self, depth_percent: float, length: int, sentence_starts: NDArray[np.int64]) -> int:
        """Return the text token before which the needle of this depth stands.

        That is the last sentence start at or before the wanted position; where that lies in the lead-in, the next one
        if it is near enough to count for this depth, else the wanted position itself.
        """
        wanted = max(int(self.position(depth_percent, length)) - self.prefix, 0)
        earliest = max(self.lead_in - self.prefix, 0)
        index = int(np.searchsorted(sentence_starts, wanted, side="right"))
        if index and sentence_starts[index - 1] >= earliest:
            return int(sentence_starts[index - 1])
        if index < len(sentence_starts):
            after = int(sentence_starts[index])
            near = abs(self.depth(after + self.prefix, length) - depth_percent) <= DEPTH_TOLERANCE
            if near and after + self.prefix + self.reserve <= length:
                return after
        return max(wanted, earliest)


def lead_in(native_window: int) -> int:
    """Return the tokens before depth 0: min(64, native / 16)."""
    return min(MAX_LEAD_IN, native_window // 16)


def nearest_depth(depth_percent: float, depths: Sequence[float]) -> float | None:
    """Return the grid depth nearest to a real depth, the smaller one on a tie; None where none is near enough."""
    nearest = min(depths, key=lambda grid: (abs(grid - depth_percent), grid))
    return nearest if abs(nearest - depth_percent) <= DEPTH_TOLERANCE else None
