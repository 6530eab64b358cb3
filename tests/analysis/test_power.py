"""The number of documents that a plan names: checked against the code that a gate runs, and against its own promise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ctxeval.analysis.headline import headline
from ctxeval.analysis.power import LADDER, Power, first, power, ratio_chance
from ctxeval.analysis.question import Grid, Question, Questions
from ctxeval.analysis.stats import cluster_proportion, mean_bounds, pooled_correlation, scaled_difference
from ctxeval.analysis.trial_runs import Assumptions, Batch, Design, pooled_prior
from ctxeval.policy import parse_policy
from ctxeval.results.store import to_frame

LENGTHS = (1024, 2048, 4096)
GRID = Grid(4096, LENGTHS, (0.0, 25.0, 50.0, 75.0, 100.0))
DESIGN = Design(2048, GRID, dict.fromkeys(LENGTHS, 5.0))


def planned(rules: dict[str, Any], design: Design = DESIGN, **assumed: Any) -> Power:
    policy = parse_policy(rules, "p.yaml")
    nothing = to_frame([])
    summary = headline(nothing, native_window=2048, lengths=design.grid.lengths, scalings=("none", "yarn"))
    questions = Questions(policy, nothing, summary, "yarn", design.grid).all()
    return power(policy, questions, design, Assumptions(**assumed))


@pytest.mark.parametrize("needles", [5.0, 2.5, 0.7])
@pytest.mark.parametrize("mean", [0.5, 0.97, 1.0, 0.0])
def test_many_runs_at_once_have_the_bounds_of_each(needles: float, mean: float) -> None:
    """A batch is `cluster_proportion`, `pooled_correlation` and `scaled_difference`, run by run."""
    generator = np.random.default_rng(0)
    sizes = np.diff(np.floor(np.arange(13) * needles + 1e-9)).astype(int)
    cells = [Batch(generator.binomial(sizes, np.full((6, 12), one)), sizes) for one in (mean, 0.8)]
    priors = np.broadcast_to(pooled_prior(cells), 6)
    bounds = cells[0].bounds(0.025, priors)
    gaps = cells[0].difference(cells[1], 0.85, 0.02, priors)
    documents = np.repeat(np.arange(12), sizes)
    for run in range(6):
        hits = [
            np.concatenate([np.arange(size) < hit for size, hit in zip(sizes, batch.hits[run], strict=True)])
            for batch in cells
        ]
        known = [cluster_proportion(one, np.ones(len(one)), documents) for one in hits]
        prior = pooled_correlation(one for one in known if one)
        assert prior == pytest.approx(priors[run])
        one, other = (cluster_proportion(hit, np.ones(len(hit)), documents, prior) for hit in hits)
        assert one and other
        assert one.bounds(0.025) == pytest.approx([bound[run] for bound in bounds])
        assert scaled_difference(one, other, 0.85, 0.02) == pytest.approx([gap[run] for gap in gaps])


@pytest.mark.parametrize("documents", [4, 12])
def test_the_chance_of_a_ratio_is_that_of_the_bound(documents: int) -> None:
    generator = np.random.default_rng(documents)
    runs = 4000
    excess = generator.normal(math.log(1.02), 0.03, size=(runs, documents))
    highs = [mean_bounds(one, np.ones(documents), 0.025)[2] for one in excess]
    seen = float(np.mean(np.array(highs) <= math.log(1.05)))
    chance = ratio_chance(1.05, 1.02, documents, 0.025, 0.03)
    assert 0.1 < chance < 0.95
    assert chance == pytest.approx(seen, abs=0.025)  # three standard errors


def test_more_is_needed_for_more() -> None:
    """Each change asks for more documents, and all checks together for no fewer than any alone."""
    rule = {"recall": [{"lengths": "4k", "floor": 0.8}]}
    base = planned(rule, margin=0.12).documents
    assert base
    for harder in (
        planned({"recall": [{"lengths": "1k..4k", "floor": 0.8}]}, margin=0.12),
        planned({**rule, "confidence": 0.99}, margin=0.12),
        planned(rule, margin=0.12, power=0.95),
        planned(rule, margin=0.1),
        planned(rule, margin=0.12, correlation=0.5),
        planned(rule, Design(2048, GRID, dict.fromkeys(LENGTHS, 2.0)), margin=0.12),
        planned({"recall": [{"lengths": "4k", "floor": 0.8, "depths": "0..25"}]}, margin=0.12),
    ):
        assert harder.documents and harder.documents > base
    rules = {**rule, "min_effective_length": "4k", "short_context": {"min_recall_share": 0.8}}
    whole = planned(rules, margin=0.12)
    alone = [need.documents for need in whole.needs]
    assert len(alone) == 6 and whole.documents and all(one and one <= whole.documents + 1 for one in alone)
    assert whole.chance >= 0.8


def test_ratios_alone_and_beside_needles() -> None:
    ratio = {"perplexity": [{"lengths": "4k", "max_ratio": 1.05}]}
    found = planned(ratio, spread=0.05)
    assert found.documents is None and found.losses and found.needs[0].documents == found.losses
    assert ratio_chance(1.05, 1.02, found.losses, 0.025, 0.05) >= 0.8
    both = planned({**ratio, "recall": [{"lengths": "4k", "floor": 0.8}]}, spread=0.02, margin=0.1)
    assert both.documents and both.losses and 8 <= both.losses < both.documents
    # Both probes at every length: neither is in the way of the other.
    blind = planned({"no_blind_spot_up_to": "4k"}, margin=0.12)
    assert blind.documents and blind.losses == 8 and [need.check.quantity for need in blind.needs] == ["blind"] * 3


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"recall": [{"lengths": "4k", "floor": 0.97}]}, "no recall is 5 points above 97 %"),
        ({"recall": [{"lengths": "8k", "floor": 0.8}]}, "8K is not in the grid"),
        ({"recall": [{"lengths": "4k", "floor": 0.8, "depths": 33}]}, "no such depth"),
        ({"perplexity": [{"lengths": "4k", "max_ratio": 0.02}]}, "no ratio is 0.03 below 0.02"),
    ],
)
def test_what_can_never_pass(rules: dict[str, Any], said: str) -> None:
    found = planned(rules)
    assert found.never and found.documents is None and found.losses is None and said in found.needs[0].never


def test_more_documents_than_anybody_has() -> None:
    found = planned({"recall": [{"lengths": "4k", "floor": 0.5}]}, margin=0.001)
    assert not found.never and found.documents is None and found.needs[0].documents is None
    assert math.isnan(found.chance)


def test_what_rests_on_another_run_is_left_out_and_named() -> None:
    policy = parse_policy({"recall": [{"lengths": "4k", "floor": 0.5}]}, "p.yaml")
    other = Question("regression at 4K", "regression", 4096)
    own = Question("recall at 4K", "recall[0]", 4096, "recall", 0.5)
    both = power(policy, [own, other], DESIGN, Assumptions(margin=0.3))
    assert both.unplanned == ("regression at 4K",) and both.documents and len(both.needs) == 1
    assert power(policy, [other], DESIGN, Assumptions()).documents is None


def test_the_first_rung() -> None:
    for enough in (2, 3, 100, LADDER[-1]):
        assert first(LADDER, lambda rung, enough=enough: rung >= enough) == next(r for r in LADDER if r >= enough)
    assert first(LADDER, lambda rung: False) is None
