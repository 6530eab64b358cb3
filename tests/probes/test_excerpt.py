"""The excerpt is the text that the model reads around the needle, and no more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ctxeval.probes.excerpt import WIDTH, excerpt
from ctxeval.probes.needle import NeedleProbe
from ctxeval.probes.task import load_task, make_needle
from ctxeval.text.documents import Document


@pytest.mark.parametrize("plan", ["exact", "packed"])
def test_it_stands_in_the_prompt(
    plan: str, make_probe: Callable[..., NeedleProbe], documents: tuple[Document, ...]
) -> None:
    probe, document = make_probe(), documents[0]
    rows = probe.exact(document, 0) if plan == "exact" else probe.packed(document, 0, Counter())
    decode: Any = probe.frame.tokenizer.decode
    for row in rows:
        around = row.excerpt
        if row.columns["control"]:
            assert around is None
            continue
        assert around is not None and row.columns["expected"] in around.needle
        read = decode(row.prompts[0].ids)
        assert f"{around.before} {around.needle}{around.after}" in read
        assert f"{around.question} {around.lead}" in read
        assert len(around.before) <= WIDTH and len(around.after) <= WIDTH
        assert around.before + around.after in document.text


def test_it_ends_where_the_context_does(numbered: Callable[[int], Document]) -> None:
    document = numbered(300)
    needle = make_needle(load_task("needle"), seed=0, document=0, trial=0, site=0)
    early, late, last = (excerpt(document, site, shown, needle) for site, shown in ((10, 15), (200, 290), (300, 300)))
    assert (early.before, early.after) == (document.text[:10], document.text[10:15])
    assert (late.before, late.after) == (document.text[100:200], document.text[200:290])
    assert (last.before, last.after) == (document.text[200:], "")


def test_it_changes_neither_the_row_nor_its_id(
    make_probe: Callable[..., NeedleProbe], documents: tuple[Document, ...]
) -> None:
    row = make_probe().exact(documents[0], 0)[0]
    assert row.bind("none", 1.0, {}) == replace(row, excerpt=None).bind("none", 1.0, {})
