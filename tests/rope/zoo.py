"""A tiny random model of every causal-LM type that transformers knows, with any rope parameters.

`tiny_configs.json` holds the sizes: `shrink` where a type's configuration has the field, `overrides` by type.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassClassValidationError
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ctxeval.rope.layers import is_local
from ctxeval.rope.windows import text_config

WINDOW = 256
SIZES = json.loads(Path(__file__).with_name("tiny_configs.json").read_text(encoding="utf-8"))
#: All that a plain RoPE keeps of its parameters; the rest belongs to a scaling.
PLAIN_KEYS = ("rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved", "llama_4_scaling_beta")


def causal_types() -> tuple[str, ...]:
    """The model types of transformers' causal-LM mapping, sorted."""
    return tuple(sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))


def tiny_config(kind: str) -> Any:
    """Return the configuration of a tiny model of type `kind`, with plain RoPE and eager attention."""
    overrides = SIZES["overrides"].get(kind, {})
    config = transformers.AutoConfig.for_model(kind, **_shrunk(kind, overrides))
    text = text_config(config)
    if getattr(text, "rope_parameters", None):
        text.rope_parameters = plain(text.rope_parameters)
    if getattr(text, "original_max_position_embeddings", None) is not None:  # Phi-3: overrides the rope parameters
        text.original_max_position_embeddings = WINDOW
    config._attn_implementation = "eager"
    return config


def plain(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return rope parameters without any scaling, flat or by layer type."""
    if by_layer_type(parameters):
        return {name: one and plain(one) for name, one in parameters.items() if one is None or isinstance(one, Mapping)}
    kept = {key: parameters[key] for key in PLAIN_KEYS if key in parameters}
    if parameters.get("rope_type") == "proportional":  # its partial factor means pairs that stay still, not fewer pairs
        kept.pop("partial_rotary_factor", None)
    if "llama_4_scaling_beta" in kept:  # Ministral 3 reads the window on every forward, whatever the rope type
        kept["original_max_position_embeddings"] = WINDOW
    return {"rope_type": "default", **kept}


def is_proportional(kind: str) -> bool:
    """Tell whether the default configuration of a type has frequencies of which some are zero (Gemma 4)."""
    config = _default(kind)
    parameters = getattr(text_config(config), "rope_parameters", None) if config is not None else None
    return any(
        one.get("rope_type") == "proportional" for one in (parameters or {}).values() if isinstance(one, Mapping)
    )


def scaled(parameters: Mapping[str, Any], scaling: Mapping[str, Any]) -> dict[str, Any]:
    """Return rope parameters with `scaling` on top: in all layers, or the global ones where there are several types.

    `theta_times` in `scaling` multiplies each base.
    """
    if not by_layer_type(parameters):
        more = {key: value for key, value in scaling.items() if key != "theta_times"}
        if "theta_times" in scaling:
            more["rope_theta"] = parameters["rope_theta"] * scaling["theta_times"]
        return {**parameters, **more}
    # `main` of DeepSeek V4 serves its sliding layers: its own configuration scales `compress` alone.
    globals_ = [name for name, one in parameters.items() if one and not is_local(name) and name != "main"]
    extended = globals_ or list(parameters)
    return {name: scaled(one, scaling) if name in extended and one else one for name, one in parameters.items()}


def by_layer_type(parameters: Mapping[str, Any]) -> bool:
    """Tell whether rope parameters are kept by layer type."""
    return any(isinstance(one, Mapping) for one in parameters.values())


def build(config: Any, weights: Mapping[str, torch.Tensor] | None = None) -> Any:
    """Return the model of `config` in fp32, with `weights`, or random ones under which RoPE moves the logits."""
    torch.manual_seed(0)
    if config.model_type.startswith("musicgen"):  # the causal model is the decoder of the composite
        name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]
        model = getattr(transformers, name)._from_config(config.decoder, dtype=torch.float32).eval()
    else:
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    if weights is not None:
        model.load_state_dict(weights)
        return model
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2 and parameter.requires_grad:  # RoFormer's table of sin and cos is frozen
                deviation = 1.0 if "embed" in name else 1.5 / parameter.shape[1] ** 0.5
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * deviation)
            elif name.endswith("temp"):  # Zaya's factor on keys begins at zero, where positions have no effect
                parameter.fill_(1.0)
    return model


def _shrunk(kind: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a configuration of `kind` that differ from its defaults, sub-configurations included."""
    default = _default(kind)
    values = {} if default is None else vars(default)
    fields = {
        name: value
        for name, value in SIZES["shrink"].items()
        if values.get(name) is not None and not isinstance(values[name], list | dict)
    }
    for name in transformers.CONFIG_MAPPING[kind].sub_configs:
        part_kind = overrides.get(name, {}).get("model_type") or getattr(values.get(name), "model_type", "")
        if part_kind in transformers.CONFIG_MAPPING:
            fields[name] = {"model_type": part_kind, **_shrunk(part_kind, overrides.get(name, {}))}
    layers = fields.get("num_hidden_layers", overrides.get("num_hidden_layers"))
    if layers:
        fields |= _cut(values, values["num_hidden_layers"], layers)
    for name, value in overrides.items():
        if name not in fields or not isinstance(fields[name], dict):
            fields[name] = value
    return fields


def _cut(values: Mapping[str, Any], total: int, layers: int) -> dict[str, Any]:
    """Shorten every list with an entry a layer to `layers` entries, so that each type of layer stays."""
    lists = {name: value for name, value in values.items() if isinstance(value, list) and len(value) == total > layers}
    kinds = lists.get("layer_types", lists.get("layers_block_type", []))
    chosen = list(range(layers))
    for kind in dict.fromkeys(map(str, kinds)):
        if kind not in [str(kinds[index]) for index in chosen]:
            chosen[-1] = [str(one) for one in kinds].index(kind)
    return {name: [value[index] for index in chosen] for name, value in lists.items()}


def _default(kind: str) -> Any:
    """Return the default configuration of a type; None where there is none without its parts."""
    try:
        return transformers.CONFIG_MAPPING[kind]()
    except (ValueError, TypeError, StrictDataclassClassValidationError):
        return None
