"""Where a sentence may be inserted."""

from __future__ import annotations

import pytest

from ctxeval.text.sentences import sentence_positions


@pytest.mark.parametrize(
    ("text", "second"),
    [
        ("One ends. Two begins", "Two"),
        ('He said: "Go." She went', "She"),
        ("It was 1912! 48 states", "48"),
        ("Why? “Because.”", "“Because"),
        ("title without a stop\n\nlower case follows", "lower"),
        ("an old list\n \n- item", "- item"),
        ("One ends.\n \nlower case follows", "lower"),
        ("He left (late.) The end", "The"),
        ("终わり。次の文", "次の文"),
    ],
)
def test_a_sentence_begins(text: str, second: str) -> None:
    assert sentence_positions(text) == [0, text.index(second, 1)]


@pytest.mark.parametrize(
    "text",
    [
        "costs 3.50 dollars",
        "that is, e.g. this one",
        "Mr. Speaker and Mrs. Speaker",
        "President John F. Kennedy",
        "the U.S. Senate",
        "one line\nAnother line of the same sentence",
        "It ends here. ",
        "",
    ],
)
def test_no_sentence_begins(text: str) -> None:
    assert sentence_positions(text) == [0]


def test_a_paragraph_after_a_stop_is_one_boundary() -> None:
    text = "First one.\n\nsecond one"
    assert sentence_positions(text) == [0, text.index("second")]


def test_a_pronoun_ends_in_an_initial_only_where_a_stop_touches_it() -> None:
    text = "So did we. He ran. They too"
    assert [text[p : p + 2] for p in sentence_positions(text)] == ["So", "He", "Th"]
