"""The text around a needle, for the eye of a reader. Nothing is measured with it."""

from __future__ import annotations

from ctxeval.probes.task import Needle
from ctxeval.results.samples import Excerpt
from ctxeval.text.documents import Document

#: Characters of text on either side of a needle.
WIDTH = 100


def excerpt(document: Document, site: int, shown: int, needle: Needle) -> Excerpt:
    """Return the document's own text before and after text token `site`; the context ends before token `shown`.

    Other needles of a shared context are not in it.
    """

    def character(token: int) -> int:
        return int(document.starts[token]) if token < len(document.starts) else len(document.text)

    at, end = character(site), character(shown)
    before, after = document.text[max(at - WIDTH, 0) : at], document.text[at : min(at + WIDTH, end)]
    return Excerpt(before, needle.statement, after, needle.question, needle.lead)
