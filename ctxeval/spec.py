"""What a run is asked to do, frozen and checked before anything is loaded. Pure: no torch, no files."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from ctxeval.errors import UsageError, unknown

METHODS = ("none", "pi", "ntk", "ntk-dynamic", "ntk-parts", "yarn", "llama3", "longrope", "abf")
ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "default": "none",
        "native": "none",
        "linear": "pi",
        "ntk-aware": "ntk",
        "dynamic": "ntk-dynamic",
        "ntk-by-parts": "ntk-parts",
    }
)
PROBES = ("needle", "perplexity")
PROTOCOLS = ("tail", "all", "strided")
DTYPES = ("auto", "fp32", "bf16", "fp16")
DEFAULT_DEPTHS = 9
#: Grid lengths as multiples of the native window; beyond 8 they double.
GRID_MULTIPLES = (0.5, 1, 1.25, 1.5, 2, 3, 4, 6, 8)

Protocol = Literal["tail", "all", "strided"]


@dataclass(frozen=True)
class ModelSpec:
    """Which model, and how it is loaded."""

    name_or_path: str
    revision: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    device_map: str | None = None
    attn_implementation: str | None = None
    trust_remote_code: bool = False
    adapter: str | None = None


@dataclass(frozen=True)
class ScalingSpec:
    """A RoPE scaling with its factor (target / L; 1 for `none`) and its options.

    L is the native window, or from scratch, where it starts from plain RoPE, the pretrain window.
    """

    method: str
    factor: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)
    from_scratch: bool = False

    @property
    def label(self) -> str:
        """The name in tables and rows: `yarn`, or `yarn[beta_fast=16,from-scratch]` where it was asked for so.

        Lists of factors are shown by a hash.
        """
        lists = {key: value for key, value in sorted(self.options.items()) if isinstance(value, tuple)}
        parts = [f"{key}={value}" for key, value in sorted(self.options.items()) if key not in lists]
        if lists:
            parts.append(f"factors={hashlib.sha256(repr(lists).encode()).hexdigest()[:6]}")
        if self.from_scratch:
            parts.append("from-scratch")
        return f"{self.method}[{','.join(parts)}]" if parts else self.method


@dataclass(frozen=True)
class RunSpec:
    """A run as the user asked for it. `None` means: resolved from the model's native window."""

    model: ModelSpec
    scales: tuple[str, ...] = ("none",)
    length: int | None = None
    factor: float | None = None
    lengths: tuple[int, ...] | None = None
    depths: tuple[float, ...] = ()
    documents: int = 16
    perplexity_documents: int | None = None
    trials: int = 1
    seed: int = 0
    corpus: str = "sotu"
    task: str = "needle"
    probes: tuple[str, ...] = ("needle", "perplexity")
    packed: bool = False
    needles_per_context: int = 10
    exact_subset: int = 12
    protocol: Protocol = "tail"
    stride: int | None = None
    chat: bool = False
    native_window: int | None = None
    scaling_options: Mapping[str, Any] = field(default_factory=dict)
    chunk: int = 1024
    layer_types: tuple[str, ...] | None = None
    pretrain_window: int | None = None
    from_scratch: bool = False

    def __post_init__(self) -> None:
        for name in ("documents", "trials", "needles_per_context", "chunk"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}", "it must be at least 1")
        for name in ("perplexity_documents", "stride"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}", "it must be at least 1")
        object.__setattr__(self, "scales", parse_methods(self.scales))  # aliases count as what they stand for
        # As read back from a manifest, lists count as what was given.
        options = {name: tuple(one) if isinstance(one, list) else one for name, one in self.scaling_options.items()}
        object.__setattr__(self, "scaling_options", options)
        if not self.probes:
            raise UsageError("no probe given", "choose needle, perplexity or both")
        for kind, given, known in (("probe", self.probes, PROBES), ("protocol", (self.protocol,), PROTOCOLS)):
            for one in given:
                if one not in known:
                    raise unknown(kind, one, known)
        if self.stride is not None and self.protocol != "strided":
            raise UsageError(f"stride {self.stride} with the protocol {self.protocol}", "only `strided` has strides")
        for name, hint in (("layer_types", "give at least one, or `all`"), ("lengths", "give at least one, or None")):
            if getattr(self, name) is not None and not getattr(self, name):
                raise UsageError(f"no {name.replace('_', ' ')} in the grid", hint)
        for depth in self.depths:
            _check_depth(depth)


def _check_depth(depth: float) -> None:
    if not 0 <= depth <= 100:
        raise UsageError(f"depth {depth:g} is outside 0 to 100", "depths are percent of the context")


