"""A small version of each figure of docs/statistics.md, and proof that many runs at once are judged as one is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ctxeval.analysis import gate as gate_module
from ctxeval.analysis.headline import headline
from ctxeval.analysis.question import Grid, Questions
from ctxeval.analysis.trial_runs import Assumptions, Batch, judged, pooled_prior, trial_runs
from ctxeval.policy import parse_policy
from ctxeval.results.store import COLUMNS
from tests.analysis import simulation
from tests.analysis.many_runs import LENGTHS, NATIVE, Drawn, draw_runs, orders, ratio_state_table, recall_state_table
from tests.analysis.simulation import DEPTHS, DOCUMENT, PARTS, Figure, courses

SMALL = {
    "recall_coverage": 500,
    "extreme_coverage": 100,
    "ratio_coverage": 200,
    "false_passes": 150,
    "wrong_orders": 40,
    "resolved_orders": 40,
}
#: The only settings in which a target is missed; docs/statistics.md says why.
MISSED = ("perplexity first", "24 documents, 4 needles each")


def misses(figures: Iterator[Figure]) -> list[str]:
    return [
        figure.line()
        for figure in figures
        if not figure.kept and not (figure.what.startswith(MISSED[0]) and MISSED[1] in figure.where)
    ]


@pytest.mark.parametrize("name", SMALL)
def test_a_small_version_of_each_figure(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    part: Callable[[int], Iterator[Figure]] = getattr(simulation, name)
    monkeypatch.setattr(simulation, "CORRELATIONS", (0.15, 0.5))
    if name.endswith("orders"):
        monkeypatch.setattr(simulation, "DOCUMENTS", (24,))
    figures = list(part(SMALL[name]))
    assert len(figures) >= 4 and misses(iter(figures)) == []
    assert all(figure.value > 0 for figure in figures if figure.at_least)


def test_the_figures_can_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what makes documents count, intervals that are too narrow are seen to be."""

    def independent(self: Batch) -> tuple[Any, Any]:
        return np.ones(len(self.hits)), np.full(len(self.hits), 1e9)

    monkeypatch.setattr(Batch, "effect", independent)
    monkeypatch.setattr(simulation, "CORRELATIONS", (0.5,))
    assert len(misses(simulation.recall_coverage(150))) >= 3
    assert len(misses(simulation.false_passes(150))) >= 3


@pytest.mark.slow
@pytest.mark.parametrize(("part", "runs"), PARTS)
def test_each_figure(part: Callable[[int], Iterator[Figure]], runs: int) -> None:
    assert misses(part(runs)) == []


