"""The model index, read by the Hub's own parser."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard
from huggingface_hub.repocard_data import model_index_to_eval_results

from ctxeval.errors import UsageError
from ctxeval.report.model_card import model_card
from ctxeval.results.store import Run
from tests.report.conftest import MakeRun

HOSTILE = "a: b\n---\n# {x} 'y' \"z\" \u202e <script> é"


@pytest.fixture
def run(make_run: MakeRun) -> Run:
    made = make_run(lengths=(8192, 16384))
    made.manifest["identity"] = {"corpus": {"name": "sotu", "sha256": "ab" * 32}}
    made.manifest["spec"] = {"documents": 16, "seed": 0, "packed": False, "protocol": "tail"}
    return made


def parsed(text: str) -> tuple[str, list[Any]]:
    name, results = model_index_to_eval_results(yaml.safe_load(text)["model-index"])
    return name, results


def test_the_hub_reads_what_was_measured(run: Run) -> None:
    name, results = parsed(model_card(run.manifest, run.headline()))
    assert name == "smol" and len(results) == 2 * 4 * 2
    assert {one.task_type for one in results} == {"text-generation"}
    assert {one.dataset_type for one in results} == {"sotu"} and {one.dataset_revision for one in results} == {
        "ab" * 32
    }
    assert {one.dataset_name for one in results} == {"sotu, needle task needle", "sotu, perplexity"}
    by_name = {one.metric_name: one for one in results}
    yarn = by_name["Needle recall @ 16K (yarn ×4)"]
    assert (yarn.metric_type, yarn.metric_value) == ("recall", 0.0)
    assert yarn.metric_args["context_length"] == 16384 and yarn.metric_args["state"] == "broken"
    assert yarn.metric_args["low_95"] == 0 < yarn.metric_args["high_95"] < 0.4 and yarn.metric_args["documents"] == 16
    ratio = by_name["Perplexity ratio @ 16K (pi ×4)"]
    assert (ratio.metric_type, ratio.metric_value) == ("perplexity_ratio", pytest.approx(1.6487, abs=1e-4))


def test_it_is_front_matter_of_a_card(run: Run) -> None:
    card = ModelCard(f"---\nlicense: mit\n{model_card(run.manifest, run.headline())}---\n# Model\n")
    assert card.data.model_name == "smol" and len(card.data.eval_results or []) == 16
    assert card.text.strip() == "# Model"


def test_names_with_special_characters_are_escaped(run: Run) -> None:
    run.manifest["model"]["name"] = HOSTILE
    run.manifest["identity"]["corpus"]["name"] = f"hf:org/set:{HOSTILE}"
    text = model_card(run.manifest, run.headline())
    name, results = parsed(text)
    assert name == "a: b --- # {x} 'y' \"z\" <script> é"
    assert results[0].dataset_type == "org/set" and len(results) == 16
    card = ModelCard(f"---\n{text}---\n")
    assert card.data.model_name == name


def test_what_was_not_measured_is_not_published(make_run: MakeRun) -> None:
    run = make_run(probes="p", lengths=(8192, 16384))
    own = (run.cells["scale"] == "pi") & (run.cells["context_length"] == 16384)
    run.cells.loc[own, "status"] = "nan"
    _, results = parsed(model_card(run.manifest, run.headline()))
    assert len(results) == 7 and {one.metric_type for one in results} == {"perplexity_ratio"}


def test_nothing_to_publish_is_said(make_run: MakeRun) -> None:
    run = make_run(probes="p", lengths=(8192,))
    run.cells["status"] = "oom"
    with pytest.raises(UsageError, match="no result to publish"):
        model_card(run.manifest, run.headline())
