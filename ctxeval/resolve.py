"""From what the user asked for to what will be run, once the model's windows are known. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ctxeval.errors import UsageError
from ctxeval.rope.options import OPTIONS, validate_factor, validate_options
from ctxeval.spec import DEFAULT_DEPTHS, RunSpec, ScalingSpec, default_lengths, even_depths


@dataclass(frozen=True)
class Resolved:
    """The grid and the scalings of a run. Lengths in tokens, depths in percent.

    `reference_lengths` are native/2 and native: the unpatched model is always measured there.
    """

    scalings: tuple[ScalingSpec, ...]
    target: int
    lengths: tuple[int, ...]
    reference_lengths: tuple[int, ...]
    depths: tuple[float, ...]
    native_window: int
    perplexity_documents: int

    @property
    def all_lengths(self) -> tuple[int, ...]:
        """Grid and reference lengths together, ascending."""
        return tuple(sorted({*self.lengths, *self.reference_lengths}))

    @property
    def with_reference(self) -> tuple[ScalingSpec, ...]:
        """The scalings to run: `none` comes first, asked for or not, since others are compared with it."""
        none = [one for one in self.scalings if one.method == "none"] or [ScalingSpec("none")]
        return (*none, *(one for one in self.scalings if one.method != "none"))

    def measures(self, scaling: ScalingSpec, length: int) -> bool:
        """Tell whether `scaling` is measured at `length`."""
        if scaling.method == "none" and length in self.reference_lengths:
            return True
        return scaling in self.scalings and length in self.lengths


def resolve(spec: RunSpec, native_window: int) -> Resolved:
    """Fill in what depends on the native window.

    Raises:
        UsageError: a target that is not above the native window, or lengths that are not positive.
    """
    _check_options(spec)
    if spec.factor is not None:
        validate_factor(spec.factor)
    target = _target(spec, native_window)
    factor = spec.factor if spec.factor is not None else target / native_window
    lengths = spec.lengths or default_lengths(native_window, target)
    if spec.length is not None and max(lengths) > spec.length:
        raise UsageError(
            f"--lengths {max(lengths)} is beyond --len {spec.length}",
            "raise --len; to look beyond what the scaling aims at, give --factor instead of --len",
        )
    if min(lengths) < 2:
        raise UsageError(f"length {min(lengths)}", "lengths are tokens, at least 2")
    stretched = [method for method in spec.scales if method != "none"]
    if stretched and spec.factor is None and target <= native_window:
        raise UsageError(
            f"--len {target} is not above the native window of {native_window} tokens",
            f"{', '.join(stretched)} would do nothing: give a longer --len, or --factor",
        )
    scalings = tuple(
        ScalingSpec("none") if method == "none" else ScalingSpec(method, factor, _options(method, spec.scaling_options))
        for method in spec.scales
    )
    return Resolved(
        scalings=scalings,
        target=target,
        lengths=tuple(sorted(set(lengths))),
        reference_lengths=(native_window // 2, native_window),
        depths=spec.depths or even_depths(DEFAULT_DEPTHS),
        native_window=native_window,
        perplexity_documents=min(spec.perplexity_documents or spec.documents, spec.documents),
    )


def _target(spec: RunSpec, native_window: int) -> int:
    if spec.length is not None:
        return spec.length
    if spec.factor is not None:
        return int(native_window * spec.factor)
    if spec.lengths:
        return max(spec.lengths)
    if set(spec.scales) == {"none"}:
        return native_window
    raise UsageError("no target length", "give --len (for example --len 32k) or --factor")


def _options(method: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Keep the options that a method takes: one command line serves a list of scalings."""
    return {name: value for name, value in options.items() if name in OPTIONS[method]}


def _check_options(spec: RunSpec) -> None:
    """Refuse an option that none of the scalings takes, and check the values."""
    for name in spec.scaling_options:
        if not any(name in OPTIONS[method] for method in spec.scales):
            takers = ", ".join(method for method, names in OPTIONS.items() if name in names)
            raise UsageError(
                f"no scaling of {', '.join(spec.scales)} takes {name}", f"it belongs to {takers or 'none'}"
            )
    for method in spec.scales:
        validate_options(method, _options(method, spec.scaling_options))
