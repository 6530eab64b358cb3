"""The rule `regression`: a drop is excluded, shown, or not decided; nothing passes by absence."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ctxeval.analysis.compare import side
from ctxeval.analysis.gate import Check, Gate, gate_run
from ctxeval.errors import UsageError
from ctxeval.policy import parse_policy
from ctxeval.results.store import Run
from tests.analysis.synthetic_runs import make_run, with_cells

RULE = {"lengths": "4k", "max_recall_drop": 0.1, "max_ratio": 1.05}


def flat(value: float) -> Any:
    return lambda scale, length: value


def check(run: Run, baseline: Run, *rules: dict[str, Any], **policy: Any) -> Gate:
    wanted = parse_policy({"regression": list(rules or (RULE,)), **policy}, "p.yaml")
    return gate_run(wanted, run.cells, run.manifest, "yarn", side(baseline, "yarn"))


def at(cells: pd.DataFrame, probe: str) -> Any:
    return (cells["probe"] == probe) & (cells["scale"] == "yarn") & (cells["context_length"] == 4096)


@pytest.fixture
def base() -> Run:
    return make_run("base", flat(0.95), flat(0.1))


def worse(base: Run, drop: float, nats: float) -> Run:
    """Return the run with a share of the found needles lost, spread over documents, and a loss that is higher."""
    cells = base.cells.copy()
    found = cells.index[at(cells, "needle") & cells["correct"].fillna(False).astype(bool)]
    lost = np.random.default_rng(0).choice(found, size=round(drop * 24 * 9), replace=False)
    cells.loc[lost, "correct"] = False
    mine = at(cells, "perplexity")
    spread = np.random.default_rng(1).normal(0, 0.02, size=int(mine.sum()))
    cells.loc[mine, "nll"] += (nats + spread) * cells.loc[mine, "n_tokens"]
    return with_cells(base, cells)


def both(found: Gate) -> tuple[Check, Check]:
    recall, ratio = found.checks
    assert (recall.quantity, ratio.quantity) == ("change", "ratio")
    return recall, ratio


@pytest.mark.parametrize(
    ("drop", "nats", "states"),
    [(0.0, 0.0, ("pass", "pass")), (0.3, 0.2, ("fail", "fail")), (0.1, math.log(1.05), ("inconclusive",) * 2)],
)
def test_on_bounds(base: Run, drop: float, nats: float, states: tuple[str, str]) -> None:
    recall, ratio = both(check(worse(base, drop, nats), base))
    assert (recall.state, ratio.state) == states
    assert recall.value == pytest.approx(-drop, abs=0.003) and ratio.value == pytest.approx(math.exp(nats), abs=0.02)
    assert (recall.low >= -0.1) == (states[0] == "pass") and (recall.high < -0.1) == (states[0] == "fail")
    assert (ratio.high <= 1.05) == (states[1] == "pass") and (ratio.low > 1.05) == (states[1] == "fail")
    assert (recall.bar, ratio.bar, recall.documents) == (-0.1, 1.05, 24)


def test_more_documents_that_would_decide(base: Run) -> None:
    recall, _ = both(check(worse(base, 0.05, 0.0), base, {**RULE, "max_recall_drop": 0.07}))
    assert recall.state == "inconclusive" and recall.more_documents is not None and recall.more_documents > 0


def test_lengths_and_names(base: Run) -> None:
    found = check(base, base, {"lengths": "native..target", "max_recall_drop": 0.1}, {"lengths": "1k", "max_ratio": 2})
    assert [(one.name, one.rule) for one in found.checks] == [
        ("regression: recall at 2K", "regression[0]"),
        ("regression: recall at 4K", "regression[0]"),
        ("regression: perplexity at 1K", "regression[1]"),
    ]
    assert found.notes == ("baseline base@yarn",) and found.verdict == "pass"


def test_other_rules_are_still_checked(base: Run) -> None:
    found = check(base, base, recall=[{"lengths": "4k", "floor": 0.99}])
    assert [one.state for one in found.checks] == ["fail", "pass", "pass"] and found.verdict == "fail"


def test_what_the_baseline_lacks_never_passes(base: Run) -> None:
    for probe, index, words in (("needle", 0, "no needle rows"), ("perplexity", 1, "no perplexity rows")):
        lacking = with_cells(base, base.cells[~at(base.cells, probe)].reset_index(drop=True))
        one = check(base, lacking).checks[index]
        assert (one.state, one.cause) == ("inconclusive", "absent") and f"the baseline has {words} at 4K" == one.note
        one = check(lacking, base).checks[index]
        assert (one.state, one.cause) == ("inconclusive", "absent") and words in one.note
        partly = with_cells(base, base.cells[~(at(base.cells, probe) & (base.cells["document"] == 2))])
        for found in (check(base, partly), check(partly, base)):
            one = found.checks[index]
            assert (one.state, one.cause, one.missing) == ("inconclusive", "missing", 9 if probe == "needle" else 1)
    one = check(base, base, {"lengths": "8k", "max_recall_drop": 0.1}).checks[0]
    assert (one.state, one.cause) == ("inconclusive", "absent") and "no needle rows of yarn at 8K" in one.note


def spoiled(base: Run, status: str) -> Run:
    cells = base.cells.copy()
    for probe in ("needle", "perplexity"):
        rows = at(cells, probe) & (cells["document"] == 1)
        cells.loc[rows, "status"] = status
    cells.loc[cells["status"] == status, ["correct", "nll"]] = [pd.NA, math.nan]
    return with_cells(base, cells)


def test_nan_fails_and_a_baseline_of_nan_is_no_excuse(base: Run) -> None:
    found = check(spoiled(base, "nan"), base)
    assert [(one.state, one.cause) for one in found.checks] == [("fail", "nan")] * 2
    found = check(base, spoiled(base, "nan"))
    assert [(one.state, one.cause) for one in found.checks] == [("inconclusive", "missing")] * 2
    found = check(spoiled(base, "nan"), spoiled(base, "nan"))
    assert [one.state for one in found.checks] == ["fail"] * 2


def test_oom_on_either_side_is_missing(base: Run) -> None:
    for found in (check(spoiled(base, "oom"), base), check(base, spoiled(base, "oom"))):
        assert [(one.state, one.cause) for one in found.checks] == [("inconclusive", "missing")] * 2
        assert found.checks[0].lost == {"oom": 9}


def test_an_infinite_loss_of_the_baseline_excuses_nothing(base: Run) -> None:
    cells = base.cells.copy()
    cells.loc[at(cells, "perplexity") & (cells["document"] == 1), "nll"] = math.inf
    one = check(base, with_cells(base, cells)).checks[1]
    assert (one.state, one.missing) == ("inconclusive", 1)


def test_too_few_documents_and_an_unfinished_run(base: Run) -> None:
    few = make_run("few", flat(1.0), documents=6)
    assert [one.cause for one in check(few, few).checks] == ["few", "few"]
    begun = Run(base.path, {**base.manifest, "finished": None}, base.cells)
    assert [one.cause for one in check(begun, base).checks] == ["doubt", "doubt"]


def test_another_tokenizer(base: Run) -> None:
    other = Run(base.path, {**copy.deepcopy(base.manifest), "tokenizer": {"sha256": "o"}}, base.cells)
    found = check(other, base)
    assert found.checks[1].cause == "absent" and "another tokenizer" in found.checks[1].note
    assert found.notes[1] == "flagged: tokenizer kkkkkkkk → o"
    cells = base.cells.copy()
    cells.loc[at(cells, "perplexity"), "n_tokens"] += 1  # the manifests say nothing, the rows do
    old = {key: value for key, value in base.manifest.items() if key != "tokenizer"}
    assert check(Run(base.path, old, cells), base).checks[1].cause == "absent"


@pytest.mark.parametrize(
    ("key", "value"),
    [("corpus", {"name": "x", "sha256": "x"}), ("task", {"name": "x", "sha256": "x"}), ("seed", 3), ("depths", [50.0])],
)
def test_an_unlike_baseline_is_refused(base: Run, key: str, value: Any) -> None:
    manifest = copy.deepcopy(base.manifest)
    manifest["identity"][key] = value
    with pytest.raises(UsageError, match=f"the run is unlike the baseline base@yarn: {key} ") as caught:
        check(base, Run(base.path, manifest, base.cells))
    assert "allow-mismatch" not in str(caught.value)


def test_rule_and_baseline_go_together(base: Run) -> None:
    with pytest.raises(UsageError, match="has the rule regression, but there is no baseline. give --baseline"):
        gate_run(parse_policy({"regression": [RULE]}, "p"), base.cells, base.manifest, "yarn")
    policy = parse_policy({"recall": [{"lengths": "4k", "floor": 0.5}]}, "p")
    with pytest.raises(UsageError, match="--baseline base@yarn, but no rule of the policy compares"):
        gate_run(policy, base.cells, base.manifest, "yarn", side(base, "yarn"))


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"lengths": "4k"}, "asks for nothing; give max_recall_drop"),
        ({"max_ratio": 1.1}, r"regression\[0\].lengths"),
        ({"lengths": "4k", "max_recall_drop": 10}, r"regression\[0\].max_recall_drop is 10.*less than 1"),
        ({"lengths": "4k", "max_recall_drop": -0.1}, "greater than 0"),
        ({"lengths": "4k", "max_ratio": math.nan}, r"regression\[0\].max_ratio is nan"),
        ({"lengths": "4k", "max_recal_drop": 0.1}, "Did you mean 'max_recall_drop'"),
    ],
)
def test_rules_that_are_refused(rule: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_policy({"regression": [rule]}, "p.yaml")
