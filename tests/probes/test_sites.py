"""Depth to site and back."""

from __future__ import annotations

import numpy as np
import pytest

from ctxeval.probes.sites import SiteRule, lead_in, nearest_depth

STARTS = np.cumsum(np.random.default_rng(0).integers(5, 40, 400))
RULE = SiteRule(lead_in=64, reserve=70, prefix=1)


@pytest.mark.parametrize(("native", "expected"), [(256, 16), (1024, 64), (8192, 64)])
def test_the_lead_in_is_a_sixteenth_of_the_window_up_to_64(native: int, expected: int) -> None:
    assert lead_in(native) == expected


def test_depth_0_is_right_after_the_lead_in_and_100_leaves_the_reserve() -> None:
    assert RULE.position(0, 4096) == 64
    assert RULE.position(100, 4096) == 4096 - 70
    assert RULE.position(50, 4096) == (64 + 4096 - 70) / 2


@pytest.mark.parametrize("length", [512, 4096, 32768])
def test_depth_is_the_inverse_of_position(length: int) -> None:
    for depth in np.linspace(0, 100, 21):
        assert RULE.depth(round(RULE.position(depth, length)), length) == pytest.approx(depth, abs=60 / length * 2)
    assert RULE.depth(0, length) == 0
    assert RULE.depth(length, length) == 100


@pytest.mark.parametrize("prefix", [0, 1, 30, 100])
def test_a_site_is_the_last_sentence_start_at_or_before_the_wanted_place(prefix: int) -> None:
    rule = SiteRule(64, 70, prefix)
    for length in (512, 1024, 4096):
        for depth in np.linspace(0, 100, 23):
            wanted = int(rule.position(depth, length)) - prefix
            earliest = max(64 - prefix, 0)
            allowed = [int(start) for start in STARTS if earliest <= start <= wanted]
            found = rule.site(depth, length, STARTS)
            assert not allowed or found == allowed[-1]
            assert found + prefix >= 64
            assert found + prefix + rule.reserve <= length


def test_a_start_at_the_wanted_place_is_taken_and_one_after_it_is_not() -> None:
    assert RULE.site(50, 1024, np.array([10, 100, 508, 900])) == 508  # 64 + (1024 - 134) / 2 = 509, minus the prefix
    assert RULE.site(50, 1024, np.array([10, 100, 509, 900])) == 100


def test_in_the_lead_in_the_next_sentence_is_taken_where_it_counts_for_the_same_depth() -> None:
    assert RULE.site(0, 1024, np.array([0, 30, 80, 200])) == 80
    assert RULE.site(0, 1024, np.array([0, 30, 118, 200])) == 118  # 55 of 890 tokens: 6.2 percent
    assert RULE.site(0, 1024, np.array([0, 30, 119, 200])) == 63  # 6.3 percent


def test_where_no_sentence_begins_the_wanted_place_itself_is_the_site() -> None:
    assert RULE.site(50, 1024, np.array([], dtype=np.int64)) == 508
    assert RULE.site(50, 1024, np.array([0, 40])) == 508
    assert RULE.site(0, 1024, np.array([900])) == 63


def test_the_next_sentence_is_not_taken_where_the_question_would_not_fit_behind_it() -> None:
    for after in (954, 960, 1500):  # at depth 100 the wanted place is 953
        assert RULE.site(100, 1024, np.array([0, 30, after])) == 953


def test_no_depth_of_a_sparse_text_asks_for_more_than_there_is() -> None:
    random = np.random.default_rng(1)
    for _ in range(300):
        starts, length = np.cumsum(random.integers(20, 300, 20)), int(random.integers(134, 700))
        for depth in (0, 50, 93.75, 97, 100):
            assert 63 <= RULE.site(depth, length, starts) <= length - 71


def test_what_fits() -> None:
    assert RULE.fits(134)
    assert not RULE.fits(133)
    assert not SiteRule(64, 70, 100).fits(169)


def test_the_nearest_grid_depth_and_the_smaller_on_a_tie() -> None:
    assert nearest_depth(4.9, (0.0, 10.0, 20.0)) == 0
    assert nearest_depth(5, (10.0, 0.0)) == 0
    assert nearest_depth(5.1, (0.0, 10.0, 20.0)) == 10
    assert nearest_depth(100, (0.0, 100.0)) == 100


def test_a_depth_that_no_grid_depth_is_near_to_counts_for_none() -> None:
    assert nearest_depth(56.25, (0.0, 50.0, 100.0)) == 50
    assert nearest_depth(56.3, (0.0, 50.0, 100.0)) is None
