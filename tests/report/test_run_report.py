"""A whole run on the terminal and in its folder."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pandas as pd
import pytest
from rich.console import Console

from ctxeval.analysis.headline import LengthResult, ScalingResult
from ctxeval.analysis.onset import State, length_label
from ctxeval.errors import RunError
from ctxeval.report.artifacts import markdown, write_artifacts
from ctxeval.report.notes import blind_spot_text, verdict_lines
from ctxeval.report.terminal import render_terminal
from ctxeval.results.store import Run
from tests.analysis.synthetic_cells import frame, needle_cells
from tests.report.conftest import LENGTHS, SCALES, MakeRun, recall


def shown(run: Run, colour: bool = False) -> str:
    system = "truecolor" if colour else None
    console = Console(width=80, file=io.StringIO(), color_system=system, force_terminal=colour)  # type: ignore[arg-type]
    render_terminal(run, console)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def unwrapped(text: str) -> str:
    return " ".join(text.split())


def test_no_line_is_wider_than_80_and_colour_is_optional(make_run: MakeRun) -> None:
    run = make_run()
    text = shown(run)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    assert "\x1b" not in text and "\x1b[" in shown(run, colour=True)


def test_the_verdicts_and_the_blind_spots_are_said(make_run: MakeRun) -> None:
    text = unwrapped(shown(make_run()))
    assert "smol · quantised: Q4_1 · bfloat16 · cpu task needle · exact plan · 16 documents" in text
    assert "R, the unpatched model's recall inside its window: 100 % (" in text
    assert "yarn ×4: retrieval first: recall breaks in (12K, 16K], perplexity holds through 32K" in text
    assert "blind spot: 16K, 24K, 32K (recall broken, perplexity holds)" in text
    assert "none: both break at the same length: recall breaks in (8K, 10K]" in text
    assert text.count("blind spot: empty") == 2
    assert "note:" not in text


def test_one_probe_has_no_blind_spot(make_run: MakeRun) -> None:
    text = unwrapped(shown(make_run(probes="p", lengths=(8192, 16384))))
    assert "R: retrieval was not measured" in text and "blind spot" not in text and "depth" not in text


def test_what_limits_the_run_is_said(make_run: MakeRun) -> None:
    run = make_run(lengths=(8192,))
    run.cells.loc[[0, 1], ["status", "correct"]] = ["oom", None]
    run.cells.loc[2, ["status", "correct"]] = ["nan", None]
    del run.manifest["finished"]
    text = unwrapped(shown(run))
    assert f"NaN in 1 of {len(run.cells)} cells: a needle counts as a miss, a loss as infinite" in text
    assert f"no result for 2 of {len(run.cells)} cells (2 oom): no length with one holds" in text
    assert "the run is not finished" in text
    assert "R, the unpatched model's recall" in text and "more without an answer" not in text


def test_a_temperature_without_effect_is_said(make_run: MakeRun) -> None:
    run = make_run()
    assert "has no effect" not in unwrapped(shown(run))
    run.manifest["proofs"] = {"pi": {"temperature": "none"}, "yarn": {"temperature": "inert"}}
    assert "the temperature of yarn has no effect: this model normalises q and k after RoPE" in unwrapped(shown(run))


def test_a_loss_without_a_baseline_and_a_reference_without_an_answer_are_said(make_run: MakeRun) -> None:
    run = make_run(lengths=(8192,))
    run.cells.loc[(run.cells["scale"] == "none") & (run.cells["document"] == 0), ["status", "correct"]] = ["nan", None]
    run.cells.loc[run.cells.index[-1], "baseline_nll"] = None
    text = unwrapped(shown(run))
    assert "no baseline for 1 of 64 losses: no length with one holds" in text
    assert "45 needles in 15 documents (3 more without an answer)" in text


def test_depths_without_a_needle_are_said(make_run: MakeRun) -> None:
    run = make_run(probes="n", lengths=(8192, 16384))
    run.manifest["resolved"]["depths"] = [0, 50, 100]
    assert "no needle" not in shown(run)
    cells = run.cells
    gone = (cells["context_length"] == 8192) & (cells["depth_percent"] == 50)
    short = make_run(cells=cells[~gone], lengths=(8192, 16384))
    short.manifest["resolved"]["depths"] = [0, 50, 100]
    assert "1 of 3 depths have no needle at 8K: its recall is not comparable" in unwrapped(shown(short))
    short.manifest["resolved"]["depths"] = [0, 25, 50, 100]
    said = "some of 4 depths have no needle (2 at 8K, 1 at 16K): recall there is not comparable"
    assert said in unwrapped(shown(short))


def test_the_effective_lengths_are_one_line(make_run: MakeRun) -> None:
    line = verdict_lines(make_run().headline())[-1]
    assert line.startswith(
        "effective length (recall stays at 0.85 R or more up to it · RULER's, the longest with recall"
    )
    assert "above 85.6 % · NoLiMa's, the longest with 85 % of the scaling's own recall in short contexts; point" in line
    assert line.endswith("none: 8K · 8K · 8K, pi ×4: <4K · – · –, ntk ×4: 12K · 12K · 12K, yarn ×4: 12K · 12K · 12K")
    assert not any("effective" in line for line in verdict_lines(make_run(probes="p").headline()))


def test_what_is_not_resolved_says_how_far_it_is_from_its_bar(make_run: MakeRun) -> None:
    run = make_run(lengths=(8192,))
    own = (run.cells["scale"] == "yarn") & (run.cells["document"] < 3)
    run.cells.loc[own, "correct"] = False
    run.cells.loc[own, "nll"] *= 1.1
    text = unwrapped(shown(run))
    assert "yarn ×4: order not resolved: recall undecided, perplexity undecided" in text
    assert "undecided: recall at 8K is 81 % (55–94), its bar 85 % (70–85); ratio at 8K is 1.0" in text
    assert ", its bar 1.05 blind spot: undecided at 8K" in text
    assert "undecided:" not in unwrapped(shown(make_run()))


def packed(exact: float | None, documents: int = 12) -> pd.DataFrame:
    import numpy as np

    groups = [needle_cells(np.random.default_rng(0), recall, SCALES, LENGTHS, documents, plan="packed", n_needles=10)]
    if exact is not None:
        groups.append(needle_cells(np.random.default_rng(0), lambda s, n: exact, ("yarn",), (4096,), documents))
    return frame(*groups)


def test_the_packed_plan_says_so_and_is_checked(make_run: MakeRun) -> None:
    alone = unwrapped(shown(make_run(cells=packed(None))))
    assert "packed plan: up to 10 needles share a context" in alone and "agreement is unknown" in alone
    same = unwrapped(shown(make_run(cells=packed(1.0))))
    assert "packed and exact agree on 100 % (" in same and "BEYOND" not in same and "too few to tell" not in same
    assert "BEYOND CHANCE" in unwrapped(shown(make_run(cells=packed(0.3))))


def test_few_documents_do_not_reassure(make_run: MakeRun) -> None:
    calm = unwrapped(shown(make_run(cells=packed(1.0, documents=4))))
    assert ": 4 documents are too few to tell" in calm and "CONTRADICT" not in calm
    wild = unwrapped(shown(make_run(cells=packed(0.0, documents=4))))
    assert "they CONTRADICT each other, do not trust the packed plan here (4 documents are too few to tell)" in wild


def test_few_documents_are_mentioned(make_run: MakeRun) -> None:
    assert "4 documents: intervals are wide" in unwrapped(shown(make_run(cells=packed(None, documents=4))))


def test_artifacts(make_run: MakeRun) -> None:
    run = make_run(lengths=(8192, 16384))
    paths = write_artifacts(run)
    names = ["headline.md", "headline.csv", "headline.json", "cells.csv", "distance.csv", "curves.png", "heatmap.png"]
    assert [path.name for path in paths] == names
    assert sorted(path.name for path in run.path.iterdir()) == sorted(names)
    assert len(pd.read_csv(run.path / "cells.csv")) == len(run.cells)
    content = json.loads((run.path / "headline.json").read_text())
    assert content["headline"]["rows"][3]["order"] == "retrieval first" and content["model"]["name"] == "smol"


def test_pictures_without_data_are_not_written(make_run: MakeRun) -> None:
    names = [path.name for path in write_artifacts(make_run(probes="p", lengths=(8192,)))]
    assert "heatmap.png" not in names and "curves.png" in names


def test_a_folder_that_is_gone_is_a_run_error(make_run: MakeRun) -> None:
    run = make_run(probes="n", lengths=(8192,))
    run.path.rmdir()
    with pytest.raises(RunError, match=r"cannot write .*headline\.md"):
        write_artifacts(run)


def test_a_model_name_cannot_break_the_markdown(make_run: MakeRun) -> None:
    run = make_run(lengths=(8192,), model={"name": "a|b\n# c"})
    first = markdown(run, run.headline()).splitlines()[0]
    assert first.startswith("# a\\|b # c ·")
    assert "[red]x" in shown(make_run(probes="n", lengths=(8192,), model={"name": "[red]x"}))


def test_only_what_is_decided_is_called_empty(make_run: MakeRun) -> None:
    row = make_run().headline().rows[0]
    decided = replace(row, blind_spot=(), lengths=tuple(with_states(row, "holds", "holds")))
    assert blind_spot_text(decided) == "empty"
    mixed = [*with_states(row, "undecided", "holds")[:1], *with_states(row, "undecided", "broken")[1:2]]
    mixed += [*with_states(row, "broken", "undecided")[2:3], *with_states(row, "missing", "missing")[3:4]]
    labels = [length_label(one.length) for one in mixed]
    expected = f"undecided at {labels[0]}, {labels[2]}; not measured at {labels[3]}"
    assert blind_spot_text(replace(row, blind_spot=(), lengths=tuple(mixed))) == expected


def with_states(row: ScalingResult, recall: State, ratio: State) -> list[LengthResult]:
    return [replace(one, recall_state=recall, ratio_state=ratio) for one in row.lengths]
