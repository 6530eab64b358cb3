"""A scaling as transformers' `rope_parameters` tell it, and what such parameters mean. Pure: neither torch nor files.

transformers has one rope type a model and no way to put one on another. A scaling that was composed on a checkpoint
that is scaled already can thus be told only where the two together are a rope type again; else it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctxeval.errors import UsageError
from ctxeval.rope.options import BETA_FAST, BETA_SLOW, DYNAMIC_FACTOR, HIGH_FREQ_FACTOR, LOW_FREQ_FACTOR
from ctxeval.rope.scaling import Frequencies, Scaled, scale_frequencies
from ctxeval.spec import ScalingSpec

#: The keys that say how RoPE is scaled; all others (base, rotated share, M-RoPE sections) describe the model.
SCALING_KEYS = (
    "rope_type",
    "type",
    "factor",
    "original_max_position_embeddings",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "truncate",
    "mscale",
    "mscale_all_dim",
    "low_freq_factor",
    "high_freq_factor",
    "short_factor",
    "long_factor",
)
#: Rope parameters that act outside the rotary tables, by the original window or the factor.
OUTSIDE = {
    "mscale_all_dim": "its softmax would be scaled otherwise than when it was measured",
    "llama_4_scaling_beta": "its queries are scaled by positions in the original window, which an export would move",
}
#: Relative: native tables are fp32, rounded once as a power and once as a quotient.
TOLERANCE = 2e-6


@dataclass(frozen=True)
class Official:
    """Rope parameters of one table, and what they have to come to.

    `wanted` are the frequencies (rotary_dim/2,), rad/token, at the target length and the factor on cos and sin that the
    scaling adds; `at_native` likewise within the native window, which only differs where frequencies go by length.
    Most rope types cannot carry such a factor: `carried` is what the parameters themselves ask for.
    """

    parameters: dict[str, Any]
    wanted: Scaled
    at_native: Scaled

    @property
    def rope_type(self) -> str:
        """The scaling, as transformers names it."""
        return str(self.parameters.get("rope_type", "default"))

    @property
    def carried(self) -> float:
        """The factor on cos and sin that an engine takes from the parameters."""
        return float(self.parameters.get("attention_factor", 1.0))


def official_parameters(
    scaling: ScalingSpec, base: Mapping[str, Any], inv_freq: Frequencies, native_window: int
) -> Official:
    """Tell a scaling as rope parameters, and prove by computing that they come to the same frequencies.

    Args:
        scaling: method, factor and options.
        base: the checkpoint's own rope parameters of this table (flat).
        inv_freq: the native frequencies, (rotary_dim/2,), rad/token.
        native_window: L, tokens.

    Raises:
        UsageError: no rope type says the same, or a bad value.
    """
    say: dict[str, Any] = {"native_window": native_window, "factor": scaling.factor, **scaling.options}
    wanted = scale_frequencies(scaling.method, inv_freq, **say)
    at_native = scale_frequencies(scaling.method, inv_freq, context_length=native_window, **say)
    if scaling.method == "none":
        return Official(dict(base), wanted, at_native)
    for key, what in OUTSIDE.items():
        if base.get(key):
            raise UsageError(f"scaling {scaling.method} on a checkpoint with {key}: {what}", "it cannot be exported")
    kind = str(base.get("rope_type", base.get("type", "default")))
    if (scaling.method, kind) not in _TELL:
        _refuse(scaling.method, kind)
    told = _TELL[scaling.method, kind](scaling, base, wanted, native_window)
    model = {key: value for key, value in base.items() if key not in SCALING_KEYS}
    parameters = {**model, **told}
    for length, table in ((round(native_window * scaling.factor), wanted), (native_window, at_native)):
        _prove(scaling.method, parameters, native_window, length, table)
    return Official(parameters, wanted, at_native)


def plain_rope(base: Mapping[str, Any], inv_freq: Frequencies) -> tuple[dict[str, Any], Frequencies]:
    """Return rope parameters without their scaling, and the frequencies theta**(-2i/d) that these stand for.

    Args:
        base: rope parameters of one table (flat).
        inv_freq: the table, (rotary_dim/2,); pairs that do not turn stay still.
    """
    parameters = {key: value for key, value in base.items() if key not in SCALING_KEYS}
    plain = float(base["rope_theta"]) ** (-np.arange(inv_freq.size) / inv_freq.size)
    return {**parameters, "rope_type": "default"}, np.where(inv_freq > 0, plain, 0.0)


def meaning(parameters: Mapping[str, Any], pairs: int, native_window: int, length: int) -> Scaled:
    """Return the frequencies (pairs,), rad/token, and the factor on cos and sin that rope parameters stand for.

    Args:
        parameters: of one table (flat).
        pairs: rotary_dim / 2.
        native_window: tokens, of types whose original window is not among the parameters.
        length: tokens that are read, for types that go by it.

    Raises:
        UsageError: a rope type that this module does not write.
    """
    plain = float(parameters["rope_theta"]) ** (-np.arange(pairs) / pairs)
    kind = parameters["rope_type"]
    if kind == "default":
        return Scaled(plain, 1.0)
    if kind not in _METHODS:
        raise UsageError(f"rope_type {kind!r}", f"ctxeval writes default, {', '.join(sorted(_METHODS))}")
    method, names = _METHODS[kind]
    window = int(parameters.get("original_max_position_embeddings", native_window))
    options = {ours: parameters[theirs] for theirs, ours in names.items() if theirs in parameters}
    # What transformers calls the factor of dynamic NTK is no extension ratio.
    factor = max(1.0, length / window) if kind == "dynamic" else parameters["factor"]
    return scale_frequencies(method, plain, native_window=window, factor=factor, context_length=length, **options)


def _prove(method: str, parameters: Mapping[str, Any], window: int, length: int, wanted: Scaled) -> None:
    moving = wanted.inv_freq > 0
    told = meaning(parameters, wanted.inv_freq.size, window, length).inv_freq
    off = np.abs(told[moving] / wanted.inv_freq[moving] - 1)
    if not np.all(moving) or not off.max() <= TOLERANCE:
        worst = int(np.flatnonzero(moving)[off.argmax()])
        raise UsageError(
            f"scaling {method} as rope_type {parameters['rope_type']} would turn pair {worst} at {told[worst]:.6g} "
            f"rad/token, measured was {wanted.inv_freq[worst]:.6g}",
            "the checkpoint's frequencies are not those of its rope_theta: no configuration says this",
        )


def _refuse(method: str, kind: str) -> None:
    on_top = ", ".join(sorted({one for one, base in _TELL if base == kind}))
    raise UsageError(
        f"scaling {method} on a checkpoint that is scaled already (rope_type {kind}): no configuration says both",
        f"{f'{on_top} can be told on top of {kind}' if on_top else 'nothing can'}; --from-scratch replaces it",
    )


def _pi(scaling: ScalingSpec, base: Mapping[str, Any], wanted: Scaled, window: int) -> dict[str, Any]:
    told = _as_before(base)
    return {"rope_type": "linear", "factor": float(scaling.factor * told.get("factor", 1.0))}


def _ntk(scaling: ScalingSpec, base: Mapping[str, Any], wanted: Scaled, window: int) -> dict[str, Any]:
    """NTK is another base, theta * s**(d/(d-2)), and no rope type of its own."""
    dim = 2 * wanted.inv_freq.size
    return {**_as_before(base), "rope_theta": float(base["rope_theta"] * scaling.factor ** (dim / (dim - 2)))}


def _abf(scaling: ScalingSpec, base: Mapping[str, Any], wanted: Scaled, window: int) -> dict[str, Any]:
    return {**_as_before(base), "rope_theta": float(scaling.options["rope_theta"])}


def _as_before(base: Mapping[str, Any]) -> dict[str, Any]:
    if base.get("rope_type", base.get("type")) == "linear":
        return {"rope_type": "linear", "factor": float(base["factor"])}
    return {"rope_type": "default"}


def _yarn(scaling: ScalingSpec, base: Mapping[str, Any], wanted: Scaled, window: int) -> dict[str, Any]:
    """Nothing is left to an engine's defaults but `truncate`, a newer key that is written where it is not the rule."""
    told = {
        "rope_type": "yarn",
        "factor": float(scaling.factor),
        "original_max_position_embeddings": window,
        # A whole number is read with a warning: transformers wants a float.
        "attention_factor": float(wanted.attention_factor),
        "beta_fast": float(scaling.options.get("beta_fast", BETA_FAST)),
        "beta_slow": float(scaling.options.get("beta_slow", BETA_SLOW)),
    }
    return told if scaling.options.get("truncate", True) else {**told, "truncate": False}


