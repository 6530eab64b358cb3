"""What bad input gets: the documented exit code and one line that names the thing, its value and the way out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Invoke = Callable[..., Any]
DEPTHS = "50,"


@pytest.fixture(scope="module")
def places(tiny_llama: Any, tiny_tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Good and bad models and texts, by the name that the table calls them."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    root = tmp_path_factory.mktemp("places")
    model = tiny_llama(window=512)
    gpt2, pickled, empty = root / "gpt2", root / "pickled", root / "empty"
    empty.mkdir()
    tiny_tokenizer().save_pretrained(gpt2)
    GPT2LMHeadModel(GPT2Config(vocab_size=512, n_positions=512, n_embd=32, n_layer=1, n_head=2)).save_pretrained(gpt2)
    shutil.copytree(model, pickled)
    (pickled / "model.safetensors").unlink()
    torch.save({}, pickled / "pytorch_model.bin")
    (root / "latin.txt").write_bytes("Der Käse ist alt. ".encode("latin-1") * 50)
    (root / "short.txt").write_text("It was a short text, and it ended soon. " * 40, encoding="utf-8")
    (root / "options.yaml").write_text("lenght: 1k\n", encoding="utf-8")
    return {
        "MODEL": model,
        "GPT2": gpt2,
        "PICKLED": pickled,
        "EMPTY": empty,
        "LATIN": root / "latin.txt",
        "SHORT": root / "short.txt",
        "OPTIONS": root / "options.yaml",
    }


#: name → (arguments; capitals are places, exit code, what the line must say)
CASES: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "scaling": ("-m MODEL --scale yarm --len 1k", 2, ("unknown scaling 'yarm'", "Did you mean 'yarn'")),
    "no scaling": ("-m MODEL --scale , --len 1k", 2, ("no scaling", "choose from none, pi")),
    "not above native": ("-m MODEL --scale yarn --len 512", 2, ("--len 512", "native window of 512", "--factor")),
    "no target": ("-m MODEL --scale yarn", 2, ("no target length", "--len")),
    "factor": ("-m MODEL --scale yarn --factor 0.5", 2, ("0.5",)),
    "length": ("-m MODEL --len twelve", 2, ("length 'twelve'", "32k")),
    "length of zero": ("-m MODEL --lengths 0,512", 2, ("length '0'", "positive")),
    "negative length": ("-m MODEL --len -5", 2, ("length '-5'", "positive")),
    "no lengths": ("-m MODEL --lengths ,", 2, ("no lengths in ','", "--lengths 2k,4k")),
    "no room": ("-m MODEL --lengths 64,512", 2, ("context of 64 tokens", "raise --lengths")),
    "beyond the text": ("-m MODEL --len 1k --corpus SHORT", 2, ("short.txt", "tokens in 1 file,", "never repeated")),
    "depth": ("-m MODEL --depths 0,150", 2, ("depth 150 is outside 0 to 100",)),
    "negative depth": ("-m MODEL --depths=-1,50", 2, ("depth -1 is outside 0 to 100",)),
    "no depths": ("-m MODEL --depths ,", 2, ("no depths in ','", "--depths")),
    "no documents": ("-m MODEL --docs 0", 2, ("--docs", "1")),
    "no perplexity documents": ("-m MODEL --ppl-docs 0", 2, ("--ppl-docs", "1")),
    "no trials": ("-m MODEL --trials 0", 2, ("--trials", "1")),
    "not UTF-8": ("-m MODEL --corpus LATIN", 2, ("latin.txt", "not UTF-8 at byte 5", "iconv")),
    "no corpus": ("-m MODEL --corpus nowhere.txt", 2, ("no corpus 'nowhere.txt'", "sotu")),
    "no model": ("--len 1k", 2, ("no model given", "-m/--model")),
    "no such model": ("-m ./nowhere", 2, ("no model at './nowhere'", "Hub id")),
    "folder without a model": ("-m EMPTY", 2, ("empty", "neither config.json nor", "Hub id")),
    "file without a model": ("-m SHORT", 2, ("short.txt' is not a GGUF file", "never unpickled")),
    "revision of a folder": ("-m MODEL --revision main", 2, ("revision 'main'", "Hub ids")),
    "no RoPE": ("-m GPT2 --len 1k --docs 1 --depths 50,", 2, ("GPT2LMHeadModel",)),
    "pickled": ("-m PICKLED --docs 1 --depths 50,", 2, ("pytorch_model.bin", "never loaded", "save_pretrained")),
    "dtype": ("-m MODEL --dtype fp23", 2, ("unknown dtype 'fp23'", "Did you mean 'fp32'")),
    "device": ("-m MODEL --device gpu", 2, ("unknown device 'gpu'", "cuda")),
    "protocol": ("-m MODEL --protocol tial", 2, ("unknown protocol 'tial'", "Did you mean 'tail'")),
    "format": ("-m MODEL --format xml", 2, ("unknown format 'xml'", "csv, json")),
    "task": ("-m MODEL --task needel", 2, ("needel", "needle")),
    "option": ("-m MODEL --scal yarn", 2, ("No such option: --scal", "--scale", "ctxeval run --help")),
    "number": ("-m MODEL --docs many", 2, ("--docs", "integer", "--help")),
    "option in a file": ("-m MODEL -c OPTIONS", 2, ("options.yaml", "'lenght'", "Did you mean 'lengths'")),
    "no file of options": ("-m MODEL -c nowhere.yaml", 2, ("nowhere.yaml", "YAML")),
    "option that no scaling takes": ("-m MODEL --scale pi --len 1k --beta-fast 8", 2, ("beta_fast", "yarn")),
    "resume of nothing": ("--resume EMPTY", 2, ("run.json", "No such file")),
    "loud and quiet": ("-m MODEL -v", 2, ("--quiet and --verbose",)),
}


@pytest.mark.parametrize("name", CASES)
def test_one_line_and_no_trace(name: str, places: dict[str, Path], invoke: Invoke, tmp_path: Path) -> None:
    arguments, code, words = CASES[name]
    output = [] if "--resume" in arguments else ["-o", tmp_path / "deep" / "run"]
    result = invoke("run", *(places.get(one, one) for one in arguments.split()), "-q", *output)
    assert_refused(result, code, words)
    assert list(tmp_path.iterdir()) == []


def assert_refused(result: Any, code: int, words: tuple[str, ...]) -> None:
    assert result.code == code, result.err
    assert result.out == ""
    assert result.err.startswith("Error: ")
    assert result.err.count("\n") == 1, result.err
    assert "unexpected" not in result.err
    for word in words:
        assert word in result.err


def test_cuda_is_refused_before_anything_slow(
    places: dict[str, Path], invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(spec: object) -> None:
        raise AssertionError("the text was read first")

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("ctxeval.runner.prepare", slow)
    result = invoke("run", "-m", places["MODEL"], "--device", "cuda:0", "-q")
    assert_refused(result, 2, ("--device cuda:0", "no CUDA device", "--device cpu"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("file", ("cannot write to", "file", "--output")),
        ("file/run", ("cannot write to", "file/run", "--output")),
        ("full", ("full is not empty", "--resume")),
        ("/proc/run", ("cannot write to /proc/run", "--output")),
    ],
)
def test_an_output_that_cannot_be_is_found_out_first(
    output: str, words: tuple[str, ...], places: dict[str, Path], invoke: Invoke, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("ctxeval.runner.prepare", lambda spec: pytest.fail("the text was read first"))
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    result = invoke("run", "-m", places["MODEL"], "-q", "-o", tmp_path / output)
    assert_refused(result, 2, words)
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["notes.txt"]
    assert (tmp_path / "file").read_text() == "mine"


def test_the_real_command_refuses_an_option_where_click_is_not_installed() -> None:
    """Typer brings its own copy of click, and depends on no other."""
    code = "import sys; sys.modules['click'] = None; from ctxeval.cli.main import main; main()"
    command = [sys.executable, "-c", code, "run", "--lenght", "1k"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: No such option: --lenght")
    assert done.stderr.count("\n") == 1


def test_an_unexpected_exception_is_a_failed_run_and_not_a_failed_gate(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object, **values: object) -> None:
        raise ZeroDivisionError("a bug\nof two lines")

    monkeypatch.setattr("ctxeval.runner.run", broken)
    result = invoke("demo", "-q")
    assert result.code == 3
    assert result.err == (
        "Error: unexpected ZeroDivisionError: a bug of two lines. Set CTXEVAL_DEBUG=1 for the traceback\n"
    )
    monkeypatch.setenv("CTXEVAL_DEBUG", "1")
    assert "Traceback" in invoke("demo", "-q").err


def test_a_reader_that_went_away_is_no_failed_gate() -> None:
    """`ctxeval tasks | head -0`: typer alone would exit 1, python 120."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "ctxeval", "tasks"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (3, "Error: stdout was closed before all was written\n")
