"""The RoPE scaling of a GGUF file, which transformers 5.24 drops: read here, given to the configuration, and checked.

A file keeps it as `ARCH.rope.scaling.*` metadata (linear, YaRN) and as tensors of per-pair factors (Llama 3.1's
`rope_freqs.weight`, LongRoPE's two). What they mean is llama.cpp's: `llama-model.cpp` reads them, `ggml_rope_ext`
applies them. What cannot be expressed is refused, never loaded as plain RoPE.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctxeval.errors import RunError, UsageError
from ctxeval.model.gguf import read_metadata
from ctxeval.rope.layers import is_local
from ctxeval.rope.options import BETA_FAST, BETA_SLOW
from ctxeval.rope.windows import GGUF_KEYS, ORIGINAL_KEY, rope_parameters, text_config

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Per-pair factors, one tensor for all layers.
FREQS, SHORT, LONG = "rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"
#: transformers reads the scaling of this architecture itself.
READ_BY_TRANSFORMERS = "gpt-oss"
#: Keys of `rope.scaling` that say nothing of frequencies, or are read below.
_KNOWN = {
    *("type", "factor", "finetuned", "attn_factor", "original_context_length"),
    *("yarn_ext_factor", "yarn_beta_fast", "yarn_beta_slow"),
}
#: Relative. fp32 blends w and w / s, which cancels to up to s roundings; a scaling that is missing changes far more.
ROUNDING = 1e-5


@dataclass(frozen=True)
class NativeScaling:
    """Rope parameters in transformers' words, and the names of the keys in the file that they come from."""

    parameters: Mapping[str, Any]
    keys: Mapping[str, str]


class _File:
    """Typed access to what a file says of RoPE."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata, self.tensors = read_metadata(path)
        self.architecture = str(self.metadata.get("general.architecture", ""))

    def key(self, name: str) -> str:
        return f"{self.architecture}.{name}"

    def number(self, name: str, default: float = 0.0) -> float:
        value = self.metadata.get(self.key(name), default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.refuse(f"{self.key(name)} = {value!r} is not a number")
        return float(value)

    @property
    def kind(self) -> str:
        """llama.cpp takes a factor without a type for linear."""
        return str(self.metadata.get(self.key("rope.scaling.type"), "linear"))

    @property
    def factor(self) -> float:
        """1 where there is none, which an old key or 0 may also mean."""
        if self.kind == "none":
            return 1.0
        return self.number("rope.scaling.factor", self.number("rope.scale_linear")) or 1.0

    def factors(self, name: str) -> list[float]:
        from gguf import GGUFReader, dequantize

        (tensor,) = (one for one in GGUFReader(str(self.path)).tensors if one.name == name)
        values = [float(one) for one in dequantize(tensor.data, tensor.tensor_type).reshape(-1)]
        if not all(math.isfinite(one) and one > 0 for one in values):
            raise self.refuse(f"{name} holds factors that are not above 0")
        return values

    def original(self) -> int:
        """The window before the scaling, as stated; 0 where it is not."""
        return int(self.number("rope.scaling.original_context_length"))

    def refuse(self, why: str) -> UsageError:
        return UsageError(
            f"GGUF file {str(self.path)!r} carries RoPE scaling that ctxeval cannot apply: {why}",
            "its frequencies would be wrong: use the model's safetensors files",
        )


def native_scaling(path: Path) -> NativeScaling | None:
    """Read the scaling that a GGUF file was made with; None where it is plain RoPE, or transformers reads it.

    Raises:
        UsageError: a damaged file, or scaling that transformers cannot be made to apply.
    """
    file = _File(path)
    tensors = [name for name in (FREQS, SHORT, LONG) if name in file.tensors]
    if file.architecture == READ_BY_TRANSFORMERS:
        return None
    per_layer = [name for name in file.tensors if name not in tensors and ("rope_freqs" in name or "rope_fac" in name)]
    if per_layer:
        raise file.refuse(f"{per_layer[0]} is a table of one layer")
    kind, factor = file.kind, file.factor
    scaled = kind not in ("none", "linear") or factor != 1 or bool(tensors)
    if not scaled:
        return None
    _refuse_unknown(file)
    if kind == "yarn" and not tensors:
        return _yarn(file)
    if kind in ("none", "linear") and not tensors:
        return _stated(file, {"rope_type": "linear", "factor": factor})
    if kind in ("none", "linear") and tensors == [FREQS]:
        return _pair_factors(file)
    if kind in ("none", "linear", "longrope") and tensors == [SHORT, LONG] and (factor == 1 or kind == "longrope"):
        return _longrope(file)
    raise file.refuse(f"rope.scaling.type {kind}, factor {factor:g}, with {', '.join(tensors) or 'no tensors'}")


def _refuse_unknown(file: _File) -> None:
    prefix = file.key("rope.scaling.")
    for key, value in file.metadata.items():
        if key.startswith(prefix) and key[len(prefix) :] not in _KNOWN and value not in (0, 0.0):
            raise file.refuse(f"{key} = {value}")
    if file.number("rope.scaling.yarn_ext_factor", 1.0) not in (1.0, -1.0):
        raise file.refuse(f"{file.key('rope.scaling.yarn_ext_factor')} is not 1")


def _yarn(file: _File) -> NativeScaling:
    """llama.cpp's YaRN is that of transformers with `truncate`; attn_factor multiplies its temperature."""
    original, factor = file.original(), file.factor
    if not original:
        raise file.refuse(f"YaRN without {file.key('rope.scaling.original_context_length')}")
    temperature = file.number("rope.scaling.attn_factor", 1.0) * (0.1 * math.log(factor) + 1.0)
    parameters = {
        "rope_type": "yarn",
        "factor": factor,
        ORIGINAL_KEY: original,
        "attention_factor": temperature,
        "beta_fast": file.number("rope.scaling.yarn_beta_fast", BETA_FAST),
        "beta_slow": file.number("rope.scaling.yarn_beta_slow", BETA_SLOW),
        "truncate": True,
    }
    return _stated(file, parameters)