def _llama3(scaling: ScalingSpec, base: Mapping[str, Any], wanted: Scaled, window: int) -> dict[str, Any]:
    return {
        "rope_type": "llama3",
        "factor": float(scaling.factor),
        "low_freq_factor": float(scaling.options.get("low_freq_factor", LOW_FREQ_FACTOR)),
        "high_freq_factor": float(scaling.options.get("high_freq_factor", HIGH_FREQ_FACTOR)),
        "original_max_position_embeddings": scaling.options.get("original_window") or window,
    }


def _longrope(scaling: ScalingSpec, base: Mapping[str, Any], wanted: Scaled, window: int) -> dict[str, Any]:
    return {
        "rope_type": "longrope",
        "factor": float(scaling.factor),
        "original_max_position_embeddings": window,
        "attention_factor": float(wanted.attention_factor),
        "short_factor": list(scaling.options["short_factor"]),
        "long_factor": list(scaling.options["long_factor"]),
    }


def _dynamic(scaling: ScalingSpec, base: Mapping[str, Any], wanted: Scaled, window: int) -> dict[str, Any]:
    return {"rope_type": "dynamic", "factor": float(scaling.options.get("dynamic_factor", DYNAMIC_FACTOR))}


_Tell = Callable[[ScalingSpec, Mapping[str, Any], Scaled, int], dict[str, Any]]
#: (method, rope type of the checkpoint) → how the two together are told.
_TELL: Mapping[tuple[str, str], _Tell] = {
    ("pi", "default"): _pi,
    ("ntk", "default"): _ntk,
    ("abf", "default"): _abf,
    ("ntk-parts", "default"): _yarn,
    ("yarn", "default"): _yarn,
    ("llama3", "default"): _llama3,
    ("longrope", "default"): _longrope,
    ("ntk-dynamic", "default"): _dynamic,
    ("pi", "linear"): _pi,
    ("ntk", "linear"): _ntk,
    ("abf", "linear"): _abf,
}
#: Rope type → the method that it is on plain RoPE, and transformers' name → ours of each of its options.
_METHODS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "linear": ("pi", {}),
    "yarn": ("yarn", {name: name for name in ("attention_factor", "beta_fast", "beta_slow", "truncate")}),
    "llama3": ("llama3", {name: name for name in ("low_freq_factor", "high_freq_factor")}),
    "longrope": ("longrope", {name: name for name in ("attention_factor", "short_factor", "long_factor")}),
    "dynamic": ("ntk-dynamic", {"factor": "dynamic_factor"}),
}
