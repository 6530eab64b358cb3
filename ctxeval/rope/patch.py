"""Rewrites a model's rotary frequencies in place, always from the ones it was found with, and puts them back."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from ctxeval.errors import RunError, UsageError
from ctxeval.rope.options import validate_options
from ctxeval.rope.scaling import Scaled, scale_frequencies
from ctxeval.rope.sites import Site, find_sites, unwrap
from ctxeval.rope.snapshot import PatchState, SiteState, capture, in_fp32, native_factor, put_back
from ctxeval.rope.softmax import find_softmax_scales, with_mscale, yarn_temperature
from ctxeval.rope.windows import read_windows, rope_parameters, text_config
from ctxeval.spec import parse_method

#: Set on a rotary module while its table is not the native one: a second patch would take it for native.
MARK = "_ctxeval_scaled"


@dataclass(frozen=True)
class Applied:
    """What a patch was last asked for; `native_window` in tokens, None only under `none`."""

    method: str = "none"
    factor: float = 1.0
    native_window: int | None = None
    options: dict[str, Any] = field(default_factory=dict)


class RopePatch:
    """Scales the rotary tables of one loaded model, any number of times, each time from its native state.

    Keys cached under one setting are of no use under another: the caller drops its caches. The model's configuration
    is left alone, as some models read it while they run.

    Attributes:
        model: the transformers model.
        sites: its rotary tables; of those, `site.extended` are scaled.
        native: the state of each site as found, with tables in fp32. The base of every scaling.
        softmax: the softmax scales that hold a part of YaRN's temperature (MLA with `mscale_all_dim`), mostly none.
        native_softmax: their values as found.
        applied: what is in force.
    """

    def __init__(self, model: Any, layer_types: Collection[str] | None = None) -> None:
        """Find the tables of `model` (a transformers model, or an object whose `.model` is one) and copy them.

        Args:
            model: as above.
            layer_types: the layer types that are scaled, or `all`; by default the global ones.

        Raises:
            UsageError: the model has no rotary tables, or none for such a layer type.
            RunError: a table was cast from fp32 and cannot be recomputed, or the model is patched already.
        """
        self.model = unwrap(model)
        self.sites: tuple[Site, ...] = find_sites(self.model, layer_types)
        for site in self.sites:
            if hasattr(site.module, MARK):
                raise RunError(
                    f"{site.label} is scaled already by {getattr(site.module, MARK)}", "restore that patch first"
                )
        self._found = tuple(capture(site) for site in self.sites)
        self.native: tuple[SiteState, ...] = tuple(map(in_fp32, self.sites, self._found))
        self._parameters = rope_parameters(text_config(self.model.config))
        self.softmax = find_softmax_scales(self.model, self._parameters)
        self.native_softmax: tuple[float, ...] = tuple(one.value for one in self.softmax)
        self.applied = Applied()

    def apply(
        self,
        method: str,
        *,
        factor: float = 1.0,
        native_window: int | None = None,
        target_length: int | None = None,
        **options: Any,
    ) -> None:
        """Bring the model to one setting, whatever was in force before.

        `none` is the native state itself, whatever the factor.

        Args:
            method: a canonical method name.
            factor: target / native window.
            native_window: tokens; needed by every method but `none`.
            target_length: the longest context that will be read, in tokens, where it is more than factor * window.
                Models that look sin and cos up get a table of that many rows.
            **options: of the method, see `ctxeval.rope.options.OPTIONS`.

        Raises:
            UsageError: a bad method, factor, window or option, or one that this model cannot take. Nothing changed.
            RunError: a rotary module has no place for the temperature. The model is as found.
        """
        if method == "none":
            validate_options(method, options)
            self._put(self.native)
            for site in self.sites:
                site.extend(target_length or 0)
        else:
            if native_window is None:
                raise UsageError(f"scaling {method} without a native window", "give --native-window")
            wanted = self.intended(method, factor=factor, native_window=native_window, **options)
            rows = max(math.ceil(factor * native_window), target_length or 0)
            self._put(self.native)
            self._write(method, wanted, rows)
            for scale, value in zip(self.softmax, self.intended_softmax(method, factor=factor), strict=True):
                scale.write(value)
        self.applied = Applied(method, float(factor), native_window, dict(options))

    def intended(self, method: str, *, factor: float, native_window: int, **options: Any) -> tuple[Scaled, ...]:
        """Compute what each site should emit: fp64 frequencies and the whole factor on cos and sin. Changes nothing.

        Raises:
            UsageError: as `apply`.
        """
        validate_options(method, options)
        result = []
        for site, state in zip(self.sites, self.native, strict=True):
            values = base_frequencies(site, state, method).double().cpu().numpy()
            scaled = Scaled(values, 1.0)
            if site.extended:
                scaled = scale_frequencies(method, values, native_window=native_window, factor=factor, **options)
                if self._parameters.get("mscale_all_dim"):
                    scaled = with_mscale(method, scaled, factor, options, self._parameters, self.softmax)
            result.append(Scaled(scaled.inv_freq, scaled.attention_factor * native_factor(site, state)))
        return tuple(result)

    def intended_softmax(self, method: str, *, factor: float) -> tuple[float, ...]:
        """Compute what each softmax scale should be. Changes nothing."""
        ratio = yarn_temperature(factor, self._parameters).softmax if self.softmax and method == "yarn" else 1.0
        return tuple(native * ratio for native in self.native_softmax)

    def restore(self) -> None:
        """Put every table and attribute back as found, bit for bit, cast tables included."""
        self._put(self._found)
        self.applied = Applied()

    def frequencies_sha256(self) -> str:
        """Hash what is in the model now: each site's name, dtype, frequencies and factor on cos and sin."""
        digest = hashlib.sha256()
        for site in self.sites:
            table = site.inv_freq.detach().cpu()
            digest.update(f"{site.label} {table.dtype} {site.attention_scaling!r}\n".encode())
            digest.update(table.double().numpy().tobytes())
        for scale in self.softmax:
            digest.update(f"{scale.name} softmax {scale.value!r}\n".encode())
        return digest.hexdigest()

    def state(self) -> PatchState:
        """Copy what is in force, whoever put it there."""
        return PatchState(tuple(map(capture, self.sites)), tuple(scale.value for scale in self.softmax))

    def set_state(self, state: PatchState) -> None:
        """Put back what `state` returned. What `applied` says is not changed."""
        for site, one in zip(self.sites, state.sites, strict=True):
            put_back(site, one)
        for scale, value in zip(self.softmax, state.softmax, strict=True):
            scale.write(value)

    def set_native(self) -> None:
        """Put the native state in force for a comparison. What `applied` says is not changed."""
        self.set_state(PatchState(self.native, self.native_softmax))

    def _put(self, states: tuple[SiteState, ...]) -> None:
        self.set_state(PatchState(states, self.native_softmax))
        for site in self.sites:
            if hasattr(site.module, MARK):
                delattr(site.module, MARK)

    def _write(self, method: str, wanted: tuple[Scaled, ...], rows: int) -> None:
        try:
            for site, scaled in zip(self.sites, wanted, strict=True):
                if site.extended:
                    values = torch.from_numpy(scaled.inv_freq).to(site.inv_freq.device, torch.float32)
                    site.write(values, scaled.attention_factor, rows)
                    setattr(site.module, MARK, method)
        except RunError:
            self.restore()
            raise


