"""The two context windows of a checkpoint, read from its configuration. Imports neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ctxeval.errors import UsageError
from ctxeval.rope.layers import is_local
from ctxeval.rope.options import validate_window

#: Where configurations keep the window, in the order they are asked.
WINDOW_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length")
ORIGINAL_KEY = "original_max_position_embeddings"
#: Attribute of a configuration made from a GGUF file with RoPE scaling: key → the file's own name for it.
GGUF_KEYS = "gguf_keys"


@dataclass(frozen=True)
class Windows:
    """Windows in tokens, and where each was read.

    `native` is what the checkpoint supports as configured: the L that a scaling composes on. `pretrain` is what it was
    pre-trained on before any scaling that its configuration holds.
    """

    native: int
    pretrain: int
    native_source: str
    pretrain_source: str


def read_windows(config: Any, native_override: int | None = None, pretrain_override: int | None = None) -> Windows:
    """Read both windows.

    Args:
        config: a transformers configuration; its text part is taken where it has several.
        native_override: tokens, instead of what the configuration says.
        pretrain_override: likewise.

    Returns:
        native = `max_position_embeddings`, or factor * original where that is larger; pretrain =
        `original_max_position_embeddings` (top level before rope parameters, as transformers does) where the checkpoint
        is scaled already, else native.

    Raises:
        UsageError: no window in the configuration and none given, or an override that is not a number of tokens.
    """
    text = text_config(config)
    rope = rope_parameters(text)
    original, original_source = (None, "") if is_plain(rope) else _read_original(text, rope)
    configured, configured_source = _read_configured(text)
    native, native_source = configured, configured_source
    factor = rope.get("factor")
    if original is not None and isinstance(factor, int | float) and factor * original > (configured or 0):
        native, native_source = round(factor * original), f"factor {factor:g} * {original_source}"
    if native_override is not None:
        validate_window(native_override)
        native, native_source = native_override, "--native-window"
    if native is None:
        kind = getattr(text, "model_type", type(text).__name__)
        raise UsageError(f"no context window in the {kind} configuration", "give --native-window")
    pretrain, pretrain_source = (native, native_source) if original is None else (original, original_source)
    if original is None and configured is not None and native_override is not None:
        # The override corrects what is supported now; what was trained on is still what the file says.
        pretrain, pretrain_source = configured, configured_source
    if pretrain_override is not None:
        validate_window(pretrain_override)
        pretrain, pretrain_source = pretrain_override, "--pretrain-window"
    return Windows(native, pretrain, native_source, pretrain_source)


def text_config(config: Any) -> Any:
    """Return the part of a configuration that describes the text decoder (itself, mostly)."""
    getter = getattr(config, "get_text_config", None)
    return getter(decoder=True) if callable(getter) else config


def rope_parameters(config: Any, layer_type: str = "") -> Mapping[str, Any]:
    """Return the rope parameters of a layer type: `rope_parameters` (v5), else `rope_scaling` (v4), else {}.

    "" stands for the global layers, and for all of them where the model makes no difference.
    """
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if not isinstance(parameters, Mapping):
        return {}
    by_layer_type = {name: value for name, value in parameters.items() if isinstance(value, Mapping)}
    if not by_layer_type:
        return parameters
    globals_first = sorted(by_layer_type, key=lambda name: (name != layer_type, is_local(name), name))
    return by_layer_type[globals_first[0]]


def checkpoint_scaling(config: Any) -> str:
    """Name the scaling that a checkpoint is configured with (`llama3`, `yarn`, `longrope` …), "" for plain RoPE."""
    text = text_config(config)
    rope = rope_parameters(text)
    return "" if is_plain(rope) else _gguf_name(text, "rope_type") or _kind(rope)


def check_pretrain_window(windows: Windows, scaling: str, option: str = "--pretrain-window") -> None:
    """Refuse to start from scratch on a checkpoint scaled by `scaling` that does not say what it was scaled from.

    transformers fills a missing original window with the extended one. Dynamic NTK alone has but one window.
    """
    if scaling and windows.pretrain == windows.native and "dynamic" not in scaling:
        raise UsageError(
            f"from scratch on a {scaling} checkpoint that does not say how long a context it was pre-trained on",
            f"give {option}",
        )


def is_plain(rope: Mapping[str, Any]) -> bool:
    """Tell whether rope parameters scale nothing (`proportional` by itself only leaves pairs without position)."""
    return _kind(rope) == "default" or (_kind(rope) == "proportional" and rope.get("factor") in (None, 1))


def checkpoint_factors(config: Any) -> dict[str, tuple[float, ...]]:
    """Return the per-pair factors of a LongRoPE checkpoint, `short_factor` and `long_factor`; {} for any other."""
    rope = rope_parameters(text_config(config))
    names = ("short_factor", "long_factor")
    if _kind(rope) != "longrope" or not all(isinstance(rope.get(name), list | tuple) for name in names):
        return {}
    return {name: tuple(float(value) for value in rope[name]) for name in names}


def native_varies(config: Any) -> bool:
    """Tell whether the checkpoint's own frequencies depend on the length that it reads: dynamic NTK and LongRoPE."""
    factors = checkpoint_factors(config)
    kind = _kind(rope_parameters(text_config(config)))
    return "dynamic" in kind or (kind == "longrope" and len(set(factors.values())) != 1)


def _kind(rope: Mapping[str, Any]) -> str:
    return str(rope.get("rope_type", rope.get("type", "default")))


def _gguf_name(config: Any, key: str) -> str:
    return str(getattr(config, GGUF_KEYS, {}).get(key, ""))


def _read_original(config: Any, rope: Mapping[str, Any]) -> tuple[int | None, str]:
    name = _gguf_name(config, ORIGINAL_KEY)
    top = getattr(config, ORIGINAL_KEY, None)
    if isinstance(top, int):
        return top, name or ORIGINAL_KEY
    inner = rope.get(ORIGINAL_KEY)
    if not isinstance(inner, int | float):
        return None, ""
    return int(inner), name or f"rope_parameters.{ORIGINAL_KEY}"


def _read_configured(config: Any) -> tuple[int | None, str]:
    for key in WINDOW_KEYS:
        try:
            value = getattr(config, key, None)
        except NotImplementedError:  # XLNet's way to say that it has none
            continue
        if isinstance(value, int) and value > 0:
            return value, _gguf_name(config, key) or key
    return None, ""
