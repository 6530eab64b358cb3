"""What a run measures, in which order, and that asking twice gives the same."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any

import numpy as np
import pytest

from ctxeval.engine.agenda import Agenda, Unit, spread
from ctxeval.engine.plan import forwarded_tokens
from ctxeval.probes.needle import NeedleGrid, NeedleProbe
from ctxeval.probes.perplexity import BASELINE, PerplexityProbe
from ctxeval.probes.task import load_task
from ctxeval.resolve import resolve
from ctxeval.spec import ModelSpec, RunSpec
from ctxeval.text.assemble import Frame
from ctxeval.text.corpus import load_corpus
from ctxeval.text.documents import cut_documents

NATIVE = 512
MakeAgenda = Callable[..., Agenda]


@pytest.fixture(scope="module")
def make_agenda(tiny_tokenizer: Callable[..., Any]) -> MakeAgenda:
    documents = cut_documents(load_corpus("sotu"), tiny_tokenizer(), count=3, length=1024, seed=0)

    def factory(varies: bool = False, **fields: Any) -> Agenda:
        spec = RunSpec(
            ModelSpec("tiny"),
            **{"scales": ("yarn", "none"), "length": 1024, "documents": 3, "depths": (0.0, 50.0, 100.0)} | fields,
        )
        resolved = resolve(spec, NATIVE, native_varies=varies)
        frame = Frame(tiny_tokenizer())
        grid = NeedleGrid(resolved.all_lengths, resolved.depths, NATIVE, spec.seed, spec.trials, 10)
        needle = NeedleProbe(load_task("needle"), frame, grid) if "needle" in spec.probes else None
        perplexity = PerplexityProbe(frame, resolved.all_lengths, NATIVE, spec.protocol, spec.stride)
        return Agenda(spec, resolved, documents, needle, perplexity if "perplexity" in spec.probes else None)

    return factory


def kind(unit: Unit) -> tuple[str, str]:
    columns = unit.measurements[-1].columns
    return columns["probe"], columns["plan"]


def ids(agenda: Agenda) -> list[str]:
    return [
        one.bind(unit.scaling.label, unit.scaling.factor, {}).cell_id
        for unit in agenda.units()
        for one in unit.measurements
    ]


@pytest.mark.parametrize("packed", [True, False])
def test_each_call_yields_the_same_units(make_agenda: MakeAgenda, packed: bool) -> None:
    agenda = make_agenda(packed=packed, trials=2)
    once = ids(agenda)
    assert once == ids(agenda) == ids(make_agenda(packed=packed, trials=2))
    assert len(set(once)) == len(once)


def test_documents_are_the_outer_loop_and_scalings_the_inner_one_with_none_first(make_agenda: MakeAgenda) -> None:
    units = list(make_agenda(packed=True, exact_subset=4).units())
    assert [document for document, _ in groupby(unit.document for unit in units)] == [0, 2, 1]
    for _, group in groupby(units, key=lambda unit: (unit.document, *kind(unit))):
        assert [unit.scaling.method for unit in group] == ["none", "yarn"]


def test_the_baseline_is_measured_by_the_unpatched_model_alone_and_before_all_others(make_agenda: MakeAgenda) -> None:
    agenda = make_agenda(probes=("perplexity",))
    units = list(agenda.units())
    for unit in units:
        baselines = [one for one in unit.measurements if one.columns["control"] == BASELINE]
        assert [one.columns["context_length"] for one in baselines] == (
            list(agenda.resolved.all_lengths) if unit.scaling.method == "none" else []
        )
        assert list(unit.measurements[: len(baselines)]) == baselines
    assert [unit.scaling.method for unit in units] == ["none", "yarn"] * 3


def test_none_is_measured_at_the_reference_lengths_even_if_not_asked_for(make_agenda: MakeAgenda) -> None:
    agenda = make_agenda(scales=("yarn",), lengths=(768, 1024), probes=("needle",))
    found = {
        (unit.scaling.method, one.columns["context_length"]) for unit in agenda.units() for one in unit.measurements
    }
    assert found == {("none", 256), ("none", 512), ("yarn", 768), ("yarn", 1024)}


def test_what_depends_on_the_length_has_a_unit_a_length(make_agenda: MakeAgenda) -> None:
    """Keys cached for one length are no use for another, so that no prefix is shared between them."""
    for packed in (True, False):
        agenda = make_agenda(scales=("ntk-dynamic", "yarn"), packed=packed, probes=("needle", "perplexity"))
        units = list(agenda.units())
        assert {unit.frozen_length for unit in units if unit.scaling.method != "ntk-dynamic"} == {None}
        dynamic = [unit for unit in units if unit.scaling.method == "ntk-dynamic"]
        for unit in dynamic:
            assert {one.columns["context_length"] for one in unit.measurements} == {unit.frozen_length}
            assert unit.setting == f"ntk-dynamic@{unit.frozen_length}"
        rows = {"ntk-dynamic": 0, "yarn": 0}
        for unit in units:
            if unit.scaling.method != "none":
                rows[unit.scaling.method] += len(unit.measurements)
        assert rows["ntk-dynamic"] == rows["yarn"]


def test_the_baseline_of_a_checkpoint_that_varies_is_frozen_at_what_it_reads(make_agenda: MakeAgenda) -> None:
    agenda = make_agenda(scales=("none",), probes=("perplexity",), lengths=(256, 1024), varies=True)
    found = [
        (unit.frozen_length, one.columns["context_length"], one.columns["control"])
        for unit in agenda.units()
        for one in unit.measurements
        if unit.document == 0
    ]
    assert found == [
        (256, 256, BASELINE),
        (256, 256, ""),
        (512, 512, BASELINE),
        (512, 1024, BASELINE),  # reads the last native window of it
        (512, 512, ""),
        (1024, 1024, ""),
    ]


def test_rows_a_document_are_the_grid_and_a_control_a_length(make_agenda: MakeAgenda) -> None:
    agenda = make_agenda(probes=("needle",), trials=2)
    units = list(agenda.units())
    assert len(units) == 3 * 2 * 2
    for unit in units:
        for length in agenda.resolved.all_lengths:
            rows = [one.columns for one in unit.measurements if one.columns["context_length"] == length]
            asked = [columns for columns in rows if not columns["control"]]
            assert len(rows) == len(asked) + 1
            # Depths that fall on one sentence start are one needle, never two rows of the same.
            assert 1 <= len(asked) == len({columns["needle_id"] for columns in asked}) <= 3
            assert len({columns["depth_percent"] for columns in asked}) == len(asked)
    assert {one.columns["trial"] for unit in units for one in unit.measurements} == {0, 1}


def test_perplexity_is_measured_once_a_document_and_on_as_many_as_asked(make_agenda: MakeAgenda) -> None:
    units = list(make_agenda(trials=2, perplexity_documents=2, probes=("needle", "perplexity")).units())
    measured = [unit.document for unit in units if kind(unit)[0] == "perplexity" and unit.scaling.method == "yarn"]
    assert measured == [0, 2]


@pytest.mark.parametrize(("size", "contexts"), [(0, []), (1, [1]), (3, [1, 1, 1]), (5, [2, 2, 1])])
def test_the_exact_subset_is_spread_over_documents_and_stops_when_there_are_enough(
    make_agenda: MakeAgenda, size: int, contexts: list[int]
) -> None:
    agenda = make_agenda(packed=True, exact_subset=size, probes=("needle",), scales=("none",))
    subset = [unit for unit in agenda.units() if kind(unit)[1] == "exact" and unit.scaling.method == "none"]
    assert [unit.document for unit in subset] == [0, 2, 1][: len(subset)]
    repeated = [
        (one.columns["needle_id"], one.columns["context_length"]) for unit in subset for one in unit.measurements
    ]
    assert len(set(repeated)) == len(repeated) == size
    assert [len(list(group)) for _, group in groupby(name.split(".")[0] for name, _ in repeated)] == contexts


@pytest.mark.parametrize("count", [1, 2, 3, 7, 16, 33])
def test_the_first_documents_of_the_order_cover_the_whole_range(count: int) -> None:
    order = spread(count)
    assert sorted(order) == list(range(count))
    for some in range(2, count + 1):
        gaps = np.diff([0, *sorted(order[:some]), count])
        assert max(gaps) <= 4 * count / some


def test_a_unit_shares_prefixes_where_the_cache_can_be_cropped(make_agenda: MakeAgenda) -> None:
    unit = next(make_agenda(probes=("perplexity",), protocol="strided").units())
    prompts, roots, ranges = unit.tree(share=True)
    assert ranges[0][0] == 0
    assert [stop for _, stop in ranges[:-1]] == [start for start, _ in ranges[1:]]
    for (start, stop), one in zip(ranges, unit.measurements, strict=True):
        assert prompts[start:stop] == list(one.prompts)
    separate = unit.tree(share=False)[1]
    assert [root.members for root in separate] == [(index,) for index in range(len(prompts))]
    assert forwarded_tokens(roots) < forwarded_tokens(separate)
