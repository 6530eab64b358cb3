"""A cell's id changes with everything that determines its value, and with nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ctxeval.engine.plan import Prompt
from ctxeval.manifest import identity
from ctxeval.probes.needle import NeedleProbe
from ctxeval.resolve import resolve
from ctxeval.spec import ModelSpec, RunSpec
from ctxeval.text.documents import Document

SPEC = RunSpec(ModelSpec("demo"), scales=("yarn",), length=2048)
MODEL = {"name": "demo", "fingerprint": "f", "dtype": "fp32", "attention": "sdpa"}
CORPUS, TASK = {"name": "sotu", "sha256": "c"}, {"name": "needle", "sha256": "t"}


def who(**changes: Any) -> dict[str, Any]:
    """Return a run's identity; `model_…`, `corpus_…`, `task_…` change the described parts, others the spec."""
    parts = {"model": dict(MODEL), "corpus": dict(CORPUS), "task": dict(TASK)}
    fields = {}
    for name, value in changes.items():
        part, _, key = name.partition("_")
        if part in parts:
            parts[part][key] = value
        else:
            fields[name] = value
    spec = replace(SPEC, **fields)
    return identity(spec, resolve(spec, spec.native_window or 1024), **parts)


@pytest.fixture(scope="module")
def row(make_probe: Callable[..., NeedleProbe], documents: tuple[Document, ...]) -> Any:
    return make_probe().exact(documents[0], 0)[5]


def test_the_same_cell_has_the_same_id_in_every_process(row: Any, make_probe: Any, documents: Any) -> None:
    again = make_probe().exact(documents[0], 0)[5]
    assert row.bind("yarn", 2.0, who()).cell_id == again.bind("yarn", 2.0, who()).cell_id


@pytest.mark.parametrize(
    "changes",
    [
        {"model_fingerprint": "g"},
        {"model_dtype": "bf16"},
        {"model_attention": "ctxeval_prefix"},
        {"corpus_sha256": "d"},
        {"seed": 1},
        {"chunk": 512},
        {"chat": True},
        {"protocol": "all"},
        {"protocol": "strided", "stride": 100},
        {"native_window": 512},
        {"packed": True},
        {"packed": True, "needles_per_context": 4},
        {"depths": (0.0, 50.0)},
        {"lengths": (512, 2048)},
        {"from_scratch": True},
    ],
    ids=str,
)
def test_whatever_determines_the_value_changes_the_id(row: Any, changes: dict[str, Any]) -> None:
    assert row.bind("yarn", 2.0, who(**changes)).cell_id != row.bind("yarn", 2.0, who()).cell_id


def test_runs_from_before_an_option_existed_keep_their_identity() -> None:
    assert not {"from_scratch", "pretrain_window"} & set(who(pretrain_window=512))
    assert who(from_scratch=True)["pretrain_window"] == 1024


def test_scale_factor_and_options_change_the_id(row: Any) -> None:
    ids = {
        row.bind("yarn", 2.0, who()).cell_id,
        row.bind("pi", 2.0, who()).cell_id,
        row.bind("yarn", 4.0, who()).cell_id,
        row.bind("yarn", 2.0, who() | {"options": {"beta_fast": 16}}).cell_id,
        row.bind("yarn", 2.0, who() | {"options": {"beta_fast": 8}}).cell_id,
    }
    assert len(ids) == 5


def test_the_text_and_what_is_scored_change_the_id(row: Any) -> None:
    (prompt,) = row.prompts
    ids = prompt.ids.copy()
    ids[100] ^= 1
    variants = [
        Prompt(ids, prompt.score_start, prompt.score_stop),
        Prompt(prompt.ids, prompt.score_start - 1, prompt.score_stop),
        Prompt(prompt.ids, prompt.score_start, prompt.score_stop - 1),
    ]
    found = {replace(row, prompts=(one,)).bind("yarn", 2.0, who()).cell_id for one in [prompt, *variants]}
    assert len(found) == 4


def test_every_row_of_a_run_has_an_id_of_its_own(make_probe: Any, documents: tuple[Document, ...]) -> None:
    probe = make_probe()
    rows = [
        row
        for document in documents
        for row in [*probe.exact(document, 0), *probe.exact(document, 1), *probe.packed(document, 0, Counter())]
    ]
    assert len({row.bind("yarn", 2.0, who()).cell_id for row in rows}) == len(rows)


def test_known_columns_arrive_in_the_cell(row: Any) -> None:
    cell = row.bind("yarn", 2.0, who())
    assert (cell.scale, cell.factor, cell.status, cell.correct) == ("yarn", 2.0, "ok", None)
    assert {name: getattr(cell, name) for name in row.columns} == dict(row.columns)
