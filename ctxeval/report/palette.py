"""The colours of recall: gkamradt's red to green, or scales that colour-blind readers can tell apart. Pure."""

from __future__ import annotations

from collections.abc import Mapping

#: Colours at equal steps from 0 to 100 %. The last two are matplotlib's, sampled.
PALETTES: Mapping[str, tuple[str, ...]] = {
    "classic": ("#F0496E", "#EBB839", "#0CD79F"),
    "cividis": ("#00224E", "#2A3F6D", "#575D6D", "#7D7C78", "#A59C74", "#D2C060", "#FEE838"),
    "viridis": ("#440154", "#443983", "#31688E", "#21918C", "#35B779", "#90D743", "#FDE725"),
}
DEFAULT = "classic"


def colour(share: float, palette: str = DEFAULT) -> str:
    """Return the palette's colour of a share (0 to 1) as `#rrggbb`, interpolated in sRGB."""
    anchors = PALETTES[palette]
    position = min(max(share, 0.0), 1.0) * (len(anchors) - 1)
    index = min(int(position), len(anchors) - 2)
    return mix(anchors[index], anchors[index + 1], position - index)


def mix(first: str, second: str, weight: float) -> str:
    """Return the colour `weight` (0 to 1) of the way from the first to the second."""
    pairs = zip(_channels(first), _channels(second), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * weight):02x}" for a, b in pairs)


def ink_on(background: str) -> str:
    """Return black or white, whichever contrasts more (WCAG's relative luminance)."""
    return "#000000" if luminance(background) > 0.179 else "#ffffff"


def luminance(code: str) -> float:
    """Return the relative luminance of `#rrggbb` (0 to 1) as WCAG 2 defines it."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (x / 255 for x in _channels(code))]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _channels(code: str) -> tuple[int, ...]:
    return tuple(int(code[start : start + 2], 16) for start in (1, 3, 5))