def _pair_factors(file: _File) -> NativeScaling:
    """Each frequency over its factor, at every length: LongRoPE with one list, in transformers' words."""
    factors = [one * file.factor for one in file.factors(FREQS)]
    return _lists(file, factors, factors, 1.0, FREQS)


def _longrope(file: _File) -> NativeScaling:
    if not file.original():
        raise file.refuse(f"LongRoPE without {file.key('rope.scaling.original_context_length')}")
    temperature = file.number("rope.scaling.attn_factor", 1.0)
    return _lists(file, file.factors(SHORT), file.factors(LONG), temperature, "longrope")


def _lists(file: _File, short: list[float], long: list[float], temperature: float, name: str) -> NativeScaling:
    parameters = {
        "rope_type": "longrope",
        "short_factor": short,
        "long_factor": long,
        "attention_factor": temperature,
        ORIGINAL_KEY: file.original() or int(file.number("context_length")),
    }
    return _stated(file, parameters, rope_type=name)


def _stated(file: _File, parameters: Mapping[str, Any], **names: str) -> NativeScaling:
    keys = {"max_position_embeddings": file.key("context_length"), **names}
    if file.original():
        keys[ORIGINAL_KEY] = file.key("rope.scaling.original_context_length")
    return NativeScaling(parameters, keys)


def apply_scaling(config: Any, scaling: NativeScaling, path: Path) -> None:
    """Give a configuration that transformers made from the file the scaling that the file has.

    Raises:
        UsageError: a configuration with a table a layer type, of another model than Gemma 3 (whose global layers only
            are scaled, as in llama.cpp).
    """
    text = text_config(config)
    own = dict(getattr(text, "rope_parameters", None) or {})
    nested = {name: value for name, value in own.items() if isinstance(value, Mapping)}
    if nested and not str(text.model_type).startswith("gemma3"):
        raise _File(path).refuse(f"{text.model_type} has frequencies for each of {', '.join(nested)}")
    if nested:
        changed = {name: {**value, **scaling.parameters} for name, value in nested.items() if not is_local(name)}
        text.rope_parameters = {**own, **changed}
    else:
        text.rope_parameters = {**own, **scaling.parameters}
    if hasattr(text, ORIGINAL_KEY) and ORIGINAL_KEY in scaling.parameters:
        setattr(text, ORIGINAL_KEY, scaling.parameters[ORIGINAL_KEY])  # Phi-3's own, which transformers puts first
    setattr(text, GGUF_KEYS, dict(scaling.keys))


def check_applied(model: Any, path: Path) -> None:
    """See that a loaded model has the scaling of its file, if it has one: a module may not heed its configuration.

    Raises:
        RunError: it has other frequencies.
    """
    from ctxeval.rope.sites import find_sites

    text = text_config(model.config)
    if not hasattr(text, GGUF_KEYS):
        return
    for site in find_sites(model):
        if not site.extended:
            continue
        wanted, temperature = _expected(rope_parameters(text, site.prefix), site.inv_freq.shape[0])
        found = site.inv_freq.double().cpu().numpy()
        if abs(found / wanted - 1).max() > ROUNDING or not math.isclose(
            site.attention_scaling, temperature, rel_tol=ROUNDING
        ):
            raise RunError(
                f"{site.label} was not given the RoPE scaling of GGUF file {str(path)!r}",
                "transformers does not apply it to this architecture: use the model's safetensors files",
            )


def _expected(parameters: Mapping[str, Any], pairs: int) -> tuple[NDArray[np.float64], float]:
    """Compute in fp64 what a table just loaded should hold, and the factor on cos and sin."""
    import numpy as np

    from ctxeval.rope.scaling import scale_frequencies

    plain = parameters["rope_theta"] ** (-np.arange(pairs) / pairs)
    if parameters["rope_type"] == "longrope":  # nothing has been read yet: the short ones
        return plain / np.asarray(parameters["short_factor"]), parameters["attention_factor"]
    names = ("attention_factor", "beta_fast", "beta_slow", "truncate")
    scaled = scale_frequencies(
        "pi" if parameters["rope_type"] == "linear" else "yarn",
        plain,
        native_window=parameters.get(ORIGINAL_KEY, 1),
        factor=parameters["factor"],
        **{name: parameters[name] for name in names if name in parameters},
    )
    return scaled.inv_freq, scaled.attention_factor
