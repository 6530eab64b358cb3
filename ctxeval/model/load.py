"""Load a causal language model once, ready to measure. The only place that reads weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctxeval.errors import RunError, UsageError
from ctxeval.model.adapter import merge_adapter, read_adapter
from ctxeval.model.gguf import no_gguf_bar, quantization
from ctxeval.model.gguf_rope import check_applied
from ctxeval.model.placement import Dtype, choose_device, choose_dtype
from ctxeval.model.source import Kind, Source, quiet, read_config, read_tokenizer, reason, resolve_source
from ctxeval.spec import ModelSpec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["LanguageModel", "load_model", "read_config", "read_tokenizer", "resolve_source"]

SAFETENSORS = ("model.safetensors", "model.safetensors.index.json")


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A loaded model, in eval mode and without gradients, and what a manifest should say about it.

    `config` is the text model's configuration. `device` is where input ids go. `dtype` is fp32, bf16 or fp16, with
    `dtype_reason` where it was chosen here. `revision` is the resolved commit of a Hub model. `quantization` is empty
    for weights as trained. `n_parameters` counts tied weights once. `adapter` says what was merged into the weights.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    config: PreTrainedConfig
    name: str
    kind: Kind
    location: str
    revision: str | None
    dtype: str
    dtype_reason: str
    device: str
    quantization: str
    attn_implementation: str
    n_parameters: int
    adapter: Mapping[str, str] | None = None


def load_model(
    name_or_path: str | ModelSpec,
    *,
    dtype: str = "auto",
    device: str = "auto",
    revision: str | None = None,
    device_map: str | None = None,
    attn_implementation: str | None = None,
    trust_remote_code: bool = False,
    adapter: str | None = None,
) -> LanguageModel:
    """Load a model and its tokenizer from safetensors or GGUF; pickled weights are never read.

    Args:
        name_or_path: a Hub id, a folder, a GGUF file or `demo`; or a `ModelSpec`, which holds all other arguments.
        dtype: `auto` (bf16 where the device is faster in it, else fp32), `fp32`, `bf16` or `fp16`.
        device: `auto` (the first of cuda, mps, cpu), `cpu`, `cuda`, `cuda:1` or `mps`.
        revision: a Hub branch, tag or commit.
        device_map: accelerate's placement over several devices, for example `auto`; excludes `device`.
        attn_implementation: `sdpa`, `eager` or `flash_attention_2`; by default transformers chooses.
        trust_remote_code: run Python code that comes with the model.
        adapter: folder of a peft adapter in safetensors, which is merged into the weights.

    Raises:
        UsageError: found before weights load: no safetensors or GGUF weights, or see `read_config`, `read_tokenizer`
            and the placement options.
        RunError: the weights cannot be loaded, or the adapter cannot be merged or does nothing.
    """
    spec = name_or_path
    if not isinstance(spec, ModelSpec):
        spec = ModelSpec(spec, revision, dtype, device, device_map, attn_implementation, trust_remote_code, adapter)
    source = resolve_source(spec.name_or_path)
    place = choose_device(spec)
    number = choose_dtype(spec, place)
    config = read_config(spec)
    tokenizer = read_tokenizer(spec)
    _check_weights(spec, source)
    extra = read_adapter(spec.adapter) if spec.adapter is not None else None
    model = _load_weights(spec, source, config, place, number)
    if extra is not None:
        model = merge_adapter(model, extra)
    return LanguageModel(
        model=model,
        tokenizer=tokenizer,
        config=model.config.get_text_config(decoder=True),
        name=source.name,
        kind=source.kind,
        location=source.location,
        revision=getattr(config, "_commit_hash", None) if source.kind == "hub" else None,
        dtype=number.name,
        dtype_reason=number.why,
        device=str(model.get_input_embeddings().weight.device),
        quantization=_quantization(source, config),
        attn_implementation=str(model.config._attn_implementation),
        n_parameters=sum(parameter.numel() for parameter in model.parameters()),
        adapter=extra.describe() if extra is not None else None,
    )


def _check_weights(spec: ModelSpec, source: Source) -> None:
    """See that a folder has safetensors weights, so that the message can say what is there instead."""
    if source.kind in ("hub", "gguf"):
        return
    folder = Path(source.location)
    if any((folder / name).is_file() for name in SAFETENSORS):
        return
    pickled = sorted(path.name for path in folder.glob("*.bin")) + sorted(path.name for path in folder.glob("*.pt*"))
    found = f"only {', '.join(pickled)}: pickled weights are never loaded" if pickled else "no weights"
    raise UsageError(
        f"model {spec.name_or_path!r} has no model.safetensors, {found}", "convert them with save_pretrained"
    )


def _load_weights(
    spec: ModelSpec, source: Source, config: PreTrainedConfig, device: str, number: Dtype
) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    try:
        with quiet(), no_gguf_bar():
            # Typed as if it returned the model alone, whatever output_loading_info is.
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                source.location,
                config=config,
                dtype=number.dtype,
                output_loading_info=True,
                **_weight_arguments(spec, source),
            )
            model: PreTrainedModel = loaded[0] if spec.device_map is not None else loaded[0].to(device)
            missing = sorted(loaded[1]["missing_keys"])
    except ImportError as error:
        raise UsageError(
            f"cannot load {spec.name_or_path!r}: {reason(error)}", "install it, or drop the option"
        ) from error
    # OSError: not there or not readable; ValueError, RuntimeError: weights that do not fit the configuration, or no
    # memory; SafetensorError is neither.
    except (OSError, ValueError, RuntimeError, KeyError, _safetensor_error()) as error:
        raise RunError(
            f"cannot load the weights of {spec.name_or_path!r}: {reason(error)}", _weight_hint(error)
        ) from error
    if missing:
        raise RunError(
            f"model {spec.name_or_path!r} lacks {len(missing)} weights, among them {missing[0]}",
            "transformers would fill them with random numbers: is the checkpoint complete, and a causal one?",
        )
    model.requires_grad_(False)
    if source.gguf_path is not None:
        check_applied(model, source.gguf_path)
    return model


def _weight_arguments(spec: ModelSpec, source: Source) -> dict[str, Any]:
    arguments: dict[str, Any] = {"trust_remote_code": spec.trust_remote_code}
    if source.gguf_file:
        from transformers import GgufConfig

        arguments |= {"gguf_file": source.gguf_file, "quantization_config": GgufConfig(dequantize=True)}
    else:
        arguments["use_safetensors"] = True
    if spec.revision is not None:
        arguments["revision"] = spec.revision
    if spec.device_map is not None:
        arguments["device_map"] = spec.device_map
    if spec.attn_implementation is not None:
        arguments["attn_implementation"] = spec.attn_implementation
    return arguments


def _safetensor_error() -> type[Exception]:
    from safetensors import SafetensorError

    return SafetensorError


def _weight_hint(error: BaseException) -> str:
    if "out of memory" in str(error).lower():
        return "try --dtype bf16, --device cpu or --device-map auto"
    return "safetensors or GGUF weights that fit the configuration are needed"


def _quantization(source: Source, config: PreTrainedConfig) -> str:
    if source.gguf_path is not None:
        return quantization(source.gguf_path)
    stated = getattr(config, "quantization_config", None)
    if stated is None:
        return ""
    method = stated.get("quant_method", "") if isinstance(stated, dict) else getattr(stated, "quant_method", "")
    return str(getattr(method, "value", method))
