"""Where several depths fall on one sentence start there is one needle, of the depth that it really is nearest to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ctxeval.probes.needle import NeedleProbe
from ctxeval.text.documents import Document


def test_a_coinciding_needle_is_one_row_of_its_nearest_depth(
    make_probe: Callable[..., NeedleProbe], documents: tuple[Document, ...]
) -> None:
    probe: Any = make_probe(depths=tuple(range(0, 101, 2)))
    shared = 0
    for document in documents:
        for row in probe.exact(document, 0):
            columns = row.columns
            if columns["control"]:
                continue
            length, position = columns["context_length"], columns["needle_position"]
            site = position - probe.rule.prefix
            rivals = [
                depth for depth in probe.grid.depths if probe.rule.site(depth, length, document.sentence_starts) == site
            ]
            real = probe.rule.depth(position, length)
            assert abs(columns["depth_percent"] - real) == min(abs(depth - real) for depth in rivals)
            shared += len(rivals) > 1
    assert shared > 10
