"""One thing is no plural."""

from __future__ import annotations

import pytest

from ctxeval.wording import are, counted, have


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (11, "11 rows"), (2048, "2,048 rows")]
)
def test_a_number_of_things(number: int, words: str) -> None:
    assert counted(number, "row") == words
    assert are(number, "row") == words + (" is" if number == 1 else " are")
    assert have(number, "row") == words + (" has" if number == 1 else " have")
