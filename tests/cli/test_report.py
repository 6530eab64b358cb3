"""The report command: every format, several runs, and every way in which it can fail."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctxeval.results.samples import SAMPLES
from ctxeval.results.store import RunStore
from tests.analysis.synthetic_cells import needle_cells, perplexity_cells
from tests.cli.conftest import Invoke
from tests.report.pages import Page

LENGTHS = (8192, 16384)


def folder(path: Path, documents: int = 6, **model: Any) -> Path:
    """Write the folder of a run in which yarn finds no needle beyond the native window of 8K."""
    generator = np.random.default_rng(0)
    resolved = {
        "native_window": 8192,
        "lengths": list(LENGTHS),
        "depths": [0.0, 100.0],
        "documents": documents,
        "task": "needle",
        "plan": "exact",
        "protocol": "tail",
        "scalings": [{"label": "none"}, {"label": "yarn"}],
    }
    manifest = {"identity": {"seed": 0}, "resolved": resolved, "model": {"name": "smol", **model}, "finished": "x"}
    with RunStore.create(path, manifest) as store:

        def truth(scale: str, length: int) -> float:
            return float(length <= 8192)

        if documents:
            scales, depths = ("none", "yarn"), (0, 100)
            store.append(needle_cells(generator, truth, scales, LENGTHS, documents, correlation=0, depths=depths))
            store.append(perplexity_cells(generator, lambda s, n: 0.0, ("none", "yarn"), LENGTHS, documents))
    return path


def test_html_goes_to_a_file_or_to_stdout(invoke: Invoke, tmp_path: Path) -> None:
    run = folder(tmp_path / "run")
    assert invoke("report", run, "--format", "html", "-o", "page.html") == (0, "", "")
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert "smol" in page.text and "This run has kept no text" in page.text
    code, out, err = invoke("report", run, "--format", "html", "--no-samples")
    assert (code, err) == (0, "") and out.startswith("<!DOCTYPE html>") and "Missed needles" not in out
    assert sorted(one.name for one in run.iterdir()) == ["cells.jsonl", "run.json"]  # a report leaves the run alone


def test_a_model_card_is_yaml(invoke: Invoke, tmp_path: Path) -> None:
    import yaml

    code, out, _ = invoke("report", folder(tmp_path / "run"), "--format", "model-card")
    assert code == 0 and yaml.safe_load(out)["model-index"][0]["name"] == "smol"


def test_pictures_are_files_as_png_and_as_svg(invoke: Invoke, tmp_path: Path) -> None:
    run = folder(tmp_path / "run")
    assert invoke("report", run, "--format", "csv", "--pictures", tmp_path / "a" / "b", "--palette", "viridis")[0] == 0
    names = sorted(one.name for one in (tmp_path / "a" / "b").iterdir())
    assert names == [f"{name}.{kind}" for name in ("curves", "distance", "heatmap") for kind in ("png", "svg")]
    assert "#440154" in (tmp_path / "a" / "b" / "heatmap.svg").read_text()


def test_several_runs_in_every_format(invoke: Invoke, tmp_path: Path) -> None:
    runs = folder(tmp_path / "one"), folder(tmp_path / "two", name="other <model>")
    code, out, err = invoke("report", *runs, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert (code, err) == (0, "") and len(rows) == 8 and {row["run"] for row in rows} == {str(run) for run in runs}
    code, out, _ = invoke("report", *runs, "--format", "json")
    assert code == 0 and [one["model"]["name"] for one in json.loads(out)["runs"]] == ["smol", "other <model>"]
    code, out, _ = invoke("report", *runs, "--format", "md")
    assert code == 0 and "# smol" in out and "# other &lt;model>" in out and "## two against one" in out
    code, out, _ = invoke("report", *runs)
    assert code == 0 and out.index("smol") < out.index("other <model>")
    code, out, _ = invoke("report", *runs, "--format", "html")
    assert code == 0 and "Comparison of 2 runs" in Page(out).text
    code, out, err = invoke("report", *runs, "--format", "model-card")
    assert (code, out) == (2, "") and err == "Error: 2 runs for one model card. give the run that ships\n"


@pytest.mark.parametrize("format", ["table", "md", "csv", "json", "html", "model-card"])
def test_an_empty_run_is_refused(format: str, invoke: Invoke, tmp_path: Path) -> None:
    code, out, err = invoke("report", folder(tmp_path / "run", documents=0), "--format", format)
    assert (code, out) == (2, "") and err == f"Error: {tmp_path / 'run'} has no rows. measure it first\n"


def test_bad_options_name_the_nearest(invoke: Invoke, tmp_path: Path) -> None:
    run = folder(tmp_path / "run")
    code, _, err = invoke("report", run, "--format", "htm")
    assert code == 2 and "unknown format 'htm'. Did you mean 'html'?" in err
    code, _, err = invoke("report", run, "--palette", "civdis")
    assert code == 2 and "unknown palette 'civdis'. Did you mean 'cividis'?" in err
    assert invoke("report")[0] == 2


@pytest.mark.parametrize("target", ["gone/page.html", "."])
def test_a_report_that_cannot_be_written_leaves_nothing(target: str, invoke: Invoke, tmp_path: Path) -> None:
    run = folder(tmp_path / "run")
    before = sorted(tmp_path.rglob("*"))
    code, out, err = invoke("report", run, "--format", "html", "-o", target)
    assert (code, out) == (3, "") and err.startswith(f"Error: cannot write {target}") and err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_pictures_that_cannot_be_written(invoke: Invoke, tmp_path: Path) -> None:
    run = folder(tmp_path / "run")
    code, _, err = invoke("report", run, "--format", "csv", "--pictures", run / "run.json" / "x")
    assert code == 3 and "cannot write" in err and err.count("\n") == 1


def test_an_old_page_stays_whole_where_a_new_one_fails(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, page = folder(tmp_path / "run"), tmp_path / "page.html"
    page.write_text("old")
    monkeypatch.setattr("os.fsync", full)
    code, _, err = invoke("report", run, "--format", "html", "-o", page)
    assert code == 3 and "No space left" in err and page.read_text() == "old"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["page.html", "run"]


def full(_: int) -> None:
    raise OSError(28, "No space left on device")


def test_damaged_samples_are_refused_or_left_out(invoke: Invoke, tmp_path: Path) -> None:
    run = folder(tmp_path / "run")
    (run / SAMPLES).write_text("{}\n")
    code, out, err = invoke("report", run, "--format", "html")
    assert (code, out) == (2, "") and "samples.jsonl, line 1 is not a sample" in err
    assert invoke("report", run, "--format", "html", "--no-samples")[0] == 0
    assert invoke("report", run, "--format", "csv")[0] == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"resolved": {}}, "does not say what was asked for (KeyError: 'native_window')"),
        ({"resolved": {"native_window": "x", "lengths": [1], "scalings": []}}, "does not say what was asked for"),
        ({"resolved": {"native_window": 8, "lengths": [], "scalings": []}}, "has no lengths or no scalings"),
        ({"resolved": []}, "has resolved [], which is no object"),
        ({"model": "smol"}, "has model 'smol', which is no object"),
        ({"proofs": [1]}, "has proofs [1], which is no object"),
    ],
)
def test_a_foreign_manifest_is_refused(change: dict[str, Any], said: str, invoke: Invoke, tmp_path: Path) -> None:
    run = folder(tmp_path / "run")
    manifest = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**manifest, **change}))
    for format in ("html", "csv"):
        code, out, err = invoke("report", run, "--format", format)
        assert (code, out) == (2, "") and said in err and err.count("\n") == 1
