"""A scaling as llama.cpp's flags. Pure.

Its kernel turns by the same ramp as transformers' yarn, always with whole ends. Under yarn it multiplies cos and sin by
0.1 ln s + 1, and since PR 17945 replaces what --yarn-attn-factor says, which before multiplied that: a temperature of
its own means something else in each release. Without yarn the flag is the factor on cos and sin in all of them.
"""

from __future__ import annotations

import math

from ctxeval.errors import UsageError
from ctxeval.export.official import Official

#: transformers' model type → llama.cpp's name of the architecture, of the commonest.
ARCHITECTURES = {
    "gpt_neox": "gptneox",
    "granite": "granite",
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "olmo2": "olmo2",
    "phi3": "phi3",
    "qwen2": "qwen2",
    "qwen2_moe": "qwen2moe",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "smollm3": "smollm3",
    "stablelm": "stablelm",
    "starcoder2": "starcoder2",
}


def llama_cpp_flags(table: Official, native_window: int, factor: float) -> tuple[str, ...]:
    """Return the RoPE flags of llama-server, llama-cli and llama-perplexity for one table.

    Args:
        table: what is to be said, see `official_parameters`.
        native_window: tokens.
        factor: target / native window.

    Raises:
        UsageError: llama.cpp cannot express it.
    """
    parameters, wanted = table.parameters, table.wanted.attention_factor
    base = ("--rope-freq-base", _number(parameters["rope_theta"]))
    if table.rope_type == "default":
        return ("--rope-scaling", "none", *base, *_temperature(wanted))
    if table.rope_type == "linear":
        scale = ("--rope-scale", _number(parameters["factor"]))
        return ("--rope-scaling", "linear", *scale, *base, *_temperature(wanted))
    if table.rope_type != "yarn":
        raise UsageError(
            f"rope_type {table.rope_type}: llama.cpp reads its frequencies from the GGUF file and has no flag for them",
            "use --for hf, and convert that folder to GGUF",
        )
    if not parameters.get("truncate", True):
        raise UsageError("truncate=false: llama.cpp always rounds the ramp's ends to whole pairs", "drop --no-truncate")
    usual = usual_temperature(factor)
    if not math.isclose(wanted, usual, rel_tol=1e-9):
        raise UsageError(
            f"attention factor {wanted:g} with llama.cpp's yarn, which sets its own of {usual:.6g} and since PR 17945 "
            "passes over --yarn-attn-factor",
            "choose yarn without --attention-factor",
        )
    return (
        *("--rope-scaling", "yarn", "--rope-scale", _number(factor), "--yarn-orig-ctx", str(native_window), *base),
        *("--yarn-ext-factor", "1", "--yarn-attn-factor", "1"),
        *("--yarn-beta-fast", _number(parameters["beta_fast"]), "--yarn-beta-slow", _number(parameters["beta_slow"])),
    )


def usual_temperature(factor: float) -> float:
    """Return YaRN's factor on cos and sin, 0.1 ln s + 1, which engines compute by themselves."""
    return 0.1 * math.log(factor) + 1.0


def _temperature(wanted: float) -> tuple[str, ...]:
    return () if wanted == 1.0 else ("--yarn-attn-factor", _number(wanted))


def _number(value: float) -> str:
    """Write a number so that it reads back as the same one, whole where it is whole."""
    return str(int(value)) if float(value).is_integer() else repr(float(value))
