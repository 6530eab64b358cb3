"""Rewrites a model's rotary frequencies in place, always from the ones it was found with, and puts them back."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection
from typing import Any

import torch

from ctxeval.errors import RunError, UsageError
from ctxeval.rope.base import Base, base_of, varies
from ctxeval.rope.frequencies import Scaled
from ctxeval.rope.options import validate_options
from ctxeval.rope.scaling import scale_frequencies
from ctxeval.rope.setting import Applied
from ctxeval.rope.sites import Site, find_sites, unwrap
from ctxeval.rope.snapshot import PatchState, SiteState, capture, in_fp32, put_back
from ctxeval.rope.softmax import find_softmax_scales, native_temperature, with_mscale, yarn_temperature
from ctxeval.rope.windows import rope_parameters, text_config

#: Set on a rotary module while its table is not the native one: a second patch would take it for native.
MARK = "_ctxeval_scaled"


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
            UsageError: the model has no rotary tables, or none for such a layer type; or its forward takes its factor
                from the configuration.
            RunError: a table was cast from fp32 and cannot be recomputed, or the model is patched already.
        """
        self.model = unwrap(model)
        self.sites: tuple[Site, ...] = find_sites(self.model, layer_types)
        for site in self.sites:
            if hasattr(site.module, MARK):
                raise RunError(
                    f"{site.label} is scaled already by {getattr(site.module, MARK)}", "restore that patch first"
                )
            _refuse_own_mscale(site)
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
        from_scratch: bool = False,
        context_length: int | None = None,
        target_length: int | None = None,
        **options: Any,
    ) -> None:
        """Bring the model to one setting, whatever was in force before.

        `none` is the native state itself, whatever the factor.

        Args:
            method: a canonical method name.
            factor: target / L.
            native_window: L, the window in tokens that the base serves; needed by every method but `none`.
            from_scratch: start from plain RoPE, whose L is the pretrain window, not from the native frequencies.
            context_length: tokens that frequencies are frozen for, where they depend on it: those of the method (by
                default the target, L * factor) or, under `none`, the checkpoint's own (by default they are left to
                change while the model reads).
            target_length: the longest context that will be read, in tokens, where it is more than factor * L. Models
                that look sin and cos up get a table of that many rows.
            **options: of the method, see `ctxeval.rope.options.OPTIONS`.

        Raises:
            UsageError: a bad method, factor, window or option, or one that this model cannot take. Nothing changed.
            RunError: a rotary module has no place for the temperature. The model is as found.
        """
        asked = Applied(method, float(factor), native_window, dict(options), from_scratch, context_length)
        if method != "none" and native_window is None:
            raise UsageError(f"scaling {method} without a native window", "give --native-window")
        wanted = self.intended(asked)
        rows = max(math.ceil(factor * (native_window or 0)), target_length or 0, context_length or 0)
        self._put(self.native)
        self._write(asked, wanted, rows)
        self.applied = asked

    def intended(self, asked: Applied) -> tuple[Scaled, ...]:
        """Compute what each site should emit: fp64 frequencies and the whole factor on cos and sin. Changes nothing.

        Raises:
            UsageError: as `apply`.
        """
        validate_options(asked.method, asked.options)
        result = []
        for site, base in zip(self.sites, self.bases(asked), strict=True):
            scaled = Scaled(base.inv_freq, 1.0)
            if site.extended and asked.method != "none":
                scaled = scale_frequencies(
                    asked.method,
                    base.inv_freq,
                    native_window=asked.native_window or 0,
                    factor=asked.factor,
                    context_length=asked.context_length,
                    **asked.options,
                )
                if self._parameters.get("mscale_all_dim"):
                    scaled = with_mscale(asked, scaled, self._parameters, self.softmax)
            result.append(Scaled(scaled.inv_freq, scaled.attention_factor * base.attention_factor))
        return tuple(result)

    def bases(self, asked: Applied) -> tuple[Base, ...]:
        """Return what a setting starts from at each site.

        Raises:
            UsageError: see `ctxeval.rope.base.base_of`.
        """
        return tuple(
            base_of(site, state, asked.method, from_scratch=asked.from_scratch, context_length=asked.context_length)
            for site, state in zip(self.sites, self.native, strict=True)
        )

    def intended_softmax(self, asked: Applied) -> tuple[float, ...]:
        """Compute what each softmax scale should be. Changes nothing."""
        ratio = 1 / native_temperature(self._parameters).softmax if asked.from_scratch else 1.0
        if self.softmax and asked.method == "yarn":
            ratio *= yarn_temperature(asked.factor, self._parameters).softmax
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

    def _write(self, asked: Applied, wanted: tuple[Scaled, ...], rows: int) -> None:
        frozen = asked.method != "none" or asked.context_length is not None
        try:
            for site, state, scaled in zip(self.sites, self.native, wanted, strict=True):
                if site.extended and frozen and (asked.method != "none" or varies(site, state)):
                    values = torch.from_numpy(scaled.inv_freq).to(site.inv_freq.device, torch.float32)
                    site.write(values, scaled.attention_factor, rows)
                    setattr(site.module, MARK, asked.method)
                else:
                    site.extend(rows)
        except RunError:
            self.restore()
            raise
        for scale, value in zip(self.softmax, self.intended_softmax(asked), strict=True):
            scale.write(value)


def _refuse_own_mscale(site: Site) -> None:
    """Refuse a PhiMoE that is scaled already, as Phi-3.5-MoE is.

    Its forward in transformers 5 multiplies by `short_mscale` or `long_mscale`, whatever the module's factor is, and
    asks for the frequencies without a length: the long factors never come into force.
    """
    parameters = getattr(getattr(site.module, "config", None), "rope_parameters", None) or {}
    if "rope_init_fn" in vars(site.module) and site.rope_type != "default" and "long_mscale" in parameters:
        raise UsageError(
            f"{site.label} ({type(site.module).__name__}) with rope type {site.rope_type}: transformers takes its "
            "factor from long_mscale and its short frequencies at every length, so that nothing on it can be proved",
            "only a PhiMoE with plain RoPE can be measured",
        )