@contextmanager
def scaled_rope(
    model: Any,
    method: str,
    *,
    factor: float = 1.0,
    native_window: int | None = None,
    target_length: int | None = None,
    layer_types: Collection[str] | None = None,
    **options: Any,
) -> Iterator[RopePatch]:
    """Scale a model's rotary frequencies inside a `with` block; on leaving, also by an exception, they are restored.

    Args:
        model: a transformers model, or an object whose `.model` is one.
        method: a method name or alias.
        factor: target / native window.
        native_window: tokens; read from the model's configuration when None.
        target_length: as in `RopePatch.apply`.
        layer_types: as in `RopePatch`.
        **options: of the method.

    Raises:
        UsageError, RunError: as `RopePatch` and `RopePatch.apply`; also when the configuration has no window.
    """
    method = parse_method(method)
    patch = RopePatch(model, layer_types)
    if native_window is None and method != "none":
        native_window = read_windows(patch.model.config).native
    patch.apply(method, factor=factor, native_window=native_window, target_length=target_length, **options)
    try:
        yield patch
    finally:
        patch.restore()


def base_frequencies(site: Site, state: SiteState, method: str) -> torch.Tensor:
    """Return the native frequencies (rotary_dim/2,) that a scaling starts from.

    A dynamic module's table depends on what it read before; its base is the copy it resets to.

    Raises:
        UsageError: a LongRoPE module, which switches between two tables: no single one is native.
    """
    kind = state.attributes.get("rope_type", "default")
    kind = kind.get(site.prefix, "default") if isinstance(kind, dict) else kind
    if not site.extended or method == "none":
        return state.inv_freq
    if kind == "longrope":
        raise UsageError(
            f"scaling {method} on {site.label}, a LongRoPE table that changes with the length read",
            "use none, or a checkpoint without LongRoPE",
        )
    if "dynamic" in str(kind) and state.original_inv_freq is not None:
        return state.original_inv_freq
    return state.inv_freq
