"""A scaling as transformers' configuration: of version 5, and in the form that version 4 reads. Pure."""

from __future__ import annotations

from typing import Any

from ctxeval.errors import UsageError
from ctxeval.export.extension import Export, Extension, length, refuse_lost_temperature, truncate_note
from ctxeval.export.official import SCALING_KEYS
from ctxeval.rope.options import LENGTH_DEPENDENT

#: Where transformers 4 kept base and rotated share under names of its own.
V4_NAMES = {
    "gpt_neox": ("rotary_emb_base", "rotary_pct"),
    "gpt_neox_japanese": ("rotary_emb_base", "rotary_pct"),
}
ORIGINAL = "original_max_position_embeddings"


def hf(extension: Extension) -> Export:
    """All of RoPE is in `rope_parameters`. A value at the top outranks the original window there.

    Raises:
        UsageError: no rope type of this model carries the temperature, or the ramp without rounded ends.
    """
    refuse_lost_temperature(extension, "transformers")
    if "" not in extension.tables and any("truncate" in table.parameters for table in extension.tables.values()):
        raise UsageError(
            "truncate=false on a model with a table a layer type: transformers reads that key at the top only",
            "drop --no-truncate",
        )
    text = {**extension.text, **length(extension), "rope_parameters": extension.rope_parameters}
    if extension.text.get(ORIGINAL) is not None and extension.method != "none":
        text[ORIGINAL] = extension.native_window
    return Export(_whole(extension, text), notes=(*_linear_note(extension), *_varying_note(extension)))


def hf_v4(extension: Extension) -> Export:
    """Base and rotated share at the top, the scaling in `rope_scaling`, under both names of its type.

    Releases before transformers PR 40320 took the factor from max_position_embeddings / original window.

    Raises:
        UsageError: as `hf`; also a model with a table a layer type.
    """
    refuse_lost_temperature(extension, "transformers 4")
    if "" not in extension.tables:
        raise UsageError(
            "a model with a table a layer type: transformers 4 has no common form for it",
            "use --for hf (transformers 5)",
        )
    parameters, kind = extension.tables[""].parameters, extension.tables[""].rope_type
    theta, share = V4_NAMES.get(str(extension.text.get("model_type")), ("rope_theta", "partial_rotary_factor"))
    text = {**extension.text, **length(extension), theta: parameters["rope_theta"]}
    del text["rope_parameters"]
    if "partial_rotary_factor" in parameters:
        text[share] = parameters["partial_rotary_factor"]
    scaling = {key: value for key, value in parameters.items() if key not in ("rope_theta", "partial_rotary_factor")}
    model_keys = set(scaling) - set(SCALING_KEYS)  # M-RoPE's sections
    text["rope_scaling"] = {**scaling, "type": kind} if kind != "default" or model_keys else None
    if extension.method != "none" and (extension.text.get(ORIGINAL) is not None or kind == "longrope"):
        text[ORIGINAL] = extension.native_window
    config = _whole(extension, text)
    if "dtype" in config:
        config["torch_dtype"] = config.pop("dtype")
    notes = (*_linear_note(extension), *_varying_note(extension), *truncate_note(extension), *_ratio_note(extension))
    return Export(config, notes=notes)


def _whole(extension: Extension, text: dict[str, Any]) -> dict[str, Any]:
    return {**extension.config, extension.text_key: text} if extension.text_key else text


def _varying_note(extension: Extension) -> tuple[str, ...]:
    if extension.method not in LENGTH_DEPENDENT:
        return ()
    return (
        f"transformers goes by the tokens read so far: with a cache, keys of several tables meet in one context; "
        f"ctxeval measured {extension.method} with one table a context",
    )


def _linear_note(extension: Extension) -> tuple[str, ...]:
    if not any(table.rope_type == "linear" for table in extension.tables.values()):
        return ()
    return (
        "vLLM and SGLang multiply max_position_embeddings by the factor of a linear scaling: serve this configuration "
        f"there with a context length of {extension.target}, or use --for vllm",
    )


def _ratio_note(extension: Extension) -> tuple[str, ...]:
    ratio = extension.window / extension.native_window
    if extension.tables[""].rope_type != "yarn" or extension.method == "none" or ratio == extension.factor:
        return ()
    return (f"transformers of before 2025-09 takes {ratio:g} for the factor, not {extension.factor:g}",)
