"""How a number of things is written. Pure."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Write `1 document`, `16 documents`, `2,048 tokens`; `noun` is a singular that takes an s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def are(number: int, noun: str) -> str:
    """Write `1 row is`, `3 rows are`."""
    return f"{counted(number, noun)} {'is' if number == 1 else 'are'}"


def have(number: int, noun: str) -> str:
    """Write `1 row has`, `3 rows have`."""
    return f"{counted(number, noun)} {'has' if number == 1 else 'have'}"