def spec_from_dict(data: Mapping[str, Any]) -> RunSpec:
    """Rebuild a spec from the manifest of a run (lists back to tuples).

    Raises:
        UsageError: fields are missing or not ours.
    """
    try:
        values: dict[str, Any] = {name: tuple(item) if isinstance(item, list) else item for name, item in data.items()}
        return RunSpec(**{**values, "model": ModelSpec(**data["model"])})
    except (TypeError, KeyError) as error:
        raise UsageError(f"the run's spec cannot be read: {error}", "was it written by another version?") from None


def differences(one: RunSpec, other: RunSpec) -> list[str]:
    """Name the fields in which two specs differ, with both values."""
    a, b = ({**asdict(spec), **asdict(spec)["model"]} for spec in (one, other))
    return [f"{name} {a[name]!r} → {b[name]!r}" for name in a if name != "model" and a[name] != b[name]]


def parse_length(text: str) -> int:
    """Read a length in tokens: `32768`, `32k` (= 32,768) or `1m` (= 1,048,576).

    Raises:
        UsageError: not a number, not whole, or not positive.
    """
    raw = text.strip().lower().replace("_", "")
    unit = {"k": 1024, "m": 1024**2}.get(raw[-1:], 1)
    try:
        value = float(raw[:-1] if unit > 1 else raw) * unit
    except ValueError:
        raise UsageError(f"length {text!r} is not a number of tokens", "write 32768 or 32k") from None
    if not math.isfinite(value) or value <= 0 or value != int(value):
        raise UsageError(f"length {text!r} is not a positive whole number of tokens", "write 32768 or 32k")
    return int(value)


def parse_lengths(text: str) -> tuple[int, ...]:
    """Read a comma list of lengths; the result is sorted and free of duplicates."""
    lengths = sorted({parse_length(part) for part in text.split(",") if part.strip()})
    if not lengths:
        raise UsageError(f"no lengths in {text!r}", "write --lengths 2k,4k,8k")
    return tuple(lengths)


def parse_depths(text: str) -> tuple[float, ...]:
    """Read depths in percent: a comma list, or a bare count for evenly spaced ones from 0 to 100.

    `"11"` is 0, 10, … 100; `"0,50,100"` is itself; `"50,"` is the single depth 50.

    Raises:
        UsageError: not numbers, outside 0 to 100, or none at all.
    """
    parts = [part.strip() for part in text.split(",")]
    try:
        values = [float(part) for part in parts if part]
    except ValueError:
        raise UsageError(f"depths {text!r} are not numbers", "write --depths 0,25,50,75,100 or a count") from None
    if len(parts) == 1 and values:
        return even_depths(values[0])
    if not values:
        raise UsageError(f"no depths in {text!r}", "write --depths 0,25,50,75,100 or a count")
    for value in values:
        _check_depth(value)
    return tuple(sorted(set(values)))


def even_depths(count: float) -> tuple[float, ...]:
    """Return `count` depths (at least 2, a whole number), evenly spaced from 0 to 100 percent."""
    if not math.isfinite(count) or count != int(count) or count < 2:
        raise UsageError(
            f"{count:g} depths", "a bare count must be a whole number of at least 2; write 50, for one depth"
        )
    steps = int(count) - 1
    return tuple(100 * index / steps for index in range(steps + 1))


def parse_method(name: str) -> str:
    """Return the canonical name of a scaling method, following aliases."""
    key = name.strip().lower().replace("_", "-")
    method = ALIASES.get(key, key)
    if method not in METHODS:
        raise unknown("scaling", name, (*METHODS, *ALIASES))
    return method


def parse_methods(text: str | Iterable[str]) -> tuple[str, ...]:
    """Read a comma list of scalings; order is kept, repeats are dropped."""
    parts = text.split(",") if isinstance(text, str) else list(text)
    methods = dict.fromkeys(parse_method(part) for part in parts if part.strip())
    if not methods:
        raise UsageError(f"no scaling in {text!r}", f"choose from {', '.join(METHODS)}")
    return tuple(methods)


def parse_names(text: str | None) -> tuple[str, ...] | None:
    """Read a comma list of names; order is kept, repeats are dropped. None stays None."""
    return None if text is None else tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def default_lengths(native_window: int, target: int) -> tuple[int, ...]:
    """Return native × {½, 1, 1¼, 1½, 2, 3, 4, 6, 8, 16, …} up to `target`, and `target` itself, in tokens."""
    lengths = {target}
    multiples = list(GRID_MULTIPLES)
    while native_window * multiples[-1] < target:
        multiples.append(multiples[-1] * 2)
    lengths.update(int(native_window * multiple) for multiple in multiples if native_window * multiple <= target)
    return tuple(sorted(lengths))
