"""From what the user asked for to what will be run, once the model's windows are known. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ctxeval.errors import UsageError, unknown
from ctxeval.rope.options import LENGTH_DEPENDENT, OPTIONS, validate_factor, validate_options
from ctxeval.spec import DEFAULT_DEPTHS, RunSpec, ScalingSpec, default_lengths, even_depths


@dataclass(frozen=True)
class Resolved:
    """The grid and the scalings of a run. Lengths in tokens, depths in percent.

    `reference_lengths` are native/2 and native: the unpatched model is always measured there. `varying` are the methods
    whose frequencies depend on the context length, `none` among them where the checkpoint's own do.
    """

    scalings: tuple[ScalingSpec, ...]
    target: int
    lengths: tuple[int, ...]
    reference_lengths: tuple[int, ...]
    depths: tuple[float, ...]
    native_window: int
    pretrain_window: int
    perplexity_documents: int
    varying: frozenset[str] = LENGTH_DEPENDENT

    def window(self, scaling: ScalingSpec) -> int:
        """Return L, the window in tokens of the frequencies that a scaling starts from."""
        return self.pretrain_window if scaling.from_scratch else self.native_window

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


def resolve(
    spec: RunSpec,
    native_window: int,
    pretrain_window: int | None = None,
    *,
    native_varies: bool = False,
    factors: Mapping[str, Any] = MappingProxyType({}),
) -> Resolved:
    """Fill in what depends on the model.

    Args:
        spec: what was asked for.
        native_window: tokens; L of what composes on the checkpoint's frequencies.
        pretrain_window: tokens; L of what starts from scratch. By default the native one.
        native_varies: whether the checkpoint's own frequencies depend on the length read.
        factors: options that were read from the checkpoint: its LongRoPE factors.

    Raises:
        UsageError: a target that is not above L, or lengths that are not positive.
    """
    options = {**factors, **spec.scaling_options}
    _check_options(spec.scales, options)
    if spec.factor is not None:
        validate_factor(spec.factor)
    stretched = [method for method in spec.scales if method != "none"]
    if spec.from_scratch and not stretched:
        raise UsageError("--from-scratch with none alone", "none is the checkpoint as it is: give another --scale")
    pretrain_window = pretrain_window or native_window
    window, name = (pretrain_window, "pretrain") if spec.from_scratch else (native_window, "native")
    target = _target(spec, window)
    lengths = spec.lengths or default_lengths(window, target)
    if spec.length is not None and max(lengths) > spec.length:
        raise UsageError(
            f"--lengths {max(lengths)} is beyond --len {spec.length}",
            "raise --len; to look beyond what the scaling aims at, give --factor instead of --len",
        )
    if min(lengths) < 2:
        raise UsageError(f"length {min(lengths)}", "lengths are tokens, at least 2")
    if "ntk-dynamic" in stretched and target <= window:
        raise UsageError(
            f"ntk-dynamic to {target} tokens, within the {name} window of {window}",
            "it would do nothing, as it goes by the length alone: give a longer --len",
        )
    if stretched and spec.factor is None and target <= window:
        raise UsageError(
            f"--len {target} is not above the {name} window of {window} tokens",
            f"{', '.join(stretched)} would do nothing: give a longer --len, or --factor",
        )
    return Resolved(
        scalings=tuple(_scaling(spec, method, target / window, options) for method in spec.scales),
        target=target,
        lengths=tuple(sorted(set(lengths))),
        reference_lengths=(native_window // 2, native_window),
        depths=spec.depths or even_depths(DEFAULT_DEPTHS),
        native_window=native_window,
        pretrain_window=pretrain_window,
        perplexity_documents=min(spec.perplexity_documents or spec.documents, spec.documents),
        varying=LENGTH_DEPENDENT | {"none"} if native_varies else LENGTH_DEPENDENT,
    )


def _scaling(spec: RunSpec, method: str, reach: float, options: Mapping[str, Any]) -> ScalingSpec:
    """Build the scaling; `reach` is target / L. NTK-dynamic goes by the length alone, whatever --factor is."""
    if method == "none":
        return ScalingSpec("none")
    factor = reach if spec.factor is None or method == "ntk-dynamic" else spec.factor
    return ScalingSpec(method, factor, _options(method, options), spec.from_scratch)


def _target(spec: RunSpec, window: int) -> int:
    if spec.length is not None:
        return spec.length
    if spec.factor is not None:
        return int(window * spec.factor)
    if spec.lengths:
        return max(spec.lengths)
    if set(spec.scales) == {"none"}:
        return window
    raise UsageError("no target length", "give --len (for example --len 32k) or --factor")


def _options(method: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Keep the options that a method takes: one command line serves a list of scalings."""
    return {name: value for name, value in options.items() if name in OPTIONS[method]}


def _check_options(scales: tuple[str, ...], options: Mapping[str, Any]) -> None:
    """Refuse an option that none of the scalings takes, and check the values."""
    for name in options:
        takers = [method for method, names in OPTIONS.items() if name in names]
        if not takers:
            raise unknown("RoPE option", name, {name for names in OPTIONS.values() for name in names})
        if not any(method in scales for method in takers):
            raise UsageError(f"no scaling of {', '.join(scales)} takes {name}", f"it belongs to {', '.join(takers)}")
    for method in scales:
        validate_options(method, _options(method, options))
