"""`ctxeval export`: stdout, files and exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Invoke = Callable[..., Any]


@pytest.fixture(scope="module")
def model(tiny_llama: Callable[..., Path]) -> Path:
    return tiny_llama(window=256)


def test_stdout_is_the_configuration_and_stderr_says_what_was_done(invoke: Invoke, model: Path) -> None:
    done = invoke("export", "-m", model, "--scale", "yarn", "--len", "1k", "--for", "hf")
    assert done.code == 0
    config = json.loads(done.out)
    own = json.loads((model / "config.json").read_text(encoding="utf-8"))
    assert config["rope_parameters"]["factor"] == 4.0 and config["max_position_embeddings"] == 1024
    assert set(own) - set(config) == set()
    assert "yarn ×4: 256 tokens (max_position_embeddings) → 1,024" in done.err
    assert "read back by transformers: the same frequencies" in done.err


def test_quiet(invoke: Invoke, model: Path) -> None:
    done = invoke("export", "-m", model, "--scale", "yarn", "--len", "1k", "--for", "vllm", "-q")
    assert (done.code, done.err, done.out.count("\n")) == (0, "", 1)


def test_the_file_that_was_read_is_not_overwritten(invoke: Invoke, model: Path, tmp_path: Path) -> None:
    before = (model / "config.json").read_bytes()
    done = invoke("export", "-m", model, "--scale", "pi", "--len", "1k", "--for", "hf", "-o", model / "config.json")
    assert done.code == 2 and "is the configuration that was read" in done.err
    assert (model / "config.json").read_bytes() == before
    done = invoke("export", "-m", model, "--scale", "pi", "--len", "1k", "--for", "hf", "-o", tmp_path)
    assert done.code == 2 and "is a folder. name the file" in done.err
    done = invoke("export", "-m", model, "--scale", "pi", "--len", "1k", "--for", "hf", "-o", tmp_path / "new.json")
    assert (done.code, done.out) == (0, "")
    assert json.loads((tmp_path / "new.json").read_text(encoding="utf-8"))["rope_parameters"]["factor"] == 4.0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--scale yarn --len 1k", "no engine given. give --for: hf, hf-v4, vllm, sglang, llama.cpp"),
        ("--scale yarn --len 1k --for vlm", "unknown engine 'vlm'. Did you mean 'vllm'"),
        ("--scale pi,yarn --len 1k --for hf", "2 scalings, pi, yarn. one at a time ships"),
        ("--scale yarn --for hf", "no target length"),
        ("--scale yarn --len 128 --for hf", "--len 128 is not above the native window of 256"),
        ("--scale ntk-parts --len 1k --for vllm", "ntk-parts with attention factor 1: vLLM"),
    ],
)
def test_refusals(invoke: Invoke, model: Path, line: str, said: str) -> None:
    done = invoke("export", "-m", model, *line.split())
    assert (done.code, done.out) == (2, "") and said in done.err and done.err.count("\n") == 1