def test_a_plan_keeps_its_promise() -> None:
    """At the number that is named, other draws pass as often; at half of it, less often."""
    assumed = Assumptions(margin=0.12)
    rules = {"recall": [{"lengths": "native..target", "floor": 0.8}], "short_context": {"min_recall_share": 0.8}}
    policy, checks, found = simulation.planned(rules, 5, assumed)
    assert found.documents
    truth = {need.check.length: need.truth for need in found.needs}
    design = simulation.design_of(5)
    for documents, low, high in ((found.documents, 0.76, 0.93), (found.documents // 2, 0.0, 0.7)):
        passed = trial_runs(policy, checks, design, truth, documents, assumed, runs=600, seed=9)
        assert low < passed.all(axis=1).mean() < high


def needle_rows(scale: str, length: int, batch: Batch, run: int, depths: int) -> pd.DataFrame:
    documents = len(batch.sizes)
    hits = np.arange(depths)[None, :] < batch.hits[run][:, None]
    return pd.DataFrame(
        {
            "probe": "needle",
            "scale": scale,
            "context_length": length,
            "document": np.repeat(np.arange(documents), depths),
            "depth_percent": np.tile(np.array(DEPTHS[:depths]), documents),
            "needle_id": np.arange(documents * depths).astype(str),
            "correct": hits.ravel(),
        }
    )


def run_frame(drawn: Drawn, run: int) -> pd.DataFrame:
    """Return one of the runs as rows of cells.jsonl. Which depths are hit does not matter to what is judged."""
    groups = [needle_rows("none", length, batch, run, 9) for length, batch in drawn.base.items()]
    groups += [needle_rows("yarn", length, batch, run, 9) for length, batch in drawn.own.items()]
    for length, excess in drawn.excess.items():
        documents = np.arange(excess.shape[1])
        nll = {"n_tokens": 512, "bytes": 2048, "nll": 512 * (3 + excess[run]), "baseline_nll": 512 * 3.0}
        where = {"probe": "perplexity", "scale": "yarn", "context_length": length, "document": documents}
        groups.append(pd.DataFrame({**where, **nll}))
    cells = pd.concat(groups, ignore_index=True).reindex(columns=list(COLUMNS))
    fixed: dict[str, Any] = {
        "status": "ok",
        "control": "",
        "plan": "exact",
        "task": "needle",
        "factor": 2.0,
        "trial": 0,
        "reason": "",
    }
    return cells.assign(**fixed).astype({"correct": "boolean"})


@pytest.mark.parametrize("shape", ["sharp", "gradual"])
def test_many_runs_are_judged_as_a_headline_judges_one(shape: str) -> None:
    drawn = draw_runs([1], *courses("perplexity first", shape), runs=2, documents=16, correlation=0.3)
    recall, ratio, named = recall_state_table(drawn), ratio_state_table(drawn), orders(drawn)
    for run in range(2):
        found = headline(run_frame(drawn, run), native_window=NATIVE, lengths=LENGTHS, scalings=("yarn",)).rows[0]
        assert [one.recall_state for one in found.lengths] == list(recall[run])
        assert [one.ratio_state for one in found.lengths] == list(ratio[run])
        assert found.order == named[run]
    assert len({*recall.ravel()}) > 1 and len({*ratio.ravel()}) > 1


def test_many_runs_pass_as_a_gate_passes_one() -> None:
    """Rule by rule, at the right length and level, against the right part of the unpatched model."""
    rules = {
        "recall": [{"lengths": "native..target", "floor": 0.77}],
        "min_effective_length": 3072,
        "no_blind_spot_up_to": 4096,
        "short_context": {"min_recall_share": 0.8},
    }
    policy = parse_policy(rules, "p")
    recalls, losses = (0.95, 0.9, 0.85, 0.87, 0.86, 0.84, 0.8), [0.01] * 7
    drawn = draw_runs([3], recalls, losses, runs=2, documents=40, correlation=0.2, reference=0.95)
    # At the window the unpatched model is worse than at half of it: R and its recall there are held apart.
    drawn.base[2048] = draw_runs([4], recalls, losses, runs=2, documents=40, reference=0.6).base[2048]
    grid = Grid(LENGTHS[-1], LENGTHS, DEPTHS, 40, 40)
    hits, sizes = (sum(getattr(one, name) for one in drawn.base.values()) for name in ("hits", "sizes"))
    reference = Batch(np.asarray(hits), np.asarray(sizes))
    prior = pooled_prior([*drawn.own.values(), *drawn.base.values()])
    states = []
    for run in range(2):
        cells = run_frame(drawn, run)
        summary = headline(cells, native_window=NATIVE, lengths=LENGTHS, scalings=("yarn",))
        questions = Questions(policy, cells, summary, "yarn", grid).all()
        checks = simulation.checks_of(policy, questions, grid)
        batches = [drawn.own[check.length] for check in checks]
        passed = judged(policy, checks, batches, drawn.base, reference, prior)[run]
        found = gate_module.gate(policy, cells, summary, "yarn", grid).checks
        assert [check.state == "pass" for check in found] == list(passed)
        states += list(passed)
    assert 0.1 < np.mean(states) < 0.95


def test_the_page_is_what_the_simulation_writes() -> None:
    """The committed page is of this method, and says why where a target is missed."""
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text.startswith(simulation.METHOD)
    assert ("**no**" in text) == (simulation.MISSES.splitlines()[0] in text)
    for line in text.splitlines():
        if "**no**" in line:
            assert all(part in line for part in MISSED)
