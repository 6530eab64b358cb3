"""The page as a parser sees it: whole, self-contained, every text from outside as text."""

from __future__ import annotations

import re

import pytest

from ctxeval.report.html import Content, html_report
from ctxeval.results.samples import Excerpt, Sample
from ctxeval.results.store import Run
from tests.report.conftest import MakeRun
from tests.report.pages import HOSTILE, Page, hostile

LENGTHS = (8192, 16384)
HEADINGS = (
    *("Headline Scaling", "Recall and perplexity over context length", "Recall by needle depth", "Recall by distance"),
    *("Log-probability of the answer", "Other thresholds", "Missed needles", "How it was measured"),
)
EXCERPT = Excerpt(
    "It was the best of", "The code of the crane is 12345.", "times, it was", "What is the code?", "It is"
)


def samples(run: Run) -> list[Sample]:
    """Return one miss and one hit of yarn."""
    own = run.cells[(run.cells["probe"] == "needle") & (run.cells["scale"] == "yarn")]
    picked = [own[~own["correct"].astype(bool)].iloc[0], own[own["correct"].astype(bool)].iloc[0]]
    return [
        Sample(str(row["cell_id"]), "yarn", int(row["context_length"]), bool(row["correct"]), EXCERPT) for row in picked
    ]


def page(run: Run, kept: list[Sample] | None = None, **options: str) -> Page:
    return Page(html_report([Content(run, run.headline(), [] if kept is None else kept)], **options))


@pytest.fixture
def run(make_run: MakeRun) -> Run:
    made = make_run(lengths=LENGTHS)
    made.manifest["resolved"]["scalings"] = [{"label": "none"}, {"label": "yarn"}]
    made.cells["answer_logprob"] = -0.5
    made.cells["got"] = "54321"
    made.manifest["spec"] = {"model": {"name_or_path": "smol"}, "scales": ["none", "yarn"], "probes": ["needle"]}
    made.manifest["proofs"] = {"yarn": {"factor": 2.0, "frequencies_sha256": "f00d" * 16, "max_error": 1e-6}}
    return made


def test_a_manager_and_an_engineer_find_what_they_look_for(run: Run) -> None:
    found = page(run, samples(run))
    text = found.text
    said = "yarn ×4 (by 16K) is broken; perplexity alone would have passed yarn ×4 at 16K."
    assert said in text and "quantised: Q4_1" in text
    assert "Recall holds to" in text and "RULER's" in text and "NoLiMa's" in text
    assert found.tags.count("h2") == 8 and found.tags.count("svg") == 2 + 2 + 1 + 2
    places = [text.index(heading) for heading in HEADINGS]
    assert places == sorted(places)
    assert "ctxeval needle -m smol --scale none,yarn" in text and "f00d" * 16 in text
    assert "Where perplexity breaks, by ε" in text
    assert "blind spot" in text


def test_a_miss_is_shown_with_its_text(run: Run) -> None:
    text = page(run, samples(run)).text
    assert "…It was the best of The code of the crane is 12345. times, it was…" in text
    assert "expected 12345, got 54321" in text and "yarn ×4: 1 shown, and 1 found for comparison" in text
    assert "tokens before the question" in text


def test_a_sample_without_its_row_is_left_out(run: Run) -> None:
    stray = [Sample("not there", "yarn", 8192, False, EXCERPT)]
    assert "crane" not in page(run, stray).text


def test_a_run_without_text_shows_its_rows_and_says_so(run: Run) -> None:
    text = page(run).text
    assert "This run has kept no text" in text and "yarn ×4: 2 shown" in text and "expected 12345, got 54321" in text


def test_without_samples_neither_text_nor_output_is_in_the_page(run: Run) -> None:
    run.cells["expected"] = "67890"
    whole = html_report([Content(run, run.headline(), None)])
    for word in ("crane", "best of", "54321", "67890", "Missed needles"):
        assert word not in whole
    assert "Headline" in whole


def test_nothing_is_fetched_and_nothing_runs(run: Run) -> None:
    found = page(run, samples(run))
    assert not {"script", "link", "img", "iframe", "object", "embed", "base", "form", "foreignobject"} & (
        set(found.tags) - {"link"}
    )
    assert [value for tag, name, value in found.attributes if tag == "link" and name == "href"] == ["data:,"]
    for tag, name, value in found.attributes:
        assert not name.startswith("on"), (tag, name)
        if name in ("href", "src", "xlink:href", "action", "srcset", "data") and tag != "link":
            assert value.startswith("#"), (tag, name, value)
        assert not re.search(r"url\((?!#)|//", value), (tag, name, value)
    assert not re.search(r"@import|url\(", "".join(found.styles))
    (policy,) = [value for tag, name, value in found.attributes if value.startswith("default-src 'none'")]
    assert "script-src" not in policy  # so none runs, whatever is in the page


def test_html_and_script_are_text(make_run: MakeRun) -> None:
    run = make_run(lengths=LENGTHS)
    kept = hostile(run)
    found = page(run, kept)
    assert "script" not in found.tags and "img" not in found.tags and "b" not in found.tags
    assert not [one for one in found.attributes if one[1] == "onerror"]
    assert found.text.count("<script>window.hit=1</script>") > 20
    assert f"before {HOSTILE}" in found.text  # and "&amp;" is not read as "&"


def test_the_palette_is_an_option(run: Run) -> None:
    classic, other = (html_report([Content(run, run.headline())], palette) for palette in ("classic", "cividis"))
    assert "#0cd79f" in classic.lower() and "#0cd79f" not in other.lower() and "#fee838" in other.lower()


def test_the_same_run_gives_the_same_page(run: Run) -> None:
    run.manifest["resolved"]["scalings"] = [{"label": "yarn"}]
    one, other = (html_report([Content(run, run.headline(), samples(run))]) for _ in range(2))
    assert one == other


def test_one_probe_and_a_bare_manifest_are_enough(make_run: MakeRun) -> None:
    run = make_run(probes="p", lengths=(8192,))
    run.manifest.clear()
    run.manifest["resolved"] = {"native_window": 8192, "lengths": [8192], "scalings": [{"label": "none"}]}
    text = page(run).text
    assert "Retrieval was not measured".lower() in text.lower() and "unknown model" in text


def test_ids_are_unique_and_every_table_heads_its_columns(run: Run) -> None:
    found = page(run, samples(run))
    ids = [value for _, name, value in found.attributes if name == "id"]
    assert len(ids) == len(set(ids)) > 10
    assert found.tags.count("th") == len([1 for tag, name, _ in found.attributes if (tag, name) == ("th", "scope")])
