"""A scaling as the command line of a server: vLLM, SGLang and llama.cpp. Pure.

Each engine reads the same words differently; where one would turn at other frequencies or attend at another
temperature than was measured, the scaling is refused. What is said of an engine here was read in its source.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from ctxeval.errors import UsageError
from ctxeval.export.extension import Export, Extension, length, refuse_lost_temperature, truncate_note
from ctxeval.export.llama_cpp import llama_cpp_flags, usual_temperature


def vllm(extension: Extension) -> Export:
    """`rope_parameters` are replaced as a whole, and the longest context is derived from them.

    Of yarn that is factor * original window, of linear factor * max_position_embeddings, else the latter alone.

    Raises:
        UsageError: a temperature or frequencies by length that vLLM does not run.
    """
    refuse_lost_temperature(extension, "vLLM")
    _refuse_latent(extension, "vLLM")
    _refuse_varying(extension, "vLLM")
    _refuse_own_temperature(extension, "vLLM, of which many releases pass over attention_factor,")
    parameters = extension.rope_parameters
    if "" in extension.tables and extension.tables[""].rope_type == "longrope":
        parameters = {**parameters, **_mscale(parameters)}
    told = {**length(extension, but="linear"), "rope_parameters": parameters}
    overrides = {extension.text_key: told} if extension.text_key else told
    flags = [] if extension.method == "none" else ["--hf-overrides", json.dumps(overrides)]
    notes = truncate_note(extension)
    if flags:
        notes += ("vLLM releases that know no rope_parameters need a model folder with the config.json of --for hf-v4",)
    return Export(flags=(*flags, "--max-model-len", str(extension.target)), notes=notes)


def sglang(extension: Extension) -> Export:
    """`rope_scaling` is replaced as a whole; where transformers 5 runs below, the base goes with it unless told again.

    SGLang multiplies its own 0.1 ln s + 1 by `attn_factor` and passes over `attention_factor`.

    Raises:
        UsageError: a temperature or frequencies by length that SGLang does not run, or a model whose parameters its
            overrides do not reach.
    """
    refuse_lost_temperature(extension, "SGLang")
    _refuse_latent(extension, "SGLang")
    _refuse_varying(extension, "SGLang")
    if extension.text_key or "" not in extension.tables:
        what = "a text part of its own" if extension.text_key else "a table a layer type"
        raise UsageError(f"a model with {what}: SGLang's overrides do not reach into it", "use --for hf")
    table = extension.tables[""]
    if extension.method == "none":
        return Export(flags=("--context-length", str(extension.target)))
    scaling = dict(table.parameters)
    if table.rope_type == "yarn":
        scaling["attn_factor"] = scaling.pop("attention_factor") / usual_temperature(scaling["factor"])
        if math.isclose(scaling["attn_factor"], 1.0, rel_tol=1e-9):
            del scaling["attn_factor"]
    if table.rope_type == "longrope":
        scaling |= _mscale(scaling)
    overrides = {**length(extension, but="linear"), "rope_theta": scaling["rope_theta"], "rope_scaling": scaling}
    flags = ("--json-model-override-args", json.dumps(overrides), "--context-length", str(extension.target))
    return Export(flags=flags, notes=truncate_note(extension))


def llama_cpp(extension: Extension) -> Export:
    """Flags of llama-server, llama-cli and llama-perplexity; see `ctxeval.export.llama_cpp`.

    Raises:
        UsageError: as `llama_cpp_flags`; also a model with a table a layer type, or that is scaled by its GGUF file.
    """
    _refuse_latent(extension, "llama.cpp")
    if "" not in extension.tables:
        raise UsageError(
            "a model with a table a layer type: llama.cpp's flags would reach its local layers too",
            "use --for hf, and convert that folder to GGUF",
        )
    plain = extension.method == "none"
    if not plain and extension.own not in ("default", "linear"):
        raise UsageError(
            f"a checkpoint scaled by {extension.own}: its GGUF file has factors of its own that no flag switches off",
            "use --for hf, and convert that folder to GGUF",
        )
    flags = () if plain else llama_cpp_flags(extension.tables[""], extension.native_window, extension.factor)
    length: tuple[str, ...] = ("--ctx-size", str(extension.target))
    if plain:
        return Export(flags=length)
    # Else llama-server gives each slot no more than the context length in the file.
    if extension.architecture:
        length += ("--override-kv", f"{extension.architecture}.context_length=int:{extension.target}")
        return Export(flags=(*flags, *length))
    note = (
        f"llama-server caps a slot at the file's context length: add --override-kv ARCHITECTURE.context_length=int:"
        f"{extension.target} with the file's general.architecture"
    )
    return Export(flags=(*flags, *length), notes=(note,))


def _mscale(parameters: Mapping[str, Any]) -> dict[str, float]:
    """Name LongRoPE's factor on cos and sin as the engines do that derive their own from lengths otherwise."""
    return {"short_mscale": parameters["attention_factor"], "long_mscale": parameters["attention_factor"]}


def _refuse_own_temperature(extension: Extension, engine: str) -> None:
    """Refuse a factor on cos and sin other than the one an engine computes by itself."""
    for table in extension.tables.values():
        if table.rope_type != "yarn" or extension.method == "none":
            continue
        usual = usual_temperature(table.parameters["factor"])
        if not math.isclose(table.carried, usual, rel_tol=1e-9):
            raise UsageError(
                f"{extension.method} with attention factor {table.carried:g}: {engine} would multiply cos and sin by "
                f"{usual:.6g}",
                "choose yarn without --attention-factor, or --for hf",
            )


def _refuse_latent(extension: Extension, engine: str) -> None:
    """Refuse rope types on multi-head latent attention: engines have code of their own for it. A base is a base."""
    scaled = any(table.rope_type != "default" for table in extension.tables.values())
    if extension.method != "none" and scaled and extension.text.get("qk_rope_head_dim"):
        raise UsageError(
            f"{extension.method} on multi-head latent attention: {engine} scales it by rules of its own",
            "choose ntk or abf, or --for hf",
        )


def _refuse_varying(extension: Extension, engine: str) -> None:
    """Refuse frequencies that go by the length of each context, which engines fix for all of them."""
    for table in extension.tables.values():
        if extension.method == "none":
            continue
        if table.rope_type == "dynamic":
            f, ratio = table.parameters["factor"], extension.target / extension.native_window
            raise UsageError(
                f"ntk-dynamic goes by the length of each context; {engine} fixes one table at a length of its own",
                f"what was measured at {extension.target} tokens is ntk with --factor {f * ratio - f + 1:g}",
            )
        if table.rope_type == "longrope" and table.parameters["short_factor"] != table.parameters["long_factor"]:
            raise UsageError(
                f"longrope with other factors up to {extension.native_window} tokens than beyond: {engine} takes the "
                "long ones for all contexts",
                "give one list by --rope-factors",
            )
