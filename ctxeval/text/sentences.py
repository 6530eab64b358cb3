"""Where sentences begin, found from the text itself. Pure: characters in, positions out."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

CLOSING = "\"'”’»)\\]"
OPENING = frozenset("\"'“‘«([")
#: What can stand between two sentences; the next one begins where the match ends.
BOUNDARY = re.compile(
    rf"(?P<stop>[.!?…]+[{CLOSING}]*)\s+"  # Latin script: a stop, closing quotes, white space
    rf"|(?P<wide>[。！？]+[{CLOSING}」』]*)\s*"  # Chinese and Japanese write no space
    r"|(?P<blank>\n[^\S\n]*\n\s*)"
)
LAST_WORD = re.compile(r"(\w+)\.$")
#: A stop after one of these seldom ends a sentence; a boundary too few is better than "Mr. | Speaker".
ABBREVIATIONS = frozenset(
    {"mr", "mrs", "ms", "messrs", "dr", "prof", "gen", "col", "capt", "lt", "sgt", "gov", "sen", "rep", "hon", "rev"}
    | {"st", "jr", "sr", "no", "nos", "vs"}
)


def sentence_positions(text: str) -> list[int]:
    """Return the character positions at which a sentence begins, ascending; 0 is one of them.

    A sentence begins after `.`, `!` or `?` with its closing quotes and white space, if an upper-case letter, a digit
    or an opening quote follows, and after a blank line.
    """
    positions = [0]
    for match in BOUNDARY.finditer(text):
        if match.end() < len(text) and _begins(text, match):
            positions.append(match.end())
    return positions


def sentence_tokens(text: str, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Map sentence positions to the tokens that begin there, or in the white space right before."""
    tokens: list[int] = []
    for position in sentence_positions(text):
        token = int(np.searchsorted(ends, position, side="right"))  # the first that reaches beyond `position`
        if token < len(starts) and not text[int(starts[token]) : position].strip():
            tokens.append(token)
    return np.unique(np.asarray(tokens, dtype=np.int64))


def _begins(text: str, match: re.Match[str]) -> bool:
    if match["blank"] or match["wide"] or match[0].count("\n") > 1:
        return True
    following = text[match.end()]
    if not (following.isupper() or following.isdigit() or following in OPENING):
        return False
    word = LAST_WORD.search(text, max(0, match.start() - 20), match.start("stop") + 1)
    # One letter before the stop: an initial ("John F. Kennedy") or the end of "U.S.".
    return word is None or not (word[1].lower() in ABBREVIATIONS or (len(word[1]) == 1 and word[1].isupper()))
