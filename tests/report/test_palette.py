"""Colours: met at their anchors, never unreadable, and told apart by colour-blind readers where that is promised."""

from __future__ import annotations

import pytest

from ctxeval.report.palette import PALETTES, colour, ink_on, luminance, mix

SHARES = [step / 50 for step in range(51)]


def contrast(one: str, other: str) -> float:
    """Return WCAG's contrast ratio (1 to 21)."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_the_classic_palette_is_met_at_0_50_and_100() -> None:
    assert [colour(share) for share in (0, 0.5, 1)] == [code.lower() for code in PALETTES["classic"]]
    assert colour(0.25) == "#ee8054" and colour(-1) == colour(0) and colour(2) == colour(1)


@pytest.mark.parametrize("name", ["cividis", "viridis"])
def test_the_others_are_matplotlib_s(name: str) -> None:
    import matplotlib
    from matplotlib.colors import to_rgb

    theirs = matplotlib.colormaps[name]
    for share in SHARES:
        assert to_rgb(colour(share, name)) == pytest.approx(theirs(share)[:3], abs=0.1)


@pytest.mark.parametrize("name", ["cividis", "viridis"])
def test_without_any_colour_vision_more_recall_is_lighter(name: str) -> None:
    shades = [luminance(colour(share, name)) for share in SHARES]
    assert shades == sorted(shades) and shades[-1] - shades[0] > 0.6


@pytest.mark.parametrize("name", sorted(PALETTES))
def test_numbers_can_be_read_on_every_colour(name: str) -> None:
    shades = [colour(share, name) for share in SHARES]
    assert min(contrast(shade, ink_on(shade)) for shade in shades) >= 4.5


def test_luminance_is_that_of_wcag() -> None:
    assert luminance("#ffffff") == pytest.approx(1) and luminance("#000000") == 0
    assert luminance("#777777") == pytest.approx(0.1845, abs=1e-4)  # 4.48 : 1 against white
    assert mix("#000000", "#ffffff", 0.5) == "#808080"
